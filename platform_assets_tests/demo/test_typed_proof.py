"""The comparison with the file finds a wrong value, a lost row and an unexpected dead letter. The decoded values equal
those that pandas reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from platform_assets.components.declared import judgement
from platform_assets.decoding.formats import decoder_of
from platform_assets.demo import dataset, typed_proof
from platform_assets.demo.dataset import SOURCES, TopicName
from platform_assets.lake.location import Lake


def decoded(topic: TopicName) -> pa.Table:
    """Return all decodable rows of a topic, with the types that the demo declares."""
    (declared,) = (d.declaration for d in judgement().declared if d.declaration.topic == topic)
    assert declared.decode is not None
    loaded = dataset.load(topic)
    columns = decoder_of(declared.decode.value).decode(loaded.values).columns
    return pa.Table.from_batches([columns]).slice(len(loaded.broken))


def lake_with(root: Path, rows: pa.Table, dead: Mapping[int, str]) -> Lake:
    """Return a lake that contains tables for the topic `planes`."""
    values = [b'{"row":%d,' % row for row in dead]
    letters = pa.table({"value": pa.array(values, pa.binary()), "reason": pa.array(list(dead.values()), pa.string())})
    write_deltalake(root / "decoded" / "planes", rows)
    write_deltalake(root / "dead_letters" / "planes", letters)
    return Lake.at(root)


@pytest.mark.parametrize("topic", SOURCES)
def test_decoded_columns_come_to_what_pandas_reads_from_the_file(topic: TopicName) -> None:
    rows, of_file = decoded(topic), typed_proof.from_file(SOURCES[topic])
    assert {name: typed_proof.totals(rows[name]) for name in of_file} == of_file


def test_what_is_right_has_no_fault(tmp_path: Path) -> None:
    source, loaded = SOURCES["planes"], dataset.load("planes")
    found = typed_proof.compare(lake_with(tmp_path, decoded("planes"), loaded.broken), source, loaded)
    assert found.faults() == []
    assert "planes: 3,322 rows decoded; the totals of 9 columns" in found.sentence()
    assert "1 dead letters, exactly those expected (1 malformed)" in found.sentence()


def test_a_wrong_value_a_lost_row_and_another_reason_are_found(tmp_path: Path) -> None:
    source, loaded = SOURCES["planes"], dataset.load("planes")
    rows = decoded("planes")
    seats = rows["seats"].to_pylist()
    seats[7] += 1
    wrong = rows.set_column(rows.column_names.index("seats"), rows.schema.field("seats"), pa.array(seats, pa.int32()))
    found = typed_proof.compare(lake_with(tmp_path / "a", wrong, {0: "missing"}), source, loaded)
    assert list(found.different) == ["seats"]
    assert "dead letters by reason: 1 missing; expected: 1 malformed" in found.faults()
    lost = typed_proof.compare(lake_with(tmp_path / "b", rows.slice(1), loaded.broken), source, loaded)
    assert {"tailnum", "seats"} <= set(lost.different)


def test_without_tables_everything_is_missing(tmp_path: Path) -> None:
    found = typed_proof.compare(Lake.at(tmp_path), SOURCES["planes"], dataset.load("planes"))
    assert len(found.different) == 9
    assert found.rows == 0
