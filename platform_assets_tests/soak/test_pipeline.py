"""The judge of the `pipeline` scenario: the producer's notes, what they aggregate to, and records on the topic."""

from __future__ import annotations

import json

from platform_assets_tests.soak.request_log import LEAST_STATUS, Lags, Notes, Read, Row, judge, value_of

WINDOW, NEXT = "2026-01-01-00:00", "2026-01-01-00:01"
START = 1_767_225_600_000
"""Milliseconds since 1970 at the start of the first window."""
EACH = 2_000
NOTES = Notes(
    offsets=[n // 2 + n // 100 for n in range(2 * EACH)],
    times=[START + n * 60_000 // EACH for n in range(2 * EACH)],
)
"""Two minutes of records, with a hole in both partitions after every 50 records."""


def _read(place: tuple[str, str], row: Row, at: float = 0.0) -> Read:
    window, service = place
    key = json.dumps({"window": window, "service": service})
    return Read(key.encode(), json.dumps(row._asdict()).encode(), at)


EXPECTED = NOTES.by_time()
RECORDS = [_read(place, row) for place, row in EXPECTED.items()]


def test_notes_aggregate_to_what_python_computes_from_the_values() -> None:
    found: dict[tuple[str, str], Row] = {}
    for number in range(2 * EACH):
        value = json.loads(value_of(number))
        if value["status"] >= LEAST_STATUS:
            place = ((WINDOW, NEXT)[number // EACH], value["service"])
            before = found.get(place, Row(0, 0, 0))
            found[place] = Row(before.failures + 1, before.bytes + value["bytes"], number)
    assert found == EXPECTED
    assert sum(row.failures for row in found.values()) == NOTES.failures


def test_windows_of_offsets_are_those_of_their_ranges() -> None:
    edge, end = NOTES.offsets[EACH], NOTES.offsets[-1] + 1
    windows = {WINDOW: {0: (0, edge), 1: (0, edge)}, NEXT: {0: (edge, end), 1: (edge, end)}}
    assert NOTES.by_ranges(windows) == EXPECTED
    cut_earlier = {WINDOW: {0: (0, edge - 100), 1: (0, edge)}, NEXT: {0: (edge - 100, end), 1: (edge, end)}}
    found = NOTES.by_ranges(cut_earlier)
    assert found != EXPECTED
    assert sum(row.failures for row in found.values()) == NOTES.failures


def test_each_aggregate_once_is_right() -> None:
    assert judge(EXPECTED, RECORDS).anomalies == 0


def test_records_sent_twice_missing_foreign_and_wrong_are_counted() -> None:
    place, row = next(iter(EXPECTED.items()))
    wrong = _read(place, row._replace(bytes=row.bytes + 1))
    strangers = [_read(("2026-01-01-00:02", "s00"), row), Read(None, b"?", 0.0)]
    found = judge(EXPECTED, [wrong, *RECORDS[2:], RECORDS[2], RECORDS[2], *strangers])
    assert (found.doubled, found.lost, found.foreign, found.wrong) == (2, 1, 2, 1)
    assert found.anomalies == 6


def test_a_lag_is_the_time_until_the_first_record_of_the_last_aggregate() -> None:
    row = Row(1, 1, 1)
    ends = {WINDOW: 60.0, NEXT: 120.0}
    read = [_read((WINDOW, "s00"), row, 70.0), _read((WINDOW, "s01"), row, 75.0), _read((NEXT, "s00"), row, 125.0)]
    again = _read((WINDOW, "s00"), row, 300.0)
    assert Lags.of([*read, again], ends).seconds == {WINDOW: 15.0, NEXT: 5.0}


def test_a_lag_that_grows_by_more_than_a_window_does_not_keep_up() -> None:
    assert Lags({"a": 20.0, "b": 90.0, "c": 21.0, "d": 80.9}).keeps_up
    assert not Lags({"a": 20.0, "b": 20.0, "c": 21.0, "d": 80.1}).keeps_up
    assert not Lags({}).keeps_up
