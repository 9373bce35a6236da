"""`platform-assets audit`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from platform_assets.cli import options
from platform_assets.errors import PlatformError
from platform_assets.terminal import console, echo_error, echo_json

if TYPE_CHECKING:
    from platform_assets.checks.audit import Audit
    from platform_assets.checks.decoded_audit import DecodedAudit
    from platform_assets.cli.environment import Environment
    from platform_assets.ledger.store import Ledger
    from platform_assets.model.declaration import TopicDeclaration
    from platform_assets.model.windows import Span


@click.command()
@click.argument("table")
@click.option(
    "--deep",
    is_flag=True,
    help="Read the table's files again with Spark and recompute their digests; for decoded/<topic>, also decode raw rows again.",
)
@click.option(
    "--windows",
    metavar="A..B",
    help="Audit only the windows from A to B, both inclusive; A.., ..B and A alone are also accepted.",
)
@options.as_json()
def audit(table: str, deep: bool, windows: str | None, as_json: bool) -> None:
    """Prove that TABLE has every committed record exactly once, or report which offsets are wrong and what to do.

    TABLE is raw/<topic>, or just the topic's name, even if it is no longer declared. The command queries the brokers
    and Spark only if the ledger and the table are not enough for a proof, or with --deep. Proofs are written to the
    ledger and stay valid until the window's files change.

    For changes/<topic>, the command proves that each decoded row is a change, superseded or refused; with --deep, it
    also makes the changes again and compares them.

    For decoded/<topic> or dead_letters/<topic>, the command proves that each raw row is in exactly one of these two
    tables. It uses receipts and files or, with --deep, reads both tables and decodes the raw rows again. The tables are
    not changed.

    For state/<topic>, the command proves that every window is applied, that each key is in one row, and that some keys
    have the row that counts; with --deep, it makes the whole state again from all changes, and compares it.

    For derived/<name>, the command proves that the files are those of the newest run, that a few groups equal the
    query's result over the recorded versions of its inputs, and that the expectations hold; with --deep, all rows are
    computed again and compared.

    For published/<topic>, a plain consumer reads the topic, and the command holds it against its table: each row once,
    none missing, none foreign, in order.

    Exits 0 if everything was proved, 1 if anomalies were found, 2 if neither could be determined; the reason is
    printed.
    """
    from platform_assets.checks.audit import EXIT_CODES
    from platform_assets.cli.publish import audit_published

    try:
        if table.startswith("published/"):
            if deep or windows is not None:
                raise click.UsageError(
                    "--deep and --windows do not apply to a published topic, which is always read whole"
                )
            sys.exit(audit_published(table, as_json=as_json))
        sys.exit(_audit(table, deep, windows, as_json))
    except (PlatformError, KeyboardInterrupt) as e:
        echo_error(
            e if str(e) else KeyboardInterrupt("interrupted"), "platform-assets: the audit could not be completed: "
        )
        sys.exit(EXIT_CODES["undecided"])


def _audit(table: str, deep: bool, windows: str | None, as_json: bool) -> int:
    from datetime import UTC, datetime

    from platform_assets.checks.audit import audit as audit_of
    from platform_assets.checks.evaluation import Evaluation
    from platform_assets.checks.facts import Orchestration
    from platform_assets.cli.audit_table import progress
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import table_held
    from platform_assets.model.derived import DerivedRef
    from platform_assets.model.tables import StateRef
    from platform_assets.model.windows import Span
    from platform_assets.orchestration import dagster_records

    try:
        span = None if windows is None else Span.parse(windows)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--windows") from e
    environment = Environment.of_process()
    ledger, instance = environment.ledger(), environment.instance()
    if StateRef.parse(table) is not None:
        if span is not None:
            raise click.UsageError("--windows does not apply to a state, which is always judged whole")
        with progress(console(stderr=True)) as on_progress:
            return _exit_code(_of_state(table, ledger, on_progress, deep=deep), as_json)
    if DerivedRef.parse(table) is not None:
        if span is not None:
            raise click.UsageError("--windows does not apply to a derived table, which is always judged whole")
        with progress(console(stderr=True)) as on_progress:
            return _exit_code(_of_derived(table, environment, on_progress, deep=deep), as_json)
    declaration, target = table_held(table, ledger)
    if target.kind == "changes":
        with progress(console(stderr=True)) as on_progress:
            return _exit_code(_of_changes(declaration, environment, span or Span(), on_progress, deep=deep), as_json)
    if target.kind != "raw":
        with progress(console(stderr=True)) as on_progress:
            return _exit_code(
                _of_decoded(declaration, environment, span or Span(), on_progress).run(datetime.now(UTC), deep=deep),
                as_json,
            )
    with progress(console(stderr=True)) as on_progress:
        found = audit_of(
            Evaluation(
                declaration,
                ledger,
                Orchestration()
                if instance is None
                else dagster_records.DagsterRecords(instance, declaration.raw_table),
                settings=environment.settings,
                cluster=environment.cluster,
                engine=environment.engine(declaration.engine),
                budget=float("inf"),
                windows=None
                if span is None
                else frozenset(w.key for w in ledger.windows(declaration.topic) if w.key in span),
                span=span,
                engine_by_name=environment.engine,
                progress=on_progress,
            ),
            datetime.now(UTC),
            deep=deep,
        )
    return _exit_code(found, as_json)


def _of_decoded(
    declaration: TopicDeclaration, environment: Environment, span: Span, on_progress: Callable[[str], None]
) -> DecodedAudit:
    """Return the audit of a topic's decoded tables."""
    from platform_assets.checks.decoded_audit import DecodedAudit
    from platform_assets.engines.choice import decode_engine
    from platform_assets.orchestration import dagster_records
    from platform_assets.orchestration.names import table_key
    from platform_assets.windows.decode.decoding import WindowDecoder

    ledger, instance = environment.ledger(), environment.instance()

    def decoder() -> WindowDecoder:
        engine = decode_engine(ledger.lake, functools.cache(environment.spark), environ=environment.variables)
        return WindowDecoder(declaration, ledger, engine)

    def in_flight(keys: list[str]) -> frozenset[str]:
        if instance is None:
            return frozenset()
        return dagster_records.windows_in_flight(instance, table_key(declaration.decoded_table), keys)

    return DecodedAudit(declaration, ledger, decoder, in_flight, span, progress=on_progress)


def _of_changes(
    declaration: TopicDeclaration,
    environment: Environment,
    span: Span,
    on_progress: Callable[[str], None],
    *,
    deep: bool,
) -> Audit:
    """Return the audit of a topic's table of changes."""
    from datetime import UTC, datetime

    from platform_assets.checks import changes
    from platform_assets.orchestration import dagster_records
    from platform_assets.orchestration.names import table_key

    instance, asset = environment.instance(), table_key(declaration.changes_table)

    def in_flight(keys: list[str]) -> frozenset[str]:
        return frozenset() if instance is None else dagster_records.windows_in_flight(instance, asset, keys)

    return changes.audit(
        declaration, environment.ledger(), datetime.now(UTC), in_flight, span, deep=deep, progress=on_progress
    )


def _of_state(table: str, ledger: Ledger, on_progress: Callable[[str], None], *, deep: bool) -> Audit:
    """Return the audit of a topic's state."""
    import uuid
    from datetime import UTC, datetime

    from platform_assets.checks import state as checks
    from platform_assets.components.declared import state_of

    declaration, state = state_of(table)
    return checks.audit(
        declaration, state, ledger, datetime.now(UTC), deep=deep, seed=uuid.uuid4().hex, progress=on_progress
    )


def _of_derived(table: str, environment: Environment, on_progress: Callable[[str], None], *, deep: bool) -> Audit:
    """Return the audit of a derived table."""
    import uuid
    from datetime import UTC, datetime

    from platform_assets.checks import derived
    from platform_assets.components.declared import derived_of

    lake, now = environment.ledger().lake, datetime.now(UTC)
    seed = uuid.uuid4().hex
    return derived.audit(derived_of(table), lake, environment.spark, now, deep=deep, seed=seed, progress=on_progress)


def _exit_code(found: Audit, as_json: bool) -> int:
    """Print the outcome and return the exit code."""
    from platform_assets.cli.audit_table import print_audit

    if as_json:
        echo_json(found.to_json())
    else:
        print_audit(found)
    return found.exit_code
