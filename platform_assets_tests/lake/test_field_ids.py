"""Field ids: every column of a flat table has an id in each file, and an id never denotes another column.

The tests read the files with pyarrow's own reader.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.lake import decoded_table, field_ids
from platform_assets.lake.field_ids import FIELD_ID, LAST, assigned, ids_of
from platform_assets.lake.location import Lake
from platform_assets.model.tables import TableRef
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets_tests.support.erasures import MadeTopic, proved
from platform_assets_tests.support.field_ids import field_ids_in


def listed(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


DEEP = pa.map_(pa.string(), listed(pa.struct([("x", pa.int64()), ("ys", listed(pa.string()))])))


def columns(**fields: pa.DataType) -> pa.Schema:
    return pa.schema([*fields.items(), ("window", pa.string())])


def by_path(schema: pa.Schema) -> dict[str, int]:
    return {".".join(path): number for path, number in ids_of(schema).pairs}


def ids_in(path: Path) -> dict[str, int]:
    return {".".join(at): number for at, number in field_ids_in(path)}


def files_of(topic: MadeTopic, kind: str = "raw") -> list[Path]:
    root = topic.root / kind / topic.topic
    return [p for p in root.rglob("*.parquet") if "_delta_log" not in p.parts]


# --- which id a column has


def test_each_column_has_its_own_id_at_every_depth() -> None:
    found = by_path(assigned(columns(a=pa.int32(), deep=DEEP)))
    assert found == {
        "a": 1, "deep": 2, "deep.key": 3, "deep.value": 4, "deep.value.element": 5, "deep.value.element.x": 6,
        "deep.value.element.ys": 7, "deep.value.element.ys.element": 8, "window": 9,
    }  # fmt: skip


def test_ids_survive_the_tables_log(tmp_path: Path) -> None:
    made = assigned(columns(a=pa.int32(), deep=DEEP))
    DeltaTable.create(str(tmp_path), Schema.from_arrow(made))
    read = pa.schema(DeltaTable(str(tmp_path)).schema().to_arrow())
    assert read.equals(made, check_metadata=True)
    assert assigned(read, read).equals(read, check_metadata=True)


def test_an_added_column_takes_the_next_id_and_the_others_keep_theirs() -> None:
    first = assigned(columns(a=pa.int32(), s=pa.struct([("x", pa.int64())])))
    second = assigned(columns(b=pa.int32(), a=pa.int32(), s=pa.struct([("y", pa.date32()), ("x", pa.int64())])), first)
    assert by_path(first) == {"a": 1, "s": 2, "s.x": 3, "window": 4}
    assert by_path(second) == {"b": 5, "a": 1, "s": 2, "s.y": 6, "s.x": 3, "window": 4}


def test_ids_of_dropped_and_retyped_columns_are_never_used_again() -> None:
    first = assigned(columns(a=pa.int32(), b=pa.int32()))
    without = assigned(columns(a=pa.int32()), first)
    again = assigned(columns(a=pa.string(), b=pa.int32()), without)
    assert by_path(without) == {"a": 1, "window": 3}
    assert by_path(again) == {"a": 4, "b": 5, "window": 3}
    assert (again.field("window").metadata or {})[LAST] == b"5"


@pytest.mark.parametrize("junk", [b"", b"-1", b"0", b"x", b"9" * 30, b"1"])
def test_an_id_of_a_stranger_that_is_none_or_taken_is_replaced(junk: bytes) -> None:
    first = assigned(columns(a=pa.int32(), b=pa.int32()))
    fields = [f.with_metadata({FIELD_ID: junk}) if f.name == "b" else f for f in first]
    found = by_path(assigned(columns(a=pa.int32(), b=pa.int32()), pa.schema(fields)))
    assert found == {"a": 1, "b": 4, "window": 3}


@pytest.mark.parametrize("junk", [b"[]", b"{", b'{"element":"1"}', b'{"element":true}', b'{"element":-4}'])
def test_ids_of_elements_that_a_stranger_has_broken_are_replaced(junk: bytes) -> None:
    first = assigned(columns(a=pa.list_(pa.int32())))
    broken = first.set(0, first.field(0).with_metadata({FIELD_ID: b"1", field_ids.NESTED: junk}))
    assert by_path(assigned(columns(a=pa.list_(pa.int32())), broken)) == {"a": 1, "a.element": 4, "window": 3}


# --- files


def made(root: Path) -> MadeTopic:
    topic = MadeTopic(root)
    topic.fill(topic.seal([{0: [(b"k", b"%d" % w), (b"k", b"\xff")]} for w in range(3)]))
    return topic


RAW = {
    "topic_id": 1, "kafka_partition": 2, "kafka_offset": 3, "kafka_timestamp": 4, "kafka_timestamp_type": 5, "key": 6, "value": 7,
    "headers": 8, "headers.element": 9, "headers.element.key": 10, "headers.element.value": 11, "window": 12,
}  # fmt: skip


@pytest.mark.usefixtures("flat")
def test_all_files_of_flat_tables_have_the_ids_of_their_table(tmp_path: Path) -> None:
    topic = made(tmp_path / "lake")
    for window in topic.ledger.windows(topic.topic)[:2]:
        delta = DeltaTable(topic.root / "raw" / topic.topic)
        delta.optimize.compact()
        delta.delete(f"window = '{window.key}' AND kafka_offset % 2 = 0")
        topic.load(window)
    list(Upkeep(topic.declaration.raw_table, topic.ledger).run("9"))
    for kind in ("raw", "decoded", "dead_letters"):
        table = pa.schema(DeltaTable(topic.root / kind / topic.topic).schema().to_arrow())
        assert len(set(by_path(table).values())) == len(by_path(table)) >= len(table)
        for file in files_of(topic, kind):
            # delta-rs writes the ids that Delta can store, which excludes list elements.
            without = {"headers.element"} if file.parent.name == topic.topic else set()
            assert ids_in(file) == {path: n for path, n in by_path(table).items() if path not in without}, file
        if kind == "raw":
            assert by_path(table) == RAW


@pytest.mark.usefixtures("partitioned")
def test_partitioned_tables_stay_as_they_are(tmp_path: Path) -> None:
    topic = made(tmp_path / "lake")
    for kind in ("raw", "decoded", "dead_letters"):
        assert "parquet.field.id" not in DeltaTable(topic.root / kind / topic.topic).schema().to_json()
        assert [n for file in files_of(topic, kind) for n in ids_in(file)] == []


@pytest.mark.usefixtures("flat")
def test_a_decoded_column_that_is_added_gets_the_next_id_in_the_same_commit(tmp_path: Path) -> None:
    folder = Lake.at(tmp_path).table(TableRef("decoded", "t"))
    one = decoded_table.columns(None, pa.schema([("a", pa.int32())]))
    two = decoded_table.columns(None, pa.schema([("a", pa.int32()), ("b", pa.list_(pa.string()))]))
    before = by_path(decoded_table.prepare(folder, "t", one, None))
    after = by_path(decoded_table.prepare(folder, "t", two, None))
    version = folder.delta().version()
    top = max(before.values())
    assert {p: n for p, n in after.items() if p not in before} == {"b": top + 1, "b.element": top + 2}
    assert {p: n for p, n in after.items() if p in before} == before
    assert by_path(decoded_table.prepare(folder, "t", two, None)) == after
    assert folder.delta().version() == version, "nothing is left to change"


@pytest.mark.usefixtures("flat")
def test_a_table_that_is_begun_again_uses_no_id_again(tmp_path: Path) -> None:
    folder = Lake.at(tmp_path).table(TableRef("decoded", "t"))
    first = decoded_table.prepare(folder, "t", decoded_table.columns(None, pa.schema([("a", pa.int32())])), None)
    other = decoded_table.columns(None, pa.schema([("a", pa.string())]))
    again = decoded_table.prepare(folder, "t", other, decoded_table.fingerprint(first))
    assert by_path(again)["a"] == max(by_path(first).values()) + 1
    assert json.loads(folder.delta().schema().to_json())["fields"]


@pytest.mark.usefixtures("flat")
def test_upkeep_writes_the_ids_that_another_writer_has_lost_whatever_the_size_of_the_file(tmp_path: Path) -> None:
    """For example, Spark's OPTIMIZE writes no field ids."""
    topic = made(tmp_path / "lake")
    folder = topic.root / "raw" / topic.topic
    DeltaTable(folder).optimize.compact()
    (path,) = [Path(uri.removeprefix("file://")) for uri in DeltaTable(folder).file_uris()]
    rows = pq.read_table(path)
    pq.write_table(
        rows.cast(pa.schema([pa.field(f.name, _plain(f.type)) for f in rows.schema])), folder / "lost.parquet"
    )
    delta, size = DeltaTable(folder), (folder / "lost.parquet").stat().st_size
    delta.create_write_transaction(
        [
            RemoveAction(path.name, False, 0, path.stat().st_size, {}),
            AddAction("lost.parquet", size, {}, 0, False, json.dumps({"numRecords": rows.num_rows})),
        ],
        "append", delta.schema(), partition_by=[],
    )  # fmt: skip
    assert ids_in(folder / "lost.parquet") == {}
    upkeep = Upkeep(topic.declaration.raw_table, topic.ledger, target=2)
    (done,) = upkeep.run("9")
    assert done.version is not None
    for uri in DeltaTable(folder).file_uris():
        assert ids_in(Path(uri.removeprefix("file://"))) == RAW
    assert list(upkeep.run("9")) == []
    proved(topic)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    return pa.struct([(f.name, _plain(f.type)) for f in kind]) if pa.types.is_struct(kind) else kind
