"""Dead letters by kind: the most frequent kinds are listed, up to a limit; other kinds are only counted."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from platform_assets.lake import dead_letters
from platform_assets.lake.dead_letters import MOST_GROUPS, Groups
from platform_assets.model.untrusted import MOST_PLACE


def batch(places: Iterable[str | None], first: int = 0) -> pa.RecordBatch:
    """Return one dead letter for each `place`, at consecutive offsets starting with `first`."""
    rows = [
        {
            "window": "w",
            "kafka_partition": 0,
            "kafka_offset": first + n,
            "side": "value",
            "reason": "malformed",
            "place": place,
        }
        | {"detail": f"detail {first + n}", "key": None, "value": b"v"}
        for n, place in enumerate(places)
    ]
    schema = pa.schema(
        [pa.field(name, pa.string()) for name in ("window", "side", "reason", "place", "detail")]
        + [pa.field("kafka_partition", pa.int32()), pa.field("kafka_offset", pa.int64())]
        + [pa.field(name, pa.binary()) for name in ("key", "value")]
    )
    return pa.RecordBatch.from_pylist(rows, schema)


def grouped(*batches: pa.RecordBatch, samples: int = 3) -> Groups:
    found = dead_letters._KindCounts(samples)
    for each in batches:
        found.add(each)
    return found.groups()


def test_kinds_are_counted_over_batches_with_their_first_samples() -> None:
    found = grouped(batch(["a", "b", None, "a"]), batch(["a", None, "a"], first=10))
    assert [(g.place, g.count) for g in found.listed] == [("a", 4), (None, 2), ("b", 1)]
    assert [[s.offset for s in g.samples] for g in found.listed] == [[0, 3, 10], [2, 11], [1]]
    assert found.others == 0
    assert [g.samples for g in grouped(batch(["a"]), samples=0).listed] == [()]


def test_no_number_of_places_takes_more_than_its_share_and_hides_what_is_frequent() -> None:
    number = 4 * 4096
    flood = [batch((f"$.n{n}" for n in range(first, first + 4096)), first) for first in range(0, number, 4096)]
    found = dead_letters._KindCounts(3)
    for each in (*flood, batch(["$.amount"] * 50, number), *flood):
        found.add(each)
        assert len(found._counts) <= dead_letters._MOST_KINDS
        assert found._samples.keys() == found._counts.keys()
    groups = found.groups()
    assert (groups.listed[0].place, groups.listed[0].count) == ("$.amount", 50)
    assert len(groups.listed) == MOST_GROUPS
    assert sum(g.count for g in groups.listed) + groups.others == 2 * number + 50


def test_places_that_an_earlier_release_has_written_whole_are_cut() -> None:
    (group,) = grouped(batch(["$." + "n" * 1_000_000 + end for end in "xy"])).listed
    assert (group.count, len(group.place or ""), (group.place or "")[-1]) == (2, MOST_PLACE, "…")
