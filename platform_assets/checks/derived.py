"""The audit of a derived table: its log and files agree, its rows are the query's result, and its expectations hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from platform_assets.checks.audit import Audit, CheckOutcome
from platform_assets.checks.findings import CheckResult, Finding, FindingKind, counted
from platform_assets.errors import PlatformError
from platform_assets.lake import delta_log, derived_table
from platform_assets.lake.derived_table import Made
from platform_assets.lake.location import Lake
from platform_assets.model.derived import DerivedDeclaration
from platform_assets.model.windows import Span
from platform_assets.windows.derive import checking, freshness
from platform_assets.windows.derive.checking import EQUALS_REBUILD, Comparison, Expected

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.connect.session import SparkSession

RECORDED: Final = "as_recorded"


def audit(
    declaration: DerivedDeclaration,
    lake: Lake,
    spark: Callable[[], SparkSession],
    now: datetime,
    *,
    deep: bool,
    seed: str,
    progress: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Evaluate every check of a derived table. `seed` selects the groups that are computed again; with `deep`, all rows are. Nothing
    is changed."""
    outcomes = list(_outcomes(declaration, lake, spark, None if deep else seed, progress))
    return Audit(
        declaration.table.name, now.isoformat(timespec="seconds"), Span(), deep, tuple(outcomes), None, count=1
    )


def _outcomes(
    declaration: DerivedDeclaration,
    lake: Lake,
    spark: Callable[[], SparkSession],
    seed: str | None,
    progress: Callable[[str], None],
) -> Iterator[CheckOutcome]:
    progress(RECORDED)
    folder = lake.table(declaration.table)
    try:
        newer = freshness.up_to_date(lake, declaration)[1]
        # Opened once, so that a run that commits meanwhile is not taken for another writer.
        handle = folder.delta() if delta_log.exists(folder) else None
        made = None if handle is None else derived_table.newest(folder, handle.version())[0]
        if handle is None or made is None:
            text = f"{declaration.table} has no rows of a run: run `platform-assets derive {declaration.table.short}`"
            yield CheckOutcome(RECORDED, None, text)
            return
        yield CheckOutcome(RECORDED, as_recorded(declaration, lake, handle, made, newer), None)
    except PlatformError as e:
        yield CheckOutcome(RECORDED, None, str(e))
        return
    progress(EQUALS_REBUILD)
    try:
        compared = checking.compare(lake, declaration, spark, made, seed=seed)
        yield CheckOutcome(EQUALS_REBUILD, rebuilt(declaration, compared), None)
    except PlatformError as e:
        yield CheckOutcome(EQUALS_REBUILD, None, str(e))
    progress("expectations")
    if made.derivation.declaration != declaration.digest:
        text = f"{checking.QUERY_CHANGED}: run `platform-assets derive {declaration.table.short}`"
        yield from (CheckOutcome(each.name, None, text) for each in declaration.expect)
        return
    try:
        found = checking.expected(lake, declaration, spark)
    except PlatformError as e:
        yield from (CheckOutcome(each.name, None, str(e)) for each in declaration.expect)
        return
    yield from (CheckOutcome(each.expectation.name, as_expected(declaration, each), None) for each in found)


def as_recorded(
    declaration: DerivedDeclaration, lake: Lake, handle: DeltaTable, made: Made, newer: tuple[str, ...]
) -> CheckResult:
    """Compare the files of the opened version with the newest run's commit, without Spark. Inputs with newer versions are no finding,
    because the rows are judged against the versions from which they were computed."""
    folder = lake.table(declaration.table)
    files = derived_table.files_of(folder, handle)
    rows, recorded = [count for _, count in files.values()], made.derivation.whole.rows
    held = folder.stamps()
    lost = sorted(path for path in files if path not in held)
    if lost and delta_log.newest_version(folder) != handle.version():
        return _undecided(
            declaration, RECORDED, "another run committed during the audit, and may have deleted past files"
        )
    texts = []
    if derived_table.newest(folder, handle.version())[1]:
        texts.append(f"Another writer changed the table after version {made.version}, the newest commit of a run.")
    if None not in rows and sum(count or 0 for count in rows) != recorded:
        texts.append(
            f"The files have {sum(count or 0 for count in rows):,} rows, but the newest run recorded {recorded:,}."
        )
    if lost:
        texts.append(f"{counted(len(lost), 'file')} of the newest version cannot be found, such as {lost[0]}.")
    if not texts and freshness.has_past_files(lake, made):
        return _undecided(declaration, RECORDED, freshness.PAST_FILES, (("rows", recorded),))
    behind = f", without newer changes of {', '.join(newer)}" if newer else ""
    headline = texts[0] if texts else f"{counted(recorded, 'row')} as recorded in version {made.version}{behind}."
    findings = tuple(_finding(declaration, "not conserved", text) for text in texts)
    return CheckResult(RECORDED, declaration.table, findings, headline, (("rows", recorded),))


def rebuilt(declaration: DerivedDeclaration, compared: Comparison) -> CheckResult:
    """Return the result of computing rows again."""
    what = counted(compared.rows, "row")
    what += "" if compared.groups is None else f" in {counted(compared.groups, 'group')}"
    figures = (("rows", compared.rows), *((("groups", compared.groups),) if compared.groups is not None else ()))
    if compared.unknown is not None:
        return _undecided(declaration, EQUALS_REBUILD, compared.unknown, figures)
    if not compared.columns:
        text = f"{what} equal {compared.other}."
        return CheckResult(EQUALS_REBUILD, declaration.table, (), text, figures)
    again = ", computed again from the recorded versions of the inputs," if compared.is_rebuilt else ""
    text = f"{what}{again} differ in {', '.join(compared.columns)}."
    return CheckResult(
        EQUALS_REBUILD, declaration.table, (_finding(declaration, "decoded otherwise", text),), text, figures
    )


def as_expected(declaration: DerivedDeclaration, found: Expected) -> CheckResult:
    """Return the result of an expectation. One with `severity: warn` has no finding."""
    text = (
        found.problem or f"{found.failing:,} of {counted(found.rows, 'row')} fail: expected that {found.expectation}."
    )
    fails = found.problem is not None or bool(found.failing)
    wrong = fails and found.expectation.severity == "error"
    findings = (Finding("not conserved", declaration.table.short, "", None, (), text, _CORRECT),) if wrong else ()
    figures = (("rows", found.rows), ("failing", found.failing))
    return CheckResult(found.expectation.name, declaration.table, findings, text, figures)


_CORRECT: Final = "Correct the rows of the inputs, the query, or the expectation."


def _undecided(
    declaration: DerivedDeclaration, check: str, text: str, figures: tuple[tuple[str, int], ...] = ()
) -> CheckResult:
    remedy = f"Audit the table again. If this repeats, run `platform-assets derive {declaration.table.short}`."
    finding = Finding("could not tell", declaration.table.short, "", None, (), text, remedy)
    return CheckResult(check, declaration.table, (finding,), f"Could not tell: {text}", figures)


def _finding(declaration: DerivedDeclaration, kind: FindingKind, text: str) -> Finding:
    remedy = f"Run `platform-assets derive {declaration.table.short} --whole`, which computes all rows."
    if kind == "decoded otherwise":
        remedy += " If rows differ again, the query gives other rows each time: cast DOUBLE to DECIMAL."
    return Finding(kind, declaration.table.short, "", None, (), text, remedy)
