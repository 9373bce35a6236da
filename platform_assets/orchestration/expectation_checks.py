"""The checks of what is expected of decoded rows, one for each expectation, in Dagster's terms."""

from __future__ import annotations

from typing import Any, Final

import dagster as dg

from platform_assets.checks.expectations import Judged
from platform_assets.checks.findings import counted
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.expectations import Expectation
from platform_assets.model.untrusted import line, markdown
from platform_assets.orchestration.names import table_key

_MOST: Final = 20
_OF_WINDOWS: Final = [
    dg.TableColumn("window", "string"),
    dg.TableColumn("rows", "int", description="rows that were judged; -1 where the window was not measured"),
    dg.TableColumn("failing", "int", description="rows that fail; -1 where the window was not measured"),
]
_OF_SAMPLES: Final = [
    dg.TableColumn("window", "string"),
    dg.TableColumn("partition", "int", description="Kafka partition"),
    dg.TableColumn("offset", "int", description="Kafka offset"),
    dg.TableColumn("value", "string", description="shortened, and escaped where it is no text"),
]


def spec(declaration: TopicDeclaration, expectation: Expectation) -> dg.AssetCheckSpec:
    """The check of one expectation."""
    return dg.AssetCheckSpec(
        expectation.name,
        asset=table_key(declaration.decoded_table),
        blocking=expectation.severity == "error",
        description=markdown(f"In each window that is loaded, `{expectation}`."),
        metadata={"kind": expectation.kind, "severity": expectation.severity},
    )


def result(declaration: TopicDeclaration, judged: Judged) -> dg.AssetCheckResult:
    """The same as a result: the windows that fail, how many of their rows, the first of them, and what to do."""
    figures = judged.figures
    values: dict[str, Any] = {"rows": figures.rows, "failing": figures.failing, "expectation": line(judged.expectation)}
    if wrong := [each for each in judged.windows if each.figures is None or each.figures.failing]:
        records = [
            dg.TableRecord({"window": line(each.window), "rows": -1, "failing": -1})
            if each.figures is None
            else dg.TableRecord(
                {"window": line(each.window), "rows": each.figures.rows, "failing": each.figures.failing}
            )
            for each in wrong[-_MOST:]
        ]
        values["windows"] = dg.MetadataValue.table(records, dg.TableSchema(_OF_WINDOWS))
    if samples := _samples(judged):
        values["samples"] = dg.MetadataValue.table(samples[:_MOST], dg.TableSchema(_OF_SAMPLES))
    earlier = [each for each in judged.others if each.figures is not None and each.figures.failing]
    values["other_windows_failing"] = len(earlier)
    values["windows_not_measured"] = len(judged.unmeasured)
    return dg.AssetCheckResult(
        asset_key=table_key(declaration.decoded_table),
        check_name=judged.expectation.name,
        passed=judged.level == "passed",
        severity=dg.AssetCheckSeverity.ERROR if judged.level == "error" else dg.AssetCheckSeverity.WARN,
        description=markdown(" ".join(_sentences(declaration, judged))),
        metadata=values,
    )


def _sentences(declaration: TopicDeclaration, judged: Judged) -> list[str]:
    expected, figures, failing = judged.expectation, judged.figures, judged.failing
    measured = [each for each in judged.windows if each.figures is not None]
    if failing:
        where = ", ".join(
            f"{each.figures.failing:,} in window {each.window}" for each in failing[:3] if each.figures is not None
        )
        more = f" and {counted(len(failing) - 3, 'window')} more" if len(failing) > 3 else ""
        found = [f"{figures.failing:,} of {counted(figures.rows, 'row')} fail (`{expected}`): {where}{more}."]
        found.append(_remedy(declaration, expected, failing[0].window))
    else:
        found = (
            [f"{counted(figures.rows, 'row')} of {counted(len(measured), 'window')}: `{expected}`."] if measured else []
        )
    if judged.unmeasured:
        first = judged.unmeasured[-1]
        found.append(
            f"{counted(len(judged.unmeasured), 'window')} not measured by this declaration, the newest is {first}: "
            f"`platform-assets load {declaration.decoded_table} {first}`, or materialise the partitions; rows stay as they are."
        )
    return found or ["No window was decoded yet."]


def _remedy(declaration: TopicDeclaration, expected: Expectation, window: str) -> str:
    again = f"`platform-assets load {declaration.decoded_table} {window}`"
    if expected.kind == "unique":
        return (
            "Each of these rows is a record of its own in Kafka: the producer sent the key again, and the table has what was "
            "sent. Mend the producer; queries have to choose a row of each key. Where `decode:` makes the keys equal, correct it, "
            f"then {again}."
        )
    return (
        "The table has the values as they were sent. Where they are decoded wrongly, correct `decode:` in the topic's YAML; where a "
        f"record is just bad, mend it by `repairs:`; then {again}. Else mend the producer, or what is expected."
    )


def _samples(judged: Judged) -> list[dg.TableRecord]:
    return [
        dg.TableRecord(
            {"window": line(e.window), "partition": row.partition, "offset": row.offset, "value": line(row.value or "")}
        )
        for e in judged.failing
        if e.figures is not None
        for row in e.figures.samples
    ]
