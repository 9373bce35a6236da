"""A deep audit uses as few queries as possible. For each window, it reports the outcome of the query that contained the
window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform_assets.checks.registry import DEEP_AUDIT
from platform_assets.engines.connector import measure
from platform_assets.errors import FilesLostError, PlatformError, SparkUnreachableError
from platform_assets.lake.location import Lake
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef
from platform_assets_tests.support import answers, tables
from platform_assets_tests.support.tables import SOUND, WAITING, WINDOWS, key

LOADED = WINDOWS - WAITING
Read = Callable[[Callable[[], Any], Lake, TableRef, list[str], int], dict[str, Measured] | PlatformError]


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Make a sound table. Return the list to which `answered` appends the windows of each query."""
    tables.sound(tmp_path)
    answers.given(monkeypatch)
    return []


def answered(
    patch: pytest.MonkeyPatch, asked: list[list[str]], error: Callable[[list[str]], PlatformError | None]
) -> None:
    """Answer queries from the table's files, or raise `error`."""
    files: Read = measure._read

    def read(
        spark: Callable[[], Any], lake: Lake, table: TableRef, keys: list[str], version: int
    ) -> dict[str, Measured] | PlatformError:
        asked.append(keys)
        return error(keys) or files(spark, lake, table, keys, version)

    patch.setattr(measure, "_read", read)


def test_a_deep_audit_reads_small_windows_in_one_query(
    queries: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(monkeypatch, queries, lambda keys: None)
    found = DEEP_AUDIT.evaluate(answers.unanswered(tmp_path, SOUND))

    assert found.headline.startswith(f"{LOADED} windows with"), found
    assert not found.findings
    assert [len(keys) for keys in queries] == [LOADED]


def test_lost_files_of_one_window_are_its_own_and_the_others_are_proved(
    queries: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(keys: list[str]) -> PlatformError | None:
        return FilesLostError(f"raw/{SOUND}", " ".join(keys), "gone") if key(9) in keys else None

    answered(monkeypatch, queries, lost)
    found = DEEP_AUDIT.evaluate(answers.unanswered(tmp_path, SOUND))

    assert [(f.kind, f.window) for f in found.findings] == [("files lost", key(9))]
    assert dict(found.figures)["windows_audited"] == LOADED
    # All of them, then two halves of each query that failed: 28, 14, 7, 4 or 3, 2 or 1.
    assert len(queries) <= 1 + 2 * 5


def test_where_spark_is_gone_it_is_asked_once(
    queries: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(monkeypatch, queries, lambda keys: SparkUnreachableError("sc://nowhere", "connection refused"))
    found = DEEP_AUDIT.evaluate(answers.unanswered(tmp_path, SOUND))

    assert {f.kind for f in found.findings} == {"could not tell"}
    assert len(found.findings) == LOADED
    assert len(queries) == 1
