"""Waiting ends exactly when everything is loaded and checked. It fails if there is no progress, or if a service dies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace

import pytest

from platform_assets.demo import waiting
from platform_assets.demo.dataset import TopicName
from platform_assets.demo.waiting import FailedRun, StalledError, TopicView
from platform_assets.orchestration.decoded_status import DecodedStatus
from platform_assets.orchestration.health import CheckStatus
from platform_assets.orchestration.status import TableStatus
from platform_assets.services.errors import ServiceEndedError

CHECKED = (CheckStatus("no_gaps", True, "2026-03-01T12:00:00+00:00", ""),)
DECODED = DecodedStatus(
    table="decoded/planes", windows_decoded=3, windows_waiting=0, windows_failed=0, windows_stale=0, rows=9, dead_letters=1,
    newest_window="2026-03-01-12:00", recent_windows=1, recent_records=10, recent_dead_letters=1,
    checks=(CheckStatus("decoded_plus_dead_equals_raw", True, "2026-03-01T12:00:00+00:00", ""),),
)  # fmt: skip
COMPLETE = TopicView(
    TableStatus(
        table="raw/planes", topic="planes", windows_sealed=3, windows_loaded=3, windows_waiting=0, windows_failed=0,
        rows=10, offsets_without_row=0, newest_window="2026-03-01-12:00", newest_window_age_seconds=1.0, lag=0,
        partitions=(), checks=CHECKED, broker_error=None, error=None, decoded=DECODED,
    ),
    under_way=0,
    failed=(),
)  # fmt: skip


def changed(**fields: object) -> TopicView:
    return replace(COMPLETE, table=replace(COMPLETE.table, **fields))  # type: ignore[arg-type]


class Silent:
    """Progress counters that print nothing."""

    def advance(self, topic: str, count: int) -> None:
        """Do nothing."""

    def note(self, topic: str, text: str) -> None:
        """Do nothing."""


def done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


def follow(
    views: Iterator[TopicView], streaming: Future[None], idle: float = 5.0, stalled: float = 5.0, unchecked: float = 5.0
) -> int:
    """Follow one topic through `views`, and count how often views are requested."""
    looks = 0

    def look() -> Mapping[TopicName, TopicView]:
        nonlocal looks
        looks += 1
        return {"planes": next(views)}

    waiting.follow(
        streaming, look=look, alive=lambda: None, counters=Silent(), explain=lambda topic, view: f"{topic} is late.",
        unchecked_seconds=unchecked, idle_seconds=idle, stalled_seconds=stalled,
    )  # fmt: skip
    return looks


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.01)


@pytest.mark.parametrize(
    "incomplete",
    [
        changed(lag=1),
        changed(lag=None),
        changed(windows_waiting=1),
        changed(windows_failed=1),
        changed(checks=(CheckStatus("no_gaps", False, "2026-03-01T12:00:00+00:00", ""),)),
        changed(checks=(CheckStatus("no_gaps", None, None, ""),)),
        changed(decoded=replace(DECODED, windows_waiting=1)),
        changed(decoded=replace(DECODED, windows_failed=1)),
        changed(decoded=replace(DECODED, checks=(CheckStatus("share_of_dead_letters", False, "", "", warning=True),))),
        changed(decoded=None, error="the lake cannot be read"),
        replace(COMPLETE, under_way=1),
    ],
)
def test_waits_for_all_that_is_pending(incomplete: TopicView) -> None:
    assert not incomplete.complete
    assert follow(iter([incomplete, incomplete, COMPLETE]), done()) == 3


def test_a_complete_topic_is_not_enough_while_records_are_still_sent() -> None:
    streaming: Future[None] = Future()

    def views() -> Iterator[TopicView]:
        yield COMPLETE
        yield COMPLETE
        streaming.set_result(None)
        yield COMPLETE
        yield COMPLETE

    # The look during which the stream ended may have missed its last record.
    assert follow(views(), streaming) == 4


def test_the_streams_error_is_raised() -> None:
    streaming: Future[None] = Future()
    streaming.set_exception(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        follow(iter([COMPLETE]), streaming)


def empty_windows(under_way: int) -> Iterator[TopicView]:
    """Windows without records are sealed and loaded continually. This does not count as progress while the demo waits
    for records."""
    for count in itertools.count(3):
        table = replace(
            COMPLETE.table, lag=7, windows_sealed=count + 1, windows_loaded=count, newest_window_age_seconds=count / 10
        )
        yield replace(COMPLETE, table=table, under_way=under_way)


def test_nothing_that_moves_is_an_error_that_names_the_topic() -> None:
    with pytest.raises(StalledError, match=r"no progress for 0\.2 s\. planes is late\."):
        follow(empty_windows(under_way=0), done(), idle=0.2)


def test_a_run_under_way_is_given_more_time() -> None:
    with pytest.raises(StalledError, match=r"no progress for 0\.4 s"):
        follow(empty_windows(under_way=1), done(), idle=0.1, stalled=0.4)


def test_a_check_that_does_not_pass_ends_the_wait_once_all_is_loaded() -> None:
    failing = (
        CheckStatus("no_gaps", False, "2026-03-01T12:00:00+00:00", "**7 windows differ.** Why.\n\n![x](data:…)"),
    )
    view = changed(checks=(*failing, CheckStatus("no_duplicates", None, None, "")))
    assert view.loaded
    assert view.check_faults == ("check no_gaps failed: 7 windows differ. Why.", "check no_duplicates has no result")
    assert follow(itertools.repeat(view), done(), unchecked=0.1) > 1


def test_whatever_moves_puts_the_end_off() -> None:
    views = (changed(lag=100 - at) for at in range(101))
    assert follow(views, done(), idle=0.2) == 101


def test_a_dead_service_ends_the_wait() -> None:
    def alive() -> None:
        raise ServiceEndedError("spark", "/logs/spark.log")

    with pytest.raises(ServiceEndedError, match=r"spark\.log"):
        waiting.follow(
            done(), look=lambda: {"planes": changed(lag=1)}, alive=alive, counters=Silent(), explain=lambda t, v: ""
        )


def test_progress_in_words() -> None:
    assert waiting.progress(COMPLETE) == "3 of 3 windows loaded"
    assert waiting.progress(changed(windows_sealed=0)) == "no windows sealed"
    assert waiting.progress(changed(error="the ledger is lost")) == "the ledger is lost"
    failed = replace(COMPLETE, failed=(FailedRun("a", "2026-03-01-12:00"),))
    assert waiting.progress(failed) == "3 of 3 windows loaded, 1 runs failed"
