"""A tick records windows without offsets before it informs Dagster. While the tick may still be running, this causes no
finding."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.rules import agreement
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.windows.load.receipts import empty_receipt
from testbed import samples

DECLARED = TopicDeclaration("orders", "0 * * * *", samples.START)


def kinds(root: Path) -> list[tuple[str, str | None]]:
    """Return the check's findings if Dagster has no record of any window."""

    def unasked() -> None:
        pytest.fail("asked brokers or Spark")

    class NothingReported(Orchestration):
        def reported(self, keys: Sequence[str] | None) -> dict[str, str | None]:
            return {}

    evaluation = Evaluation(DECLARED, Ledger(Lake.at(root)), NothingReported(), unasked, unasked, None)  # type: ignore[arg-type]
    return [(f.kind, f.window) for f in agreement.evaluate(evaluation).findings]


def test_a_window_without_offsets_is_reported_when_its_tick_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, quiet = samples.recorded(tmp_path, "orders", [{0: 0}, {0: 5}, {0: 5}])
    samples.loaded(tmp_path, loaded, {0: list(range(5))})
    Ledger(Lake.at(tmp_path)).record_receipts([empty_receipt(DECLARED.raw_table, quiet, "")])
    assert kinds(tmp_path) == [("orchestrator behind", loaded.key)]
    monkeypatch.setattr(agreement, "_TICK", timedelta(0))
    assert kinds(tmp_path) == [("orchestrator behind", loaded.key), ("orchestrator behind", quiet.key)]
