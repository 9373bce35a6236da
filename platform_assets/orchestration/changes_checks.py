"""Checks of tables of changes in Dagster: in runs that make changes, and in ticks that report windows without offsets."""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from platform_assets.checks import changes as checks
from platform_assets.checks.decoded import BUDGET
from platform_assets.checks.findings import CheckResult
from platform_assets.checks.report.rendering import as_event
from platform_assets.checks.report.worst import remedies, worst_windows
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.untrusted import line, markdown
from platform_assets.orchestration import dagster_records
from platform_assets.orchestration.names import changes_check_keys, changes_checks_op, table_key
from platform_assets.orchestration.resources import LakeResource

_MOST = 20


def build_checks(declaration: TopicDeclaration) -> dg.AssetChecksDefinition:
    """Build all checks of the table in one step, because they read the same receipts."""
    asset = table_key(declaration.changes_table)
    specs = [
        dg.AssetCheckSpec(
            checks.CONSERVATION,
            asset=asset,
            blocking=True,
            description="Each decoded record of a window is a change, or superseded by another record of its key, or "
            "refused, and the files are those of the window's load.",
        ),
        dg.AssetCheckSpec(
            checks.PLACED,
            asset=asset,
            description="Each decoded record has a place in the state: a key, a value unless it deletes its key, and a "
            "version if one is declared. The record's own key is that of its row.",
        ),
    ]

    @dg.multi_asset_check(specs=specs, name=changes_checks_op(declaration.topic), can_subset=True)
    def _evaluate(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> Iterator[dg.AssetCheckResult]:
        ledger = Ledger(lake.lake())
        sealed = ledger.edges(declaration.topic)[:-1]
        of_run = sorted(dagster_records.named_by(context.run, declaration.topic, sealed))
        wanted = {key.name for key in context.selected_asset_check_keys}
        for found in results(declaration, ledger, context.instance, of_run, context.run.run_id):
            if found.check_name in wanted:
                yield found

    return _evaluate


def results(
    declaration: TopicDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance | None,
    keys: Sequence[str],
    run_id: str | None = None,
    budget: float = BUDGET,
) -> Iterator[dg.AssetCheckResult]:
    """Evaluate all checks for the windows `keys` and the newest ones.

    Windows that runs of `instance` other than `run_id` are making are not judged.
    """
    asset = table_key(declaration.changes_table)

    def in_flight(wrong: list[str]) -> frozenset[str]:
        return frozenset() if instance is None else dagster_records.windows_in_flight(instance, asset, wrong, run_id)

    windows = checks.windows_of(declaration, ledger, keys, budget)
    yield _result(asset, checks.conserved(windows, in_flight), error=True)
    # A record without a place is missing from the state. Rows that should not be there are an error.
    yield _result(asset, checks.placed(windows), error=checks.misses_deletes(windows))


def after_empty_windows(
    declaration: TopicDeclaration, ledger: Ledger, instance: dg.DagsterInstance
) -> Iterator[dg.AssetCheckEvaluation]:
    """Evaluate all checks after windows were reported without a run, because Dagster ignores evaluations that are older
    than the report. Checks that no run has evaluated are omitted."""
    keys = changes_check_keys(declaration)
    if keys and dagster_records.newest_evaluations(instance, keys):
        # A tick reads no files.
        yield from (as_event(result) for result in results(declaration, ledger, instance, (), budget=0))


def _result(asset: dg.AssetKey, found: CheckResult, *, error: bool) -> dg.AssetCheckResult:
    values: dict[str, Any] = {**dict(found.figures), "findings": len(found.findings)}
    text = found.headline
    if found.findings:
        worst = worst_windows(found.findings)
        columns = [dg.TableColumn("window", "string"), dg.TableColumn("found", "string")]
        records = [dg.TableRecord({"window": line(w.window), "found": line(w.found)}) for w in worst[:_MOST]]
        values["anomalies"] = dg.MetadataValue.table(records, dg.TableSchema(columns))
        values["remedy"] = line(" ".join(str(r) for r in remedies(worst)[:_MOST]))
        text = f"{text.rstrip('.')}. {worst[0].findings[0].sentence()} What to do: {remedies(worst)[0]}"
    is_error = error and not found.undecided
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=found.check,
        passed=found.passed,
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        description=markdown(text),
        metadata=values,
    )
