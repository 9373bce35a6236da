"""Checks of decoded tables in Dagster: in runs that decode, and in ticks that report windows without offsets."""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import dagster as dg

from platform_assets.checks import decoded as checks
from platform_assets.checks import expectations
from platform_assets.checks.expectations import ExpectationResult
from platform_assets.checks.findings import CheckResult, counted
from platform_assets.checks.report.rendering import as_event
from platform_assets.checks.report.worst import remedies, worst_windows
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.model.expectations import Expectation
from platform_assets.model.untrusted import line, markdown, without_marks
from platform_assets.orchestration import dagster_records
from platform_assets.orchestration.names import decoded_checks_op, table_key
from platform_assets.orchestration.resources import LakeResource

_SEVERITIES: Final = {
    "passed": dg.AssetCheckSeverity.WARN,
    "warning": dg.AssetCheckSeverity.WARN,
    "error": dg.AssetCheckSeverity.ERROR,
}
_MOST: Final = 20


def build_checks(declaration: TopicDeclaration, declared: DecodeDeclaration) -> dg.AssetChecksDefinition:
    """Build all checks of the table in one step, because they read the same receipts."""
    asset = table_key(declaration.decoded_table)
    specs = [
        dg.AssetCheckSpec(
            checks.CONSERVATION,
            asset=asset,
            blocking=True,
            description="A window's decoded rows and dead letters match its raw rows by digest, and were decoded "
            "with one declaration.",
        ),
        dg.AssetCheckSpec(
            checks.SHARE,
            asset=asset,
            blocking=True,
            description=f"Share of dead letters in a window. Above {declared.warn_share:g}, the check warns; above "
            f"{declared.fail_share:g}, it fails.",
        ),
        *(expectation_spec(declaration, each) for each in declared.expect),
    ]

    @dg.multi_asset_check(specs=specs, name=decoded_checks_op(declaration.topic), can_subset=True)
    def _evaluate(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> Iterator[dg.AssetCheckResult]:
        ledger = Ledger(lake.lake())
        sealed = ledger.edges(declaration.topic)[:-1]
        of_run = sorted(dagster_records.named_by(context.run, declaration.topic, sealed))
        wanted = {key.name for key in context.selected_asset_check_keys}
        for found in results(declaration, declared, ledger, context.instance, of_run or None, context.run.run_id):
            if found.check_name in wanted:
                yield found

    return _evaluate


def results(
    declaration: TopicDeclaration,
    declared: DecodeDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance | None,
    keys: Sequence[str] | None,
    run_id: str | None = None,
) -> Iterator[dg.AssetCheckResult]:
    """Evaluate all checks for the windows `keys` and the newest ones; for all windows if `keys` is empty.

    Windows that runs of `instance` other than `run_id` are decoding are not judged.
    """
    windows = checks.confirmed_windows(declaration, ledger, keys, _in_flight(declaration, instance, run_id))
    yield _conservation(declaration, checks.conserved(windows))
    found = checks.shares(windows, declared, ledger, keys or windows.keys[-1:])
    yield dg.AssetCheckResult(
        asset_key=table_key(declaration.decoded_table),
        check_name=checks.SHARE,
        passed=found.level == "passed",
        severity=_SEVERITIES[found.level],
        description=markdown(_share_text(declaration, found)),
        metadata={
            "dead_letters": found.dead,
            "records": found.of,
            "largest_share": found.worst_share,
            **({"samples": _samples(found)} if found.groups else {}),
        },
    )
    for each in declared.expect:
        yield expectation_result(declaration, expectations.result_of(windows, each, keys))


def after_empty_windows(
    declaration: TopicDeclaration, declared: DecodeDeclaration, ledger: Ledger, instance: dg.DagsterInstance
) -> Iterator[dg.AssetCheckEvaluation]:
    """Evaluate all checks after windows were reported without a run, because Dagster ignores evaluations that are older
    than the report.

    Rows and dead letters in the newest windows are counted again. The share of dead letters and the expectations keep
    the results of the last run: a window without offsets has no results of its own, and must not hide the results of
    earlier windows. A check that no run has evaluated is omitted.
    """
    asset = table_key(declaration.decoded_table)
    names = (checks.CONSERVATION, checks.SHARE, *(each.name for each in declared.expect))
    last = {name: _last(asset, name, instance) for name in names}
    if not any(last.values()):
        return
    # A tick reads no files. If files have changed, the last run's findings stay until the next run reads them.
    in_flight = _in_flight(declaration, instance, None)
    check_result = checks.conserved(checks.confirmed_windows(declaration, ledger, (), in_flight, budget=0))
    before = last.pop(checks.CONSERVATION)
    now = as_event(_conservation(declaration, check_result))
    yield now if before is None or not check_result.undecided else _again(before)
    yield from (_again(known) for known in last.values() if known is not None)


def _in_flight(
    declaration: TopicDeclaration, instance: dg.DagsterInstance | None, but: str | None
) -> Callable[[list[str]], frozenset[str]]:
    asset = table_key(declaration.decoded_table)
    return lambda keys: (
        frozenset() if instance is None else dagster_records.windows_in_flight(instance, asset, keys, but)
    )


def _last(asset: dg.AssetKey, name: str, instance: dg.DagsterInstance) -> dg.AssetCheckEvaluation | None:
    """Return the newest evaluation of a check, or None."""
    key = dg.AssetCheckKey(asset, name)
    last = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    return None if last is None or last.event is None else last.event.asset_check_evaluation


def _again(known: dg.AssetCheckEvaluation) -> dg.AssetCheckEvaluation:
    """Return a copy of the result that does not depend on a step. If an earlier release reported the result unescaped,
    it is escaped."""
    return dg.AssetCheckEvaluation(
        known.asset_key,
        known.check_name,
        known.passed,
        known.metadata,
        severity=known.severity,
        description=markdown(without_marks(known.description or "")),
    )


def _conservation(declaration: TopicDeclaration, check_result: CheckResult) -> dg.AssetCheckResult:
    values: dict[str, Any] = {**dict(check_result.figures), "findings": len(check_result.findings)}
    if check_result.findings:
        worst = worst_windows(check_result.findings)
        columns = [dg.TableColumn("window", "string"), dg.TableColumn("found", "string")]
        records = [dg.TableRecord({"window": line(w.window), "found": line(w.found)}) for w in worst[:_MOST]]
        values["anomalies"] = dg.MetadataValue.table(records, dg.TableSchema(columns))
        values["remedy"] = line(" ".join(str(r) for r in remedies(worst)[:_MOST]))
    return dg.AssetCheckResult(
        asset_key=table_key(declaration.decoded_table),
        check_name=checks.CONSERVATION,
        passed=check_result.passed,
        severity=dg.AssetCheckSeverity.WARN if check_result.undecided else dg.AssetCheckSeverity.ERROR,
        description=markdown(_conservation_text(check_result)),
        metadata=values,
    )


def _conservation_text(check_result: CheckResult) -> str:
    if not check_result.findings:
        return check_result.headline
    worst = worst_windows(check_result.findings)
    left = len(remedies(worst)) - 1
    more = f" {left} more remedies are listed under `remedy` below." if left else ""
    first = worst[0].findings[0]
    return f"{check_result.headline.rstrip('.')}. {first.sentence()} What to do: {remedies(worst)[0]}{more}"


def _share_text(declaration: TopicDeclaration, found: checks.Shares) -> str:
    if found.worst is None or not found.dead:
        return f"No dead letters among {found.of:,} records."
    reasons = ", ".join(
        f"{g.count:,} {g.reason}" + (f" at {g.place}" if g.place else "") + (" (key)" if g.side == "key" else "")
        for g in found.groups[:3]
    )
    more = f" and {len(found.groups) - 3} more kinds" if len(found.groups) > 3 else ""
    more += f", and {found.others:,} of other kinds" if found.others else ""
    return (
        f"{found.dead:,} of {found.of:,} records are dead letters: {reasons}{more}. The largest share is "
        f"{found.worst_share:.2%}, in window {found.worst}. See `platform-assets dead-letters "
        f"{declaration.dead_letter_table}`; correct `decode:` in the topic's YAML, and load these windows again with "
        f"`platform-assets load {declaration.decoded_table} --dead-letters`: dead letters that can then be decoded become rows."
    )


def _samples(found: checks.Shares) -> dg.TableMetadataValue:
    names = ("reason", "place", "count", "side", "window", "partition", "offset", "detail", "value")
    records = [
        dg.TableRecord(
            {
                "reason": line(group.reason),
                "place": line(group.place or ""),
                "count": group.count,
                "side": line(group.side),
                "window": line(sample.window),
                "partition": sample.partition,
                "offset": sample.offset,
                "detail": line(sample.detail),
                "value": (sample.key if group.side == "key" else sample.value) or "",
            }
        )
        for group in found.groups
        for sample in group.samples
    ]
    ints = {"count", "partition", "offset"}
    columns = [dg.TableColumn(name, "int" if name in ints else "string") for name in names]
    return dg.MetadataValue.table(records[:_MOST], dg.TableSchema(columns))


_OF_WINDOWS: Final = [
    dg.TableColumn("window", "string"),
    dg.TableColumn("rows", "int", description="rows that were checked; -1 if the window was not measured"),
    dg.TableColumn("failing", "int", description="rows that fail; -1 if the window was not measured"),
]
_OF_SAMPLES: Final = [
    dg.TableColumn("window", "string"),
    dg.TableColumn("partition", "int", description="Kafka partition"),
    dg.TableColumn("offset", "int", description="Kafka offset"),
    dg.TableColumn("value", "string", description="shortened, and escaped unless it is text"),
]


def expectation_spec(declaration: TopicDeclaration, expectation: Expectation) -> dg.AssetCheckSpec:
    """Return the spec for the check of one expectation."""
    return dg.AssetCheckSpec(
        expectation.name,
        asset=table_key(declaration.decoded_table),
        blocking=expectation.severity == "error",
        description=markdown(f"Expected in each loaded window: `{expectation}`."),
        metadata={"kind": expectation.kind, "severity": expectation.severity},
    )


def expectation_result(declaration: TopicDeclaration, result: ExpectationResult) -> dg.AssetCheckResult:
    """Return the result for one expectation: the failing windows, the numbers of rows, the first failing rows, and the
    remedy."""
    figures = result.figures
    values: dict[str, Any] = {"rows": figures.rows, "failing": figures.failing, "expectation": line(result.expectation)}
    if wrong := [each for each in result.windows if each.figures is None or each.figures.failing]:
        records = [
            dg.TableRecord({"window": line(each.window), "rows": -1, "failing": -1})
            if each.figures is None
            else dg.TableRecord(
                {"window": line(each.window), "rows": each.figures.rows, "failing": each.figures.failing}
            )
            for each in wrong[-_MOST:]
        ]
        values["windows"] = dg.MetadataValue.table(records, dg.TableSchema(_OF_WINDOWS))
    if samples := _failing_samples(result):
        values["samples"] = dg.MetadataValue.table(samples[:_MOST], dg.TableSchema(_OF_SAMPLES))
    earlier = [each for each in result.others if each.figures is not None and each.figures.failing]
    values["other_windows_failing"] = len(earlier)
    values["windows_not_measured"] = len(result.unmeasured)
    return dg.AssetCheckResult(
        asset_key=table_key(declaration.decoded_table),
        check_name=result.expectation.name,
        passed=result.level == "passed",
        severity=dg.AssetCheckSeverity.ERROR if result.level == "error" else dg.AssetCheckSeverity.WARN,
        description=markdown(" ".join(_expectation_text(declaration, result))),
        metadata=values,
    )


def _expectation_text(declaration: TopicDeclaration, result: ExpectationResult) -> list[str]:
    expected, figures, failing = result.expectation, result.figures, result.failing
    measured = [each for each in result.windows if each.figures is not None]
    if failing:
        where = ", ".join(
            f"{each.figures.failing:,} in window {each.window}" for each in failing[:3] if each.figures is not None
        )
        more = f" and {counted(len(failing) - 3, 'window')} more" if len(failing) > 3 else ""
        found = [f"{figures.failing:,} of {counted(figures.rows, 'row')} fail (`{expected}`): {where}{more}."]
        found.append(_remedy(declaration, expected, failing[0].window))
    else:
        found = (
            [f"{counted(figures.rows, 'row')} in {counted(len(measured), 'window')} pass: `{expected}`."]
            if measured
            else []
        )
    if result.unmeasured:
        first = result.unmeasured[-1]
        found.append(
            f"{counted(len(result.unmeasured), 'window')} not measured with this declaration (newest: "
            f"{first}). Run `platform-assets load {declaration.decoded_table} {first}`, or materialize the partitions; "
            "rows do not change."
        )
    return found or ["No window has been decoded yet."]


def _remedy(declaration: TopicDeclaration, expected: Expectation, window: str) -> str:
    again = f"`platform-assets load {declaration.decoded_table} {window}`"
    if expected.kind == "unique":
        return (
            "Each of these rows is a separate record in Kafka: the producer sent the same key again, and the table contains "
            "what was sent. Fix the producer. Until then, queries must choose one row per key. If `decode:` makes different "
            f"keys equal, correct it, then run {again}."
        )
    return (
        "The table contains the values as they were sent. If they are decoded wrongly, correct `decode:` in the topic's "
        f"YAML. If a record is bad, repair it with `repairs:`. Then run {again}. Otherwise, fix the producer or the "
        "expectation."
    )


def _failing_samples(result: ExpectationResult) -> list[dg.TableRecord]:
    return [
        dg.TableRecord(
            {"window": line(e.window), "partition": row.partition, "offset": row.offset, "value": line(row.value or "")}
        )
        for e in result.failing
        if e.figures is not None
        for row in e.figures.samples
    ]
