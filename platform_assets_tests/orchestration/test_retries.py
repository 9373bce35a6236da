"""Retries of failed windows: the time of the next request, and the runs that the requests form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from platform_assets.errors import (
    ClusterChangedError,
    CommitOutcomeUnknownError,
    LakeNotWritableError,
    OffsetsExpiredError,
    PlatformError,
    RepairOffsetError,
    SchemaChangeError,
    SparkUnreachableError,
    TruncationError,
    UnprovedRowsError,
    UnreadableTimestampError,
)
from platform_assets.lake.location import Lake
from platform_assets.ledger import decisions, unloaded
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from platform_assets.orchestration import health
from platform_assets.orchestration.execution import decided_on
from platform_assets.orchestration.planning import (
    LONGEST_WAIT,
    Cause,
    FailedRun,
    Failures,
    RunWindows,
    Waiting,
    cause_of,
    decided_at,
    grouped,
    tries_of,
    wait_before_retry,
)
from platform_assets.windows.decide import parking
from testbed.samples import START, edge, recorded, sealed

NOW = datetime(2026, 2, 1, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
INTERVAL = 30 * SECOND


def key(number: int) -> str:
    return key_of(edge(number))


def failed(
    first: int, last: int, ended: datetime = NOW, causes: dict[int, Cause] | None = None, run_id: str = "run"
) -> FailedRun:
    failures = None if causes is None else Failures({key(n): c for n, c in causes.items()}, "it failed")
    return FailedRun(run_id, ended, RunWindows(key(first), key(last)), failures)


KEYS = [key(n) for n in range(10)]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SparkUnreachableError("here", "refused"), "passing"),
        (LakeNotWritableError("/lake", "No space left on device"), "passing"),
        (CommitOutcomeUnknownError("raw/t", "w", "gone"), "abrupt"),
        (OffsetsExpiredError("t", "w", [(0, 1, 2)], ""), "decision"),
        (UnreadableTimestampError("raw/t", "w", [(0, 1, 2)]), "decision"),
        (UnprovedRowsError("raw/t", "w", 5, None, "partition 0 offsets [0, 5)"), "decision"),
        (TruncationError("t", 0, 5, 3), "log"),
        (SchemaChangeError("decoded/t", ["a is dropped"], "0" * 16), "declaration"),
        (RepairOffsetError("raw/t", "w", 0, 5), "declaration"),
    ],
)
def test_what_a_person_has_to_decide_is_told_from_what_may_pass(error: PlatformError, cause: Cause) -> None:
    assert cause_of(error) == cause


def test_what_a_run_says_of_its_windows_is_read_back_from_its_tag() -> None:
    failures = Failures.of({key(0): SparkUnreachableError("here", "x" * 2_000), key(1): TruncationError("t", 0, 5, 3)})
    assert Failures.from_tag(failures.to_tag()) == failures
    assert failures.causes == {key(0): "passing", key(1): "log"}
    assert len(failures.error) == 1_500
    ran = FailedRun("run", NOW, RunWindows(key(0), key(1)), failures)
    assert ran.error_of(key(0)) == failures.error
    assert ran.error_of(key(1)) == str(TruncationError("t", 0, 5, 3))


def test_each_window_that_waits_names_the_command_that_is_its_own() -> None:
    """This command is not the one for the run's first window, which may already have been run."""
    errors = {
        key(n): OffsetsExpiredError("t", key(n), [(0, 1, 2)], f"`platform-assets accept-loss raw/t {key(n)}`")
        for n in range(3)
    }
    said = Failures.from_tag(Failures.of(errors).to_tag())
    ran = FailedRun("run", NOW, RunWindows(key(0), key(2)), said)
    for n in range(3):
        assert f"accept-loss raw/t {key(n)}`" in ran.error_of(key(n))


@pytest.mark.parametrize(
    "error",
    [
        ClusterChangedError("a-topic-with-a-long-name" * 5, "A" * 22, "B" * 22),
        TruncationError("a-topic-with-a-long-name" * 5, 0, 5, 3),
    ],
)
def test_no_command_is_cut_off_where_status_shows_it(error: PlatformError) -> None:
    shown = health._shortened(Failures.of({key(0): error}).error)
    assert str(error) == shown
    assert shown.count("`") % 2 == 0
    assert "platform-assets accept-" in shown


def test_the_wait_doubles_from_the_interval_of_the_sensor_up_to_its_longest() -> None:
    assert [wait_before_retry(n, INTERVAL) / SECOND for n in range(1, 8)] == [30, 60, 120, 240, 480, 600, 600]
    assert wait_before_retry(10_000, INTERVAL) == LONGEST_WAIT
    # A sensor with a longer interval does not tick more often.
    assert wait_before_retry(1, 60 * MINUTE) == wait_before_retry(9, 60 * MINUTE) == 60 * MINUTE


def test_tries_are_counted_for_each_window_that_a_run_names() -> None:
    runs = [
        failed(0, 4, NOW, {1: "decision"}, "newest"),
        failed(3, 9, NOW - MINUTE, None, "killed"),
        failed(20, 30, NOW, {}, "others"),
    ]
    tries = tries_of(KEYS, runs)
    assert {k: t.number for k, t in tries.items()} == {key(n): 2 if n in (3, 4) else 1 for n in range(10)}
    assert [tries[key(n)].cause for n in (0, 1, 3, 9)] == ["passing", "decision", "passing", "abrupt"]
    assert [tries[key(n)].last.run_id for n in (0, 3, 9)] == ["newest", "newest", "killed"]
    assert [tries[key(n)].abrupt for n in (0, 3, 9)] == [0, 1, 1]
    # The order in which Dagster names the runs does not matter.
    assert tries_of(KEYS, runs[::-1]) == tries


def test_a_window_that_never_failed_is_due_and_one_that_did_waits() -> None:
    tries = tries_of(KEYS, [failed(1, 1, NOW, {1: "passing"})])
    for seconds, due in ((0, False), (29, False), (30, True), (3_600, True)):
        waiting = Waiting(NOW + seconds * SECOND, INTERVAL, NOW)
        assert waiting.is_due(key(0), tries.get(key(0)))
        assert waiting.is_due(key(1), tries[key(1)]) is due


def test_a_loss_is_asked_for_again_only_once_it_was_accepted_after_the_failure() -> None:
    tries = tries_of(KEYS, [failed(1, 1, NOW, {1: "decision"})])[key(1)]
    assert tries.waits_for_somebody
    later = NOW + timedelta(days=30)
    assert not Waiting(later, INTERVAL, later).is_due(key(1), tries)
    assert not Waiting(later, INTERVAL, later, {key(1): NOW - SECOND}).is_due(key(1), tries)
    assert not Waiting(later, INTERVAL, later, {key(2): NOW + SECOND}).is_due(key(1), tries)
    assert Waiting(NOW + SECOND, INTERVAL, NOW, {key(1): NOW + SECOND}).is_due(key(1), tries)


@pytest.mark.parametrize("cause", ["decision", "log"])
def test_what_was_accepted_while_the_run_was_under_way_takes_effect(tmp_path: Path, cause: Cause) -> None:
    """The run read the ledger before the acceptance. The time of that reading counts, not the end of the run."""
    (window,) = recorded(tmp_path, "t", [{0: 0}, {0: 10}])
    ledger, table = Ledger(Lake.at(tmp_path)), TableRef.raw("t")
    ledger.record_acceptance(window, {0: (OffsetRange(0, 1),)}, "before")
    read = decided_on(ledger, {table: [window.key, "no key"]})[table]
    ledger.record_acceptance(window, {0: (OffsetRange(1, 2),)}, "while it was under way")
    ended = datetime.now(UTC) + MINUTE
    said = Failures({window.key: cause}, "it failed", decided=read)
    run = FailedRun("run", ended, RunWindows.list_of([window.key]), Failures.from_tag(said.to_tag()))
    tries = tries_of([window.key], [run])[window.key]
    left = unloaded.find(ledger, table, window.window.end)
    waiting = Waiting(ended, INTERVAL, START, decided_at(left.accepted, {}))
    assert waiting.is_due(window.key, tries)
    # After it was requested again and failed, nothing new was decided.
    again = Failures({window.key: cause}, "it failed", decided=decided_on(ledger, {table: [window.key]})[table])
    tries = tries_of([window.key], [FailedRun("again", ended, RunWindows.list_of([window.key]), again)])[window.key]
    assert not waiting.is_due(window.key, tries)


def test_a_window_that_was_unparked_while_its_run_was_under_way_is_asked_for_again(tmp_path: Path) -> None:
    (window,) = recorded(tmp_path, "t", [{0: 0}, {0: 10}])
    ledger, table, ann = Ledger(Lake.at(tmp_path)), TableRef.raw("t"), Author("ann", "mended")
    read = decided_on(ledger, {table: [window.key]})[table]
    parking.park(table, [window.key], ann, ledger)
    parking.unpark(table, [window.key], ann, ledger)
    said = Failures({window.key: "decision"}, "it failed", decided=read)
    ended = datetime.now(UTC) + MINUTE
    tries = tries_of([window.key], [FailedRun("run", ended, RunWindows.list_of([window.key]), said)])[window.key]
    unparked = decisions.parking(ledger.lake, table).unparked
    assert Waiting(ended, INTERVAL, START, decided_at({}, unparked)).is_due(window.key, tries)


def test_what_failed_at_a_changed_log_is_asked_for_again_once_a_later_edge_could_be_cut() -> None:
    tries = tries_of(KEYS, [failed(1, 1, NOW, {1: "log"})])[key(1)]
    later = NOW + timedelta(days=30)
    assert not Waiting(later, INTERVAL, NOW - MINUTE).is_due(key(1), tries)
    assert Waiting(later, INTERVAL, NOW + MINUTE).is_due(key(1), tries)


def test_what_a_declaration_refused_is_asked_for_again_once_there_is_another_one() -> None:
    error = SchemaChangeError("decoded/t", ["a is dropped"], "0" * 16)
    said = Failures.from_tag(Failures.of({key(1): error}, "the first").to_tag())
    tries = tries_of(KEYS, [FailedRun("run", NOW, RunWindows(key(1), key(1)), said)])[key(1)]
    assert tries.waits_for_somebody
    later = NOW + timedelta(days=30)
    assert not Waiting(later, INTERVAL, later, declaration="the first").is_due(key(1), tries)
    assert Waiting(NOW, INTERVAL, NOW, declaration="another").is_due(key(1), tries)
    # Unparking is also an operator's decision.
    assert Waiting(later, INTERVAL, later, {key(1): NOW + SECOND}, "the first").is_due(key(1), tries)


def test_a_window_that_brings_its_runs_down_is_alone_in_one_in_the_end() -> None:
    """A killed run does not report which window was the cause. Each retry has half as many windows, so the other
    windows succeed."""
    windows = [sealed("t", key(n), p0=(0, 1)) for n in range(8)]
    left, poison, asked = {w.key for w in windows}, key(5), 0
    runs: list[FailedRun] = []
    while left != {poison}:
        tries = tries_of(sorted(left), runs)
        waiting = [w for w in windows if w.key in left]
        for request in grouped(waiting, (), schedule="0 * * * *", max_offsets=100, max_windows=8, tries=tries):
            asked += 1
            if request.first <= poison <= request.last:
                runs.append(
                    FailedRun(f"run {asked}", NOW + asked * SECOND, RunWindows(request.first, request.last), None)
                )
            else:
                left -= {w.key for w in windows if request.first <= w.key <= request.last}
        assert asked < 20
    assert sum(run.windows.first <= poison <= run.windows.last for run in runs) <= 4


def test_a_window_that_failed_is_asked_for_under_a_key_of_its_attempt() -> None:
    windows = [sealed("t", key(n), p0=(0, 1)) for n in range(3)]
    runs = [failed(0, 1, NOW, {0: "passing"}, "first"), failed(1, 1, NOW + MINUTE, {1: "passing"}, "second")]
    (request,) = grouped(windows, (), schedule="0 * * * *", max_offsets=100, max_windows=8, tries=tries_of(KEYS, runs))
    assert (request.first, request.last, request.attempt, request.after) == (key(0), key(2), 3, "second")
    assert request.run_key("raw/t") == f"raw/t/1/{key(0)}..{key(2)}/3/second"


def test_a_run_that_lists_its_windows_failed_for_no_other_between_them() -> None:
    run = FailedRun("run", NOW, RunWindows.list_of([key(1), key(7), key(4)]), None)
    assert sorted(tries_of(KEYS, [run])) == [key(1), key(4), key(7)]
    assert sorted(tries_of(KEYS[3:6], [run])) == [key(4)]
