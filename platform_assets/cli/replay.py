"""`platform-assets replay`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from platform_assets.cli import options
from platform_assets.terminal import console, echo_json

if TYPE_CHECKING:
    from platform_assets.cli.environment import Environment
    from platform_assets.windows.load.loading import Loader
    from platform_assets.windows.load.replacing import Loaded
    from platform_assets.windows.replay.replaying import PlannedWindow, Selection

JSON_VERSION: Final = 1
_TIMES: Final = ["%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ"]


@click.command()
@click.argument("table")
@click.argument("windows", nargs=-1, metavar="[WINDOW]...")
@click.option(
    "--partition", type=click.IntRange(min=0), help="Partition to which the offsets of --from and --to belong."
)
@click.option("--from", "first", type=click.IntRange(min=0), help="First offset.")
@click.option("--to", "end", type=click.IntRange(min=0), help="End of the offsets, exclusive.")
@click.option(
    "--since", type=click.DateTime(_TIMES), metavar="TIME", help="First timestamp, such as 2026-01-31T14:00Z."
)
@click.option("--until", type=click.DateTime(_TIMES), metavar="TIME", help="End of the timestamps, exclusive.")
@click.option("--into", metavar="NAME", help="Load into a new table in replays/NAME, and compare it with TABLE.")
@options.dry_run("Only report what would be done. The brokers are queried, but nothing is changed.")
@options.as_json(
    "Print JSON: version, table, dry_run, note, plan, and the fields of `load` or, with --into, fresh, loaded, compared, "
    "equal."
)
def replay(
    table: str,
    windows: tuple[str, ...],
    partition: int | None,
    first: int | None,
    end: int | None,
    since: datetime | None,
    until: datetime | None,
    into: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Load a range of TABLE from Kafka again: in place with a proof, or into a separate table for comparison.

    TABLE is raw/<topic>, or just the topic's name. Select the range in one of three ways: by windows, where each WINDOW
    is a key, or A..B for all windows from A to B, both inclusive; by offsets of a partition, with --partition, --from
    and --to; or by record timestamps, with --since and --until. All windows that overlap the range are loaded. These
    windows are listed first, with the offsets that Kafka still has.

    In place, each window is proved equal, repaired, kept or refused, as with `load`. With --into, the windows are
    loaded into a new table that has its own receipts. TABLE and its receipts, checks and position do not change, and
    loads into TABLE can continue. Then rows and digests of both tables are compared by window and partition, and the
    offsets of all differences are listed. The new table stays in the folder replays/NAME of the lake.

    Exits 0 if everything is loaded and proved, or the tables are equal; 1 if not; 3 if a retry may succeed.
    """

    from platform_assets.cli.audit_table import progress
    from platform_assets.cli.environment import Environment
    from platform_assets.cli.loads import load_windows
    from platform_assets.cli.replay_text import print_plan
    from platform_assets.components.declared import declaration_of
    from platform_assets.windows.load.loading import Loader
    from platform_assets.windows.replay import replaying
    from platform_assets.windows.replay.replaying import plan

    wanted = _selection(windows, partition, first, end, since, until)
    declaration = declaration_of(table)
    environment = Environment.of_process()
    ledger = environment.ledger()
    if into is not None:
        ledger.lake.replay(into)  # An invalid name is refused before any service is asked.
    touched = replaying.find(wanted, declaration.topic, ledger)
    loader = Loader(declaration, environment.cluster(), ledger, environment.engine(declaration.engine))
    planned = plan(loader, touched.windows) if touched.windows else ()
    fields: dict[str, Any] = {"note": touched.note or None, "plan": [p.details() for p in planned]}
    code = 0
    if not as_json:
        print_plan(declaration.raw_table, planned, touched.note, whole=dry_run, in_place=into is None)
    if planned and not dry_run:
        # Without JSON, a line for each window shows how far it has come.
        with progress(console(stderr=True)) if as_json else nullcontext(_no_progress) as on_progress:
            if into is None:
                keys = [p.sealed.key for p in planned]
                raw = declaration.raw_table
                done = load_windows(declaration, raw, keys, environment, as_json=as_json, on_progress=on_progress)
                found, code = done.fields, done.exit_code
            else:
                found, code = _beside(loader, planned, into, environment, as_json=as_json, on_progress=on_progress)
        fields |= found
    if as_json:
        head = {"version": JSON_VERSION, "table": declaration.raw_table.name, "dry_run": dry_run}
        echo_json({**head, **fields})
    sys.exit(code)


def _selection(
    windows: tuple[str, ...],
    partition: int | None,
    first: int | None,
    end: int | None,
    since: datetime | None,
    until: datetime | None,
) -> Selection:
    """Return the range that the arguments select. Raises click.UsageError unless exactly one of the three ways is
    used."""
    from platform_assets.model.offsets import OffsetRange
    from platform_assets.windows.replay.replaying import ByKeys, ByOffsets, ByTimestamps

    by_offsets = any(given is not None for given in (partition, first, end))
    by_time = since is not None or until is not None
    if bool(windows) + by_offsets + by_time != 1:
        raise click.UsageError(
            "choose what to replay: windows, or --partition with --from and --to, or --since with --until"
        )
    if windows:
        return ByKeys(windows)
    if by_offsets:
        if partition is None or first is None or end is None or first >= end:
            raise click.UsageError(
                "a range of offsets needs --partition, --from and --to, and --to must be greater than --from"
            )
        return ByOffsets(partition, OffsetRange(first, end))
    if since is None or until is None or since >= until:
        raise click.UsageError("a range of timestamps needs --since and --until, and --until must be after --since")
    return ByTimestamps(since.replace(tzinfo=UTC), until.replace(tzinfo=UTC))


def _beside(
    live: Loader,
    planned: Sequence[PlannedWindow],
    into: str,
    environment: Environment,
    *,
    as_json: bool,
    on_progress: Callable[[str], None],
) -> tuple[dict[str, Any], int]:
    """Load the windows into the replay `into` and compare them; return the JSON result and the exit code."""
    from platform_assets.cli.replay_text import print_comparison, print_loaded, print_result
    from platform_assets.errors import PlatformError, Retryable, UnknownOutcome
    from platform_assets.orchestration.resources import SparkResource
    from platform_assets.windows.replay.replaying import Replay, fresh_loader

    spark = SparkResource(remote=environment.spark_remote())
    name = live.declaration.engine
    fresh = fresh_loader(live, into, lambda lake: environment.engine(name, spark, lake))
    replay = Replay.begin(live, fresh, planned)
    windows = [p.sealed for p in planned]
    outcomes: dict[str, Loaded | PlatformError] = {}
    for key, outcome in replay.load(windows, spark.forget):
        outcomes[key] = outcome
        on_progress(f"{len(outcomes):,} of {len(windows):,} windows loaded")
        if not as_json:
            print_loaded(key, outcome)
    compared = []
    for window in windows:
        compared.append(replay.compare(window, outcomes[window.key]))
        on_progress(f"{len(compared):,} of {len(windows):,} windows compared")
        if not as_json:
            print_comparison(compared[-1])
    equal = all(c.equal for c in compared)
    if not as_json:
        print_result(live.declaration.raw_table, fresh.table, compared)
    fields = {
        "fresh": str(fresh.table),
        "loaded": {k: "failed" if isinstance(o, PlatformError) else o.outcome for k, o in outcomes.items()},
        "compared": [c.details() for c in compared],
        "equal": equal,
    }
    amiss = [outcomes[c.window] for c in compared if not c.equal]
    if amiss and all(isinstance(o, Retryable | UnknownOutcome) for o in amiss):
        return fields, 3
    return fields, 0 if equal else 1


def _no_progress(_: str) -> None:
    pass
