"""A selection by windows, offsets or timestamps includes exactly the sealed windows that have any part of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from platform_assets.errors import ConfigurationError, UnknownWindowError
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.replay import replaying
from platform_assets.windows.replay.replaying import ByKeys, ByOffsets, ByTimestamps, Selection
from testbed import samples

TOPIC = "orders"
A, B, C, D = (f"2026-01-01-0{hour}:00" for hour in range(4))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Four windows. The second has no offsets in partition 0, and is the first window with partition 1."""
    ends: list[dict[int, int]] = [{0: 5}, {0: 15}, {0: 15, 1: 4}, {0: 25, 1: 10}, {0: 40, 1: 10}]
    samples.recorded(tmp_path, TOPIC, ends)
    return Ledger(Lake.at(tmp_path))


def touched(wanted: Selection, ledger: Ledger) -> list[str]:
    return [w.key for w in replaying.find(wanted, TOPIC, ledger).windows]


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ((C,), [C]),
        ((C, A, C), [A, C]),
        ((f"{B}..{C}",), [B, C]),
        ((f"{B}..",), [B, C, D]),
        ((f"..{B}", D), [A, B, D]),
        (("2025-12-31-00:00..2026-01-01-00:59",), [A]),
    ],
)
def test_windows_by_their_keys(ledger: Ledger, names: tuple[str, ...], keys: list[str]) -> None:
    assert touched(ByKeys(names), ledger) == keys


@pytest.mark.parametrize(
    "name", ["yesterday", "2026-01-01-04:00", "2026-01-01-00:30", "2026-01-02-00:00..", f"{C}..{A}", ".."]
)
def test_a_key_or_span_that_names_no_sealed_window_is_refused(ledger: Ledger, name: str) -> None:
    with pytest.raises(UnknownWindowError, match="is not a window of topic 'orders'"):
        touched(ByKeys((A, name)), ledger)


@pytest.mark.parametrize(
    ("partition", "offsets", "keys", "note"),
    [
        (0, (5, 6), [A], ""),
        (0, (14, 15), [A], ""),
        (0, (14, 16), [A, C], ""),
        (0, (15, 16), [C], ""),
        (1, (3, 5), [B, C], ""),
        (0, (0, 6), [A], "partition 0 offsets [0, 5) are in no sealed window"),
        (1, (9, 20), [C], "partition 1 offsets [10, 20) are in no sealed window"),
    ],
)
def test_offsets_touch_the_windows_that_hold_any_of_them(
    ledger: Ledger, partition: int, offsets: tuple[int, int], keys: list[str], note: str
) -> None:
    found = replaying.find(ByOffsets(partition, OffsetRange(*offsets)), TOPIC, ledger)
    assert [w.key for w in found.windows] == keys
    assert found.note == note


@pytest.mark.parametrize(
    ("partition", "offsets", "said"),
    [(0, (40, 50), r"hold partition 0 offsets \[5, 40\)"), (7, (0, 1), "hold no offsets of partition 7")],
)
def test_offsets_that_no_window_holds_are_refused_saying_which_there_are(
    ledger: Ledger, partition: int, offsets: tuple[int, int], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        touched(ByOffsets(partition, OffsetRange(*offsets)), ledger)


def test_offsets_are_those_of_the_newest_generation(ledger: Ledger) -> None:
    again = {"topic_id": "B" * 22, "generation": 2}
    cuts = [samples.cut(TOPIC, samples.edge(n), {0: end, 1: 0}, **again) for n, end in ((4, 0), (5, 12))]  # type: ignore[arg-type]
    assert ledger.record_cuts(cuts, samples.edge(4))
    assert touched(ByOffsets(0, OffsetRange(6, 7)), ledger) == ["2026-01-01-04:00"]
    with pytest.raises(ConfigurationError, match=r"of its newest generation hold partition 0 offsets \[0, 12\)"):
        touched(ByOffsets(0, OffsetRange(20, 21)), ledger)
    assert touched(ByKeys((C,)), ledger) == [C]


def test_timestamps_touch_the_windows_whose_rows_may_have_them(ledger: Ledger, tmp_path: Path) -> None:
    """If nothing is loaded, only the window's own time is known."""
    moments = {A: datetime(2020, 6, 1, tzinfo=UTC), B: samples.edge(0.5), C: samples.edge(2.5)}
    for key, moment in moments.items():
        rows = samples.rows(key, {0: range(3)})
        place = rows.schema.get_field_index("kafka_timestamp")
        stamps = pa.array([moment + timedelta(seconds=n) for n in range(3)], pa.timestamp("us", "UTC"))
        samples.append(tmp_path, TOPIC, rows.set_column(place, "kafka_timestamp", stamps))

    def at(since: datetime, seconds: float) -> list[str]:
        return touched(ByTimestamps(since, since + timedelta(seconds=seconds)), ledger)

    assert at(moments[A], 1) == [A]
    assert at(moments[A] - timedelta(seconds=1), 1) == []
    assert at(moments[A] + timedelta(seconds=2), 1) == [A]
    assert at(moments[A] + timedelta(seconds=2, milliseconds=1), 1) == []
    assert at(samples.edge(0.5), 1) == [B]
    assert at(samples.edge(2.5), 3600) == [C, D]
    assert at(samples.edge(3), 1) == [D]
    with pytest.raises(ConfigurationError, match=r"the range from .* is empty"):
        ByTimestamps(samples.edge(1), samples.edge(1))


def test_a_topic_without_a_window_has_no_selection(tmp_path: Path) -> None:
    empty = Ledger(Lake.at(tmp_path))
    with pytest.raises(ConfigurationError, match="hold no offsets of partition 0"):
        touched(ByOffsets(0, OffsetRange(0, 1)), empty)
    with pytest.raises(UnknownWindowError):
        touched(ByKeys((A,)), empty)
    assert touched(ByTimestamps(samples.edge(0), samples.edge(1)), empty) == []
