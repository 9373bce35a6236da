"""The results of expectations equal the results counted in plain Python, however the rows are divided into blocks and
shares."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform_assets.engines.decoding import uniqueness
from platform_assets.engines.decoding.digests import row_hashes
from platform_assets.engines.decoding.task import Measurer
from platform_assets.engines.decoding.work import Report
from platform_assets.engines.protocol import NO_ROWS, StagedFiles
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.location import Folder
from platform_assets.model import expectations
from platform_assets.model.digest import Digest, Measured
from platform_assets.model.expectations import Expectation, FailingRow, Figures, added
from platform_assets_tests.conftest import SEED
from platform_assets_tests.support.decoding import UNTIMED
from platform_assets_tests.support.typed_rows import typed_rows

LAYOUT = pa.schema([
    ("kafka_partition", pa.int32()), ("kafka_offset", pa.int64()), ("tombstone", pa.bool_()), ("a", pa.string()),
    ("b", pa.int32()), ("s", pa.struct([("x", pa.int32()), ("y", pa.string())])),
])  # fmt: skip
EXPECTED = (
    Expectation("a_not_null", "not_null", ("a",)),
    Expectation("a_in", "in", ("a",), values=("p", "q")),
    Expectation("b_range", "range", ("b",), least=0, most=1),
)
FAILS = {
    "a_not_null": lambda row: row["a"] is None,
    "a_in": lambda row: row["a"] not in (None, "p", "q"),
    "b_range": lambda row: row["b"] is not None and not 0 <= row["b"] <= 1,
}
KEYS = Expectation("a_b_unique", "unique", ("a", "b"))
Rows = list[dict[str, Any]]


@st.composite
def windows(draw: st.DrawFn) -> Rows:
    """Return the rows of a window, sorted by partition and offset. Tombstones have no values."""
    values = st.fixed_dictionaries({
        "a": st.none() | st.sampled_from(["p", "q", "r", ""]),
        "b": st.none() | st.integers(-1, 2),
        "s": st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 1), "y": st.none() | st.just("1")}),
    })  # fmt: skip
    places = sorted(draw(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=25)))
    found = []
    for partition, offset in places:
        dead = draw(st.integers(0, 9)) == 0
        own = {"kafka_partition": partition, "kafka_offset": offset, "tombstone": dead}
        found.append({**own, **(dict.fromkeys("abs") if dead else draw(values))})
    return found


def blocks(rows: Rows, cuts: Sequence[int]) -> list[pa.RecordBatch]:
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    whole = pa.RecordBatch.from_pylist(rows, LAYOUT)
    return [whole.slice(start, end - start) for start, end in itertools.pairwise(edges)]


@UNTIMED
@given(windows(), st.lists(st.integers(0, 25), max_size=4), st.randoms())
def test_single_rows(rows: Rows, cuts: list[int], order: random.Random) -> None:
    """Each block is a separate share, and the shares end in any order. The results are converted to serialized reports
    and back."""
    shares = []
    for block in blocks(rows, cuts):
        measurer = Measurer((*EXPECTED, KEYS), LAYOUT)
        measurer.add(block)
        shares.append(Report.from_json(Report(0, figures=measurer.figures).to_json()).figures or {})
    order.shuffle(shares)
    found = added([Measurer(EXPECTED, LAYOUT).figures, *shares])
    judged = [row for row in rows if not row["tombstone"]]
    for e in EXPECTED:
        failing = [row for row in judged if FAILS[e.name](row)]
        column = e.columns[0]
        samples = [
            FailingRow(r["kafka_partition"], r["kafka_offset"], None if r[column] is None else str(r[column]))
            for r in failing[:3]
        ]
        assert found[e.digest] == Figures(len(judged), len(failing), tuple(samples))
    assert set(found) == {e.digest for e in EXPECTED}, "expectations on whole windows are not measured here"


@UNTIMED
@given(windows(), st.lists(st.integers(0, 25), max_size=4), st.integers(1, 30), st.sampled_from([("a",), ("a", "b"), ("s",)]),
       st.randoms())  # fmt: skip
def test_keys(rows: Rows, cuts: list[int], at_once: int, columns: tuple[str, ...], order: random.Random) -> None:
    """The figures depend neither on the order of the blocks nor on the number of passes, which depends on the memory
    limit."""
    parts = blocks(rows, cuts)
    order.shuffle(parts)
    e = Expectation("e", "unique", columns)
    found = uniqueness.figures(e, lambda: iter(parts), len(rows), at_once)
    judged = [r for r in rows if not r["tombstone"] and all(r[c] is not None for c in columns)]
    key = {id(r): json.dumps([r[c] for c in columns], sort_keys=True) for r in judged}
    counts = Counter(key.values())
    assert (found.rows, found.failing) == (len(judged), sum(counts.values()) - len(counts))
    most = sorted((n for n in counts.values() if n > 1), reverse=True)[:3]
    places = {(r["kafka_partition"], r["kafka_offset"]): r for r in judged}
    seen = []
    for sample in found.samples:
        row = places[sample.partition, sample.offset]
        same = [r for r in judged if key[id(r)] == key[id(row)]]
        assert row is same[1]
        first = same[0]
        where = f"partition {first['kafka_partition']} offset {first['kafka_offset']}"
        assert (sample.value or "").endswith(f": {len(same)} rows, the first at {where}")
        seen.append(len(same))
    assert sorted(seen, reverse=True) == most
    assert [(s.partition, s.offset) for s in found.samples] == sorted((s.partition, s.offset) for s in found.samples)


def test_keys_are_named_with_their_columns() -> None:
    rows = [
        {"kafka_partition": 0, "kafka_offset": n, "tombstone": False, "a": "x\x1b", "b": 7, "s": None} for n in range(2)
    ]
    (sample,) = uniqueness.figures(KEYS, lambda: iter(blocks(rows, ())), 2).samples
    assert sample == FailingRow(0, 1, r"a=x\x1b, b=7: 2 rows, the first at partition 0 offset 0")


def test_memory_is_that_of_distinct_keys() -> None:
    """A million rows with the same key need no more memory than a single row."""
    counts = uniqueness._Counts(1000)
    for _ in range(100):
        counts.add(np.full(10_000, 7, np.uint64))
        assert sum(part.size for part in counts._new) + counts._hashes.size <= 10_001
    assert [part.tolist() for part in counts.finished()] == [[7], [1_000_000]]


@pytest.mark.parametrize("column", range(15))
def test_hashes_tell_values_of_every_type_apart(column: int) -> None:
    rows = typed_rows(random.Random(SEED), 300)
    values = rows[f"c{column}"]
    hashes = row_hashes([values])
    assert hashes.tolist() == [*row_hashes([values.slice(0, 7)]), *row_hashes([values.slice(7)])]
    plain = [repr(value) for value in values.to_pylist()]
    if pa.types.is_floating(values.type):
        plain = ["0.0" if text == "-0.0" else text for text in plain]
    assert len(set(hashes.tolist())) == len(set(plain))


def test_hashes_tell_columns_apart() -> None:
    one, other = pa.array(["a", None, "ab", ""]), pa.array([None, "a", "", "ab"])
    assert len(set(row_hashes([one, other]).tolist())) == 4
    nested = pa.array([{"x": None}, None, {"x": 1}], pa.struct([("x", pa.int32())]))
    assert len(set(row_hashes([nested]).tolist())) == 3
    assert row_hashes([one.slice(0, 0)]).size == 0


def test_files_that_were_written_are_read(tmp_path: Path) -> None:
    """The files are written without an Arrow schema, as a worker writes them."""
    rows = [
        {"kafka_partition": n % 2, "kafka_offset": n, "tombstone": False, "a": f"k{n % 3}", "b": 1, "s": {"x": n % 2}}
        for n in range(10)
    ]  # fmt: skip
    names = ["one.parquet", "window=w%20x/two.parquet"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        found = [row for row in rows if row["kafka_partition"] == number]
        pq.write_table(pa.Table.from_pylist(found, LAYOUT), tmp_path / name, store_schema=False)
    files = tuple(NewFile(name, 1, 5, {}) for name in names)
    written = StagedFiles("window=w", files, Measured(Digest(10, 0), Digest(10, 0)), None)
    folder = Folder.at(tmp_path)
    for columns, failing in ((("a",), 7), (("a", "s"), 4), (("b",), 9)):
        figures = uniqueness.measure(Expectation("e", "unique", columns), folder, "w", written)
        assert (figures.rows, figures.failing) == (10, failing)
    nothing = StagedFiles("window=w", (), NO_ROWS, None)
    assert uniqueness.measure(KEYS, folder, "w", nothing) == Figures()


def test_samples_are_short_and_shown() -> None:
    rows = [
        {
            "kafka_partition": 0,
            "kafka_offset": 5,
            "tombstone": False,
            "a": "\x1b[2J" + "é" * 10_000_000,
            "b": 0,
            "s": None,
        }
    ]
    measurer = Measurer(EXPECTED, LAYOUT)
    measurer.add(pa.RecordBatch.from_pylist(rows, LAYOUT))
    (sample,) = measurer.figures[EXPECTED[1].digest].samples
    assert sample.value is not None
    assert sample.value.startswith(r"\x1b[2Jé")
    assert sample.value.endswith("… (20,000,004 bytes)")
    assert len(sample.value) < 200


def test_figures_are_read_back() -> None:
    found = {"d": Figures(3, 1, (FailingRow(0, 7, None),)), "e": Figures(3, 0)}
    assert expectations.from_fields(expectations.to_fields(found)) == found


def test_times_beyond_the_year_9999_are_counted_and_shown_as_numbers() -> None:
    """A producer might send microseconds instead of milliseconds. The declared range detects this mistake."""
    layout = pa.schema([*list(LAYOUT)[:3], ("at", pa.timestamp("us", "UTC"))])
    far = pa.array([1 << 60] * 2, pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.RecordBatch.from_arrays(
        [pa.array([0, 0], pa.int32()), pa.array([0, 1]), pa.array([False, False]), far], schema=layout
    )
    recent = Expectation("at_recent", "range", ("at",), most="2100-01-01T00:00:00Z")
    (sample,) = uniqueness.figures(Expectation("at_unique", "unique", ("at",)), lambda: iter([rows]), 2).samples
    assert sample.value == f"{1 << 60}: 2 rows, the first at partition 0 offset 0"
    measurer = Measurer([recent], layout)
    measurer.add(rows)
    assert measurer.figures[recent.digest].failing == 2
    assert [sample.value for sample in measurer.figures[recent.digest].samples] == [str(1 << 60)] * 2
