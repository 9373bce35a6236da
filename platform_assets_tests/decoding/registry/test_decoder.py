"""Values of several registered schemas in one block, and what happens to those whose schema is not to be had."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.registry import wire
from platform_assets.decoding.registry.decoder import RegistryDecoder
from platform_assets.errors import ConfigurationError, RegistryUnreachableError
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support import decoding
from platform_assets_tests.support.avro_data import record, written
from platform_assets_tests.support.fake_registry import FakeRegistry, fake_registry

OLD = record(id="int", name="string")
NEW = record(name="string", id="long", colour=["null", "string"])
DECLARED = record(id="long", name="string", size=("int", 5))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """One that has a few schemas, and that the environment names."""
    with fake_registry() as made:
        made.has("/schemas/ids/1", {"schema": json.dumps(OLD)})
        made.has("/schemas/ids/300000", {"schema": json.dumps(NEW), "schemaType": "AVRO"})
        made.has("/schemas/ids/3", {"schema": "{}", "schemaType": "JSON"})
        made.has("/schemas/ids/4", {"schema": json.dumps(record(id="string", name="string"))})
        made.has("/schemas/ids/5", {"schema": "{broken"})
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", made.url)
        monkeypatch.setattr("platform_assets.decoding.registry.client._FIRST_PAUSE", 0.001)
        yield made


def avro(schemas: Path | None = None) -> RegistryDecoder:
    """By registry."""
    made = decoder_of(FormatSpec("avro", {"schema": DECLARED, "registry": True}), schemas)
    assert isinstance(made, RegistryDecoder)
    return made


def headed(number: int, datum: bytes) -> bytes:
    """A value in the wire format."""
    return b"\0" + number.to_bytes(4, "big") + datum


def test_each_value_is_read_by_the_schema_that_it_names(registry: FakeRegistry) -> None:
    old = [headed(1, written(OLD, {"id": n, "name": f"old {n}"})) for n in range(3)]
    new = [
        headed(300_000, written(NEW, {"id": n, "name": f"new {n}", "colour": "red" if n else None})) for n in range(3)
    ]
    found = decoding.decoded(avro(), [old[0], new[1], None, old[1], new[0], new[2], old[2]])
    assert found.columns["name"].to_pylist() == ["old 0", "new 1", None, "old 1", "new 0", "new 2", "old 2"]
    assert found.columns["id"].to_pylist() == [0, 1, None, 1, 0, 2, 2]
    assert found.columns["size"].to_pylist() == [5, 5, None, 5, 5, 5, 5]
    assert found.rescued.to_pylist() == [None, '{"colour":"red"}', None, None, None, '{"colour":"red"}', None]
    assert found.dead.num_rows == 0


def test_values_whose_schema_is_not_to_be_had_are_dead_letters(registry: FakeRegistry) -> None:
    good = headed(1, written(OLD, {"id": 1, "name": "x"}))
    bad = [
        headed(2, b""),
        headed(3, b"{}"),
        headed(4, b"\x02a\x02b"),
        headed(5, b""),
        headed(0, b""),
        headed(1 << 31, b""),
        headed(1, b"\x02"),
    ]
    rest = [b"", b"\0\0\0\0", b"\x01\0\0\0\x01\x02", b"{}   "]
    found = decoding.decoded(avro(), [good, *bad, *rest, good])
    reasons = [(each["row"], each["reason"]) for each in found.dead.to_pylist()]
    assert reasons == [
        (1, "unknown_schema"), (2, "bad_schema"), (3, "bad_schema"), (4, "bad_schema"), (5, "unknown_schema"), (6, "unknown_schema"),
        (7, "malformed"), *[(row, "malformed") for row in range(8, 12)],
    ]  # fmt: skip
    details = found.dead["detail"].to_pylist()
    assert "JSON" in details[1]
    assert "$.id: what was written is a string, which cannot be read as long" in details[2]
    assert "0x01" in details[9]
    assert found.columns["id"].to_pylist() == [1, *[None] * 11, 1]
    paths = {path for path, _ in registry.asked}
    assert "/schemas/ids/0" not in paths


def test_each_schema_is_asked_for_once_and_kept_on_disk(registry: FakeRegistry, tmp_path: Path) -> None:
    values = pa.array([headed(1, written(OLD, {"id": 1, "name": "x"})), headed(2, b"")], pa.binary())
    of = avro(tmp_path)
    for _ in range(3):
        assert of.decode(values).columns["id"].to_pylist() == [1, None]
    assert [path for path, _ in registry.asked] == ["/schemas/ids/1", "/schemas/ids/2"]
    # Another process asks again for what was unknown, since it may have been registered since.
    assert pickle.loads(pickle.dumps(of)).decode(values).columns["id"].to_pylist() == [1, None]
    assert [path for path, _ in registry.asked][2:] == ["/schemas/ids/2"]


def test_a_registry_that_is_gone_leaves_what_was_read(registry: FakeRegistry, tmp_path: Path) -> None:
    known = pa.array([headed(1, written(OLD, {"id": 1, "name": "x"}))], pa.binary())
    avro(tmp_path).decode(known)
    registry.answers.clear()
    for number in (1, 300_000):
        registry.has(f"/schemas/ids/{number}", {}, status=503)
    assert avro(tmp_path).decode(known).columns["id"].to_pylist() == [1]
    of = avro(tmp_path)
    with pytest.raises(RegistryUnreachableError, match="run it again"):
        of.decode(pa.array([headed(300_000, written(NEW, {"id": 1, "name": "x", "colour": None}))], pa.binary()))
    registry.has("/schemas/ids/300000", {"schema": json.dumps(NEW)})
    found = of.decode(pa.array([headed(300_000, written(NEW, {"id": 8, "name": "x", "colour": None}))], pa.binary()))
    assert found.columns["id"].to_pylist() == [8]


def test_schemas_that_refer_to_others(registry: FakeRegistry) -> None:
    inner = {"type": "record", "name": "Inner", "namespace": "n", "fields": [{"name": "x", "type": "int"}]}
    outer: Any = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "n.Inner"}]}
    registry.has(
        "/schemas/ids/9",
        {"schema": json.dumps(outer), "references": [{"name": "n.Inner", "subject": "i", "version": 1}]},
    )
    registry.has("/subjects/i/versions/1", {"schema": json.dumps(inner)})
    of = decoder_of(FormatSpec("avro", {"schema": record(a=inner), "registry": True}))
    assert decoding.decoded(of, [headed(9, b"\x0e")]).columns.to_pylist() == [{"a": {"x": 7}}]


def test_json_by_registry_is_read_as_declared(registry: FakeRegistry) -> None:
    of = decoder_of(FormatSpec("json", {"schema": "id BIGINT NOT NULL", "registry": True}))
    found = decoding.decoded(
        of, [headed(3, b'{"id": 5}'), headed(1, b"{}"), headed(2, b"{}"), headed(3, b'{"id": "x"}'), b'{"id": 5}']
    )
    assert found.columns["id"].to_pylist() == [5, None, None, None, None]
    assert found.dead["reason"].to_pylist() == ["bad_schema", "unknown_schema", "wrong_type", "malformed"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FormatSpec("avro", {"schema": DECLARED, "registry": "http://x"}), "'registry' of format 'avro' is 'http://x'"),
        (FormatSpec("avro", {"registry": True}), "'schema' of format 'avro' is missing"),
        (FormatSpec("string", {"registry": True}), "'string' has no registry"),
        (FormatSpec("avro", {"schema": record(a=["int", "string"]), "registry": True}), "one type, and null beside it"),
    ],
    ids=str,
)
def test_declarations_that_are_wrong_are_refused(spec: FormatSpec, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        decoder_of(spec)


def test_without_an_address_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCHEMA_REGISTRY_URL", raising=False)
    of = avro()
    assert of.decode(pa.array([None, b"x"], pa.binary())).dead.num_rows == 1
    with pytest.raises(ConfigurationError, match="SCHEMA_REGISTRY_URL is not set"):
        of.decode(pa.array([headed(1, b"")], pa.binary()))


@decoding.UNTIMED
@given(st.lists(st.none() | st.binary(max_size=8) | st.binary(max_size=6).map(lambda more: b"\0" + more)))
def test_ids_are_the_same_for_a_block_and_one_by_one(values: list[bytes | None]) -> None:
    found = wire.ids_of(pa.array([b"\0\0\0\0\1", *values], pa.binary()).slice(1))
    assert found.tolist() == [wire.NONE if value is None else wire.id_of(value) for value in values]
    assert found.dtype == np.int64
