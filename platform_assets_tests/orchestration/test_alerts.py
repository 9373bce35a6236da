"""Content of an alert: the failed check or load, with its window, offsets and fix."""

from __future__ import annotations

from typing import Any

import dagster as dg

from platform_assets.checks.findings import CheckResult, Finding
from platform_assets.checks.report import rendering
from platform_assets.errors import ConfigurationError, PlatformError
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import decoded_checks, run_steps
from platform_assets.orchestration.alerts import failure_text
from platform_assets.orchestration.names import table_key
from platform_assets_tests.support import tables

RAW = TableRef.raw("orders")
FOUND = Finding(
    "rows missing", "orders", "2026-01-01-00:00", 2, (OffsetRange(12, 15),), "3 rows are gone\x1b[2J\nall is well",
    "Materialize partition 2026-01-01-00:00 of raw/orders.",
)  # fmt: skip


def said(instance: dg.DagsterInstance, assets: list[Any]) -> list[str]:
    """Run a job on these assets that fails; return the lines of the alert for it."""
    job = dg.Definitions(assets=[a for a in assets if not isinstance(a, dg.AssetChecksDefinition)], asset_checks=[
        a for a in assets if isinstance(a, dg.AssetChecksDefinition)
    ]).resolve_implicit_global_asset_job_def()  # fmt: skip
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    context = dg.build_run_status_sensor_context(
        sensor_name="alert",
        dagster_event=result.get_run_failure_event(),
        dagster_instance=instance,
        dagster_run=result.dagster_run,
    ).for_run_failure()
    return failure_text(context).splitlines()


def test_a_failed_check_is_named_with_window_offsets_and_what_to_do(instance: dg.DagsterInstance) -> None:
    @dg.asset(key=table_key(RAW))
    def orders() -> None:
        """A loaded table."""

    @dg.asset_check(asset=table_key(RAW), name="no_gaps", blocking=True)
    def check() -> dg.AssetCheckResult:
        check_result = CheckResult("no_gaps", RAW, (FOUND,), "1 gap in 1 window.", ())
        return rendering.result(table_key(RAW), check_result, tables.facts(1))

    @dg.asset_check(asset=table_key(RAW), name="fine")
    def fine() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True, description="nothing to say")

    first, *lines = said(instance, [orders, check, fine])
    assert first.endswith(" failed")
    assert lines == [
        "raw/orders: no_gaps: 1 gap in 1 window. Rows missing: window 2026-01-01-00:00 partition 2 offsets [12, "
        "15): 3 rows are "
        r"gone\x1b[2J\nall is well. What to do: Materialize partition 2026-01-01-00:00 of raw/orders."
    ]


def test_a_failed_check_of_a_decoded_table_is_named_likewise() -> None:
    declaration = tables.declaration("orders")
    check_result = CheckResult(
        "conserved", TableRef("decoded", "orders"), (FOUND,), "1 window of 3: not just the raw rows", ()
    )
    text = decoded_checks._conservation(declaration, check_result).description or ""
    assert "1 window of 3: not just the raw rows. Rows missing: window 2026-01-01-00:00 partition 2 offsets" in text
    assert text.endswith("What to do: Materialize partition 2026-01-01-00:00 of raw/orders.")


def test_a_load_that_was_refused_is_named_with_what_to_do(instance: dg.DagsterInstance) -> None:
    @dg.asset(key=table_key(RAW))
    def orders() -> None:
        error: dict[str, PlatformError] = {"w": ConfigurationError("w cannot be loaded: correct the topic's YAML")}
        raise run_steps.as_dagster(error, f"1 of 2 windows failed: {error['w']}", 0) from error["w"]

    _, *lines = said(instance, [orders])
    assert lines == ["raw__orders: 1 of 2 windows failed: w cannot be loaded: correct the topic's YAML"]


def test_an_unforeseen_error_is_named_by_its_message(instance: dg.DagsterInstance) -> None:
    @dg.asset(key=table_key(RAW))
    def orders() -> None:
        raise ZeroDivisionError("by\x1b zero")

    _, *lines = said(instance, [orders])
    assert lines == [r"raw__orders: ZeroDivisionError: by\x1b zero"]
