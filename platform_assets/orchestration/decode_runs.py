"""What every run that decodes windows does: decode each, report, and fail with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from platform_assets.engines.choice import decode_engine
from platform_assets.errors import PlatformError, UnknownOutcome
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.untrusted import line
from platform_assets.orchestration import metadata, runs
from platform_assets.orchestration.attempts import decided_on, failure_text, is_of_a_service
from platform_assets.orchestration.load_runs import RunContext, as_dagster
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.resources import LakeResource, SparkResource
from platform_assets.orchestration.retries import Failures
from platform_assets.windows.decoding import DecodedWindow, WindowDecoder


def decode(
    context: RunContext, declaration: TopicDeclaration, keys: Sequence[str], lake: LakeResource, spark: SparkResource
) -> dict[str, DecodedWindow]:
    """Decode each window of `keys`, and go on past one that fails.

    Those that are decoded are reported as materialised by the caller; where one failed, by this call, since it raises then:
    dg.RetryRequested or dg.Failure, with the reasons on record for the sensor.
    """
    root = lake.lake()
    decoder = WindowDecoder(
        declaration, Ledger(root), decode_engine(root, spark.session, spark.remote), run_id=context.run.run_id
    )
    decided = decided_on(decoder.ledger, {declaration.decoded_table: keys})
    done = _decoded_before(context, decoder, keys) if context.retry_number else {}
    now_done: dict[str, DecodedWindow] = {}
    errors: dict[str, PlatformError] = {}
    for key in (key for key in keys if key not in done):
        try:
            now_done[key] = decoder.decode(key)
        except PlatformError as e:
            errors[key] = e
            context.log.error(line(f"window {key} was not decoded: {e}"))
            if isinstance(e, UnknownOutcome):
                spark.forget()
            if is_of_a_service(e):
                break
            continue
        w = now_done[key]
        context.log.info(
            line(
                f"window {key} ({len(done) + len(now_done)} of {len(keys)}): {w.outcome}, {w.decoded.rows:,} decoded rows, "
                f"{w.dead_letters.rows:,} dead letters, {w.decoded.seconds:.1f} s"
            )
        )
    done |= now_done
    if errors:
        # The step's own events are lost with it.
        for event in events(declaration, now_done, root):
            context.log_event(event)
        runs.record_failures(
            context.instance,
            context.run.run_id,
            declaration.decoded_table,
            Failures.of(errors, decoder.declared.fingerprint, decided[declaration.decoded_table]),
        )
        text = failure_text(errors, len(keys), len(done))
        raise as_dagster(errors, text, context.retry_number) from next(iter(errors.values()))
    return done


def events(
    declaration: TopicDeclaration, done: Mapping[str, DecodedWindow], lake: Lake
) -> list[dg.AssetMaterialization]:
    """Windows as materialised in both tables, each by its key."""
    return [
        dg.AssetMaterialization(
            table_key(receipt.table),
            partition=key,
            metadata=metadata.of_decoded(receipt, window.outcome, str(lake.table(receipt.table))),
            tags=metadata.tags_of(receipt, declaration),
        )
        for key, window in done.items()
        for receipt in (window.decoded, window.dead_letters)
    ]


def _decoded_before(context: RunContext, decoder: WindowDecoder, keys: Sequence[str]) -> dict[str, DecodedWindow]:
    """What an earlier try of this run has decoded and reported."""
    table = decoder.declaration.decoded_table
    outcomes = runs.reported_by(context.instance, context.run.run_id, table_key(table))
    wanted = [key for key in keys if key in outcomes]
    decoded = decoder.ledger.receipts(table, wanted) if wanted else {}
    dead = decoder.ledger.receipts(decoder.declaration.dead_letter_table, wanted) if wanted else {}
    return {
        key: DecodedWindow(decoded[key], dead[key], "unchanged") for key in wanted if key in decoded and key in dead
    }
