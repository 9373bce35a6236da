"""Checks of a new window in tables of few and of many windows; ledger and log are made by script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from deltalake import DeltaTable

from platform_assets.checks import report
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.registry import CHECKS
from platform_assets.declaration import TopicDeclaration
from platform_assets.lake import raw, tablelog
from platform_assets.ledger import Ledger
from platform_assets_tests.samples import START, append, receipt, recorded, rows

PARTITIONS = 4
_TOPIC = "many"
_AT_ONCE = 2000
_COMMITS = 220  # more than the newest ones, which the check of the log compares one by one


def table_of(root: Path, windows: int) -> Path:
    """A lake with one raw table of `windows` windows, each of one file, with a row and nine markers a partition."""
    sealed = recorded(root, _TOPIC, [dict.fromkeys(range(PARTITIONS), n * 10) for n in range(windows + 1)])
    table = root / "raw" / _TOPIC
    raw.create_table(table, _TOPIC)
    held = {w.key: {p: [r.start] for p, r in w.ranges.items()} for w in sealed}
    for at in range(0, windows, _AT_ONCE):
        append(root, _TOPIC, pa.concat_tables([rows(w.key, held[w.key]) for w in sealed[at : at + _AT_ONCE]]))
    for number in range(_COMMITS):
        DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": f"interval {30 + number % 2} days"})
    DeltaTable(table).create_checkpoint()
    files = tablelog.window_files(tablelog.file_actions(table))
    Ledger(root).record_receipts(
        [
            receipt(
                w, held[w.key], load_id=w.key, kind="rebuilt", files_digest=files[w.key].digest,
                bytes=files[w.key].bytes, holes={"commit markers": 9 * PARTITIONS}, proved_by="broker evidence",
            )
            for w in sealed
        ]
    )  # fmt: skip
    return root


def contenders(lakes: Mapping[int, Path]) -> Mapping[str, Callable[[], object]]:
    """All checks of one window, with their reports as Dagster gets them, by number of windows."""
    return {f"{windows:,} windows": lambda root=root: evaluate(root) for windows, root in lakes.items()}  # type: ignore[misc]


def evaluate(root: Path) -> None:
    """What the four checks of a run cost. Neither Spark nor a broker may be asked."""
    for check in CHECKS.values():
        evaluation = Evaluation(
            TopicDeclaration(_TOPIC, "0 * * * *", START), root, Ledger(root), Orchestration(),
            _asked, _asked, _asked, whole=False,
        )  # fmt: skip
        if not report.result(check.evaluate(evaluation), evaluation.facts()).passed:
            raise RuntimeError(f"{check.name} failed: the figure would mean nothing")


def _asked(*_: Any) -> NoReturn:
    raise RuntimeError("a broker or Spark was asked although nothing is open")
