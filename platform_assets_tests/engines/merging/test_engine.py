"""The merging engine, if Spark's session ends, the workers lack the code, or the job is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from platform_assets.engines.merging import engine
from platform_assets.engines.merging.engine import MergeEngine
from platform_assets.engines.merging.work import Report, Share, Work
from platform_assets.errors import LakeUnavailableError, MergingLostError

ENDED = "[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. Session was closed."


class Lost(Exception):
    """Stand-in for Spark's error."""


class Shared:
    """Stand-in for a shared session."""

    forgotten = 0

    def session(self) -> str:
        return f"session {self.forgotten}"

    def forget(self) -> None:
        self.forgotten += 1


@pytest.fixture
def work(tmp_path: Path) -> Work:
    layout = pa.schema(
        {"topic_id": pa.string(), "kafka_partition": pa.int32(), "kafka_offset": pa.int64(), "window": pa.string()}
    )
    rows = {"topic_id": ["t"], "kafka_partition": [0], "kafka_offset": [1], "window": ["2026-01-01-00:00"]}
    pq.write_table(pa.table(rows, layout), tmp_path / "a.parquet")
    shares = tuple(Share(("a.parquet",), f"windows/x/{n}", 1 << 20) for n in range(3))
    return Work(str(tmp_path), "decoded/t", "decoded", layout, shares, ("window",))


def spark(monkeypatch: pytest.MonkeyPatch, *jobs: list[str | Exception]) -> list[int]:
    """Make jobs return these reports or raise these errors. Return a list to which each job adds its number of shares."""
    sent, left = list[int](), list(jobs)

    def texts_of(session: Any, work: Work, tasks: int, task: str) -> Iterator[str]:
        sent.append(len(work.shares))
        for each in left.pop(0):
            if isinstance(each, Exception):
                raise each
            yield each

    monkeypatch.setattr("pyspark.errors.PySparkException", Lost)
    monkeypatch.setattr(engine, "texts_of", texts_of)
    return sent


def done(share: int) -> str:
    return Report(share, {f"part-{share}": {}}).to_json()


def test_a_session_that_ended_is_renewed_and_goes_on_with_the_shares_that_are_left(
    monkeypatch: pytest.MonkeyPatch, work: Work
) -> None:
    shared: Any = Shared()
    sent = spark(monkeypatch, [done(0), Lost(ENDED)], [done(0), done(1)])
    assert [report.share for report in MergeEngine(shared=shared).merge(work)] == [0, 1, 2]
    assert (sent, shared.forgotten) == ([3, 2], 1)


def test_a_lost_job_is_a_retryable_error_after_the_reports_that_came(
    monkeypatch: pytest.MonkeyPatch, work: Work
) -> None:
    spark(monkeypatch, [done(0), Lost("Job aborted\nExecutorLostFailure")])
    found: list[int] = []
    with pytest.raises(MergingLostError, match="Spark stopped merging files of decoded/t: Job aborted"):
        found.extend(report.share for report in MergeEngine(lambda: None).merge(work))
    assert found == [0]


def test_a_session_that_is_not_available_says_so(monkeypatch: pytest.MonkeyPatch, work: Work) -> None:
    spark(monkeypatch)
    with pytest.raises(LakeUnavailableError):
        list(MergeEngine(_unavailable).merge(work))


def _unavailable() -> Any:
    raise LakeUnavailableError("somewhere", "no answer")


def test_workers_without_the_code_leave_their_shares_to_this_process(
    monkeypatch: pytest.MonkeyPatch, work: Work, tmp_path: Path
) -> None:
    old = '{"share": 1, "unsupported": "Spark\'s workers have version 1 of the platform\'s code"}'
    spark(monkeypatch, [done(0), old, done(2)])
    reports = list(MergeEngine(lambda: None).merge(work))
    assert [report.share for report in reports] == [0, 1, 2]
    (name,) = reports[1].files
    assert pq.read_metadata(tmp_path / name).num_rows == 1


def test_workers_without_python_leave_all_shares_to_this_process(monkeypatch: pytest.MonkeyPatch, work: Work) -> None:
    spark(monkeypatch, [Lost("Cannot run program python3")])
    assert [len(report.files) for report in MergeEngine(lambda: None).merge(work)] == [1, 1, 1]
