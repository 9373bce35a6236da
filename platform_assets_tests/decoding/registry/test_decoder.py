"""Values of several registered schemas in one block, including values whose schema is not available."""

from __future__ import annotations

import json
import pickle
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.registry import cache, wire
from platform_assets.decoding.registry.cache import Registered
from platform_assets.decoding.registry.decoder import RegistryDecoder
from platform_assets.decoding.registry.readers import AdmittedDecoder
from platform_assets.errors import ConfigurationError, RegistryChangedError, RegistryUnreachableError
from platform_assets.lake.files import files_below
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support import decoding
from platform_assets_tests.support.avro_data import record, written
from platform_assets_tests.support.fake_registry import FakeRegistry, fake_registry
from platform_assets_tests.support.proto_data import class_of, indexed, proto

OLD = record(id="int", name="string")
NEW = record(name="string", id="long", colour=["null", "string"])
DECLARED = record(id="long", name="string", size=("int", 5))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """Run a fake registry with a few schemas. The environment points to this registry."""
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
    """Return an Avro decoder that uses the registry."""
    made = decoder_of(
        FormatSpec("avro", {"schema": DECLARED, "registry": True}), None if schemas is None else files_below(schemas)
    )
    assert isinstance(made, RegistryDecoder)
    return made


def headed(number: int, datum: bytes) -> bytes:
    """Return a value in the wire format."""
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
    assert "$.id: the writer's type is string, which cannot be read as long" in details[2]
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
    # Another process asks the registry again: an unknown id may have been registered since, and a cached one may now
    # mean something else.
    assert pickle.loads(pickle.dumps(of)).decode(values).columns["id"].to_pylist() == [1, None]
    assert [path for path, _ in registry.asked][2:] == ["/schemas/ids/1", "/schemas/ids/2"]


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


def test_another_record_of_the_topic_is_a_dead_letter_until_its_name_is_an_alias(registry: FakeRegistry) -> None:
    payment, refund = ({**record(id="long"), "name": name, "namespace": "shop"} for name in ("Payment", "Refund"))
    for number, schema in ((71, payment), (72, refund)):
        registry.has(f"/schemas/ids/{number}", {"schema": json.dumps(schema)})
    values = [headed(71, written(payment, {"id": 1})), headed(72, written(refund, {"id": 2}))]
    found = decoding.decoded(decoder_of(FormatSpec("avro", {"schema": payment, "registry": True})), values)
    assert found.columns["id"].to_pylist() == [1, None]
    [letter] = found.dead.to_pylist()
    assert (letter["row"], letter["reason"]) == (1, "wrong_type")
    why = "schema 72: $: the written record is shop.Refund, but the declared record is shop.Payment; if both"
    assert letter["detail"].startswith(why)
    both = {**payment, "aliases": ["Refund"]}
    found = decoding.decoded(decoder_of(FormatSpec("avro", {"schema": both, "registry": True})), values)
    assert found.columns["id"].to_pylist() == [1, 2]


def test_a_name_that_is_not_utf8_makes_a_dead_letter(registry: FakeRegistry) -> None:
    text = '{"type":"record","name":"R","fields":[{"name":"id","type":"\\ud800"}]}'
    registry.has("/schemas/ids/74", {"schema": text})
    [letter] = decoding.decoded(avro(), [headed(74, b"\x02")]).dead.to_pylist()
    assert letter["reason"] == "bad_schema"
    assert "\\ud800" in letter["detail"]


def test_a_schema_that_is_recursive_in_a_field_that_the_declaration_omits(registry: FakeRegistry) -> None:
    writer = record(id="long", inner=["null", "R"])
    registry.has("/schemas/ids/73", {"schema": json.dumps(writer)})
    of = decoder_of(FormatSpec("avro", {"schema": record(id="long"), "registry": True}))
    found = decoding.decoded(of, [headed(73, written(writer, {"id": 1, "inner": {"id": 2, "inner": None}}))])
    assert found.columns["id"].to_pylist() == [1]
    assert found.rescued.to_pylist() == ['{"inner":{"id":2}}']


def test_protobuf_by_registry_is_read_by_the_schema_that_wrote_it(registry: FakeRegistry, tmp_path: Path) -> None:
    old = proto("message Order { int32 id = 1; string name = 2; }")
    newer = "message Order { Money price = 3; int64 id = 5; string name = 2; }"
    new = proto("message Key { int32 n = 1; }", newer, imports=("shop/money.proto",))
    money = proto("message Money { int64 units = 1; }")
    registry.has("/schemas/ids/11", {"schema": old, "schemaType": "PROTOBUF"})
    references = [{"name": "shop/money.proto", "subject": "money", "version": 2}]
    registry.has("/schemas/ids/12", {"schema": new, "schemaType": "PROTOBUF", "references": references})
    registry.has("/subjects/money/versions/2", {"schema": money, "schemaType": "PROTOBUF"})
    registry.has("/schemas/ids/13", {"schema": proto("message Order { string id = 1; }"), "schemaType": "PROTOBUF"})
    registry.has(
        "/schemas/ids/14",
        {"schema": proto("message A {}", imports=("../../etc/passwd",)), "schemaType": "PROTOBUF"},
    )
    circle = [{"name": "a.proto", "subject": "a", "version": 1}]
    registry.has("/schemas/ids/15", {"schema": old, "schemaType": "PROTOBUF", "references": circle})
    registry.has("/subjects/a/versions/1", {"schema": old, "schemaType": "PROTOBUF", "references": circle})
    first = class_of(old, "shop.Order")(id=1, name="old")
    second = class_of(new, "shop.Order", {"shop/money.proto": money})(id=2, name="new", price={"units": 7})
    declared = {"schema": "id BIGINT NOT NULL, name STRING", "message": "shop.Order", "registry": True}
    values = [
        headed(11, indexed(first)), headed(12, indexed(second, 1)), headed(13, b"\0"), headed(14, b"\0"), headed(15, b"\0"),
        headed(1, b"\0"), headed(2, b"\0"), headed(12, b"\0"), headed(11, b""), None,
    ]  # fmt: skip
    found = decoding.decoded(decoder_of(FormatSpec("protobuf", declared), files_below(tmp_path)), values)
    assert found.columns["id"].to_pylist() == [1, 2, *[None] * 8]
    assert found.rescued.to_pylist()[:2] == [None, '{"price":{"units":7}}']
    assert [(each["row"], each["reason"]) for each in found.dead.to_pylist()] == [
        (2, "bad_schema"), (3, "bad_schema"), (4, "bad_schema"), (5, "bad_schema"), (6, "unknown_schema"),
        (7, "wrong_type"), (8, "malformed"),
    ]  # fmt: skip
    details = found.dead["detail"].to_pylist()
    assert details[0] == "schema 13: $.id: the writer's type is string, which cannot be read as BIGINT"
    assert "etc/passwd" in details[1]
    assert "form a cycle" in details[2]
    assert "schema of type AVRO" in details[3]

    registry.answers.clear()  # the registry is lost, but its schemas are on disk
    again = decoder_of(FormatSpec("protobuf", declared), files_below(tmp_path)).decode(
        pa.array(values[:2], pa.binary())
    )
    assert again.columns["name"].to_pylist() == ["old", "new"]
    registry.has("/schemas/ids/16", {}, status=503)
    with pytest.raises(RegistryUnreachableError):
        decoder_of(FormatSpec("protobuf", declared), files_below(tmp_path)).decode(
            pa.array([headed(16, b"\0")], pa.binary())
        )


def json_decoder(ddl: str) -> RegistryDecoder:
    """Return a JSON decoder that uses the registry."""
    made = decoder_of(FormatSpec("json", {"schema": ddl, "registry": True}))
    assert isinstance(made, RegistryDecoder)
    return made


def test_json_by_registry_is_read_as_declared(registry: FakeRegistry) -> None:
    found = decoding.decoded(
        json_decoder("id BIGINT NOT NULL"),
        [headed(3, b'{"id": 5}'), headed(1, b"{}"), headed(2, b"{}"), headed(3, b'{"id": "x"}'), b'{"id": 5}'],
    )
    assert found.columns["id"].to_pylist() == [5, None, None, None, None]
    assert found.dead["reason"].to_pylist() == ["bad_schema", "unknown_schema", "wrong_type", "malformed"]


def test_json_has_to_be_as_the_schema_that_wrote_it_says(registry: FakeRegistry) -> None:
    old = {"type": "object", "properties": {"id": {"type": "integer"}, "more": {"maximum": 5}}, "required": ["id"]}
    new = {**old, "properties": {"id": {"type": "string"}, "legs": {"items": {"required": ["to"]}}}}
    registry.has("/schemas/ids/21", {"schema": json.dumps(old), "schemaType": "JSON"})
    registry.has("/schemas/ids/22", {"schema": json.dumps(new), "schemaType": "JSON"})
    values = [
        headed(21, b'{"id": 5, "more": 5}'), headed(21, b'{"id": 5, "more": 6}'), headed(21, b"{}"), headed(21, b'{"id": "x"}'),
        headed(22, b'{"id": "x", "legs": [{"to": 1}, {}]}'), headed(22, b'{"id": "5"}'), headed(22, b'{"id": 5}'), None,
        headed(21, b'{"id": 5,'), headed(21, b'{"id": 5, "more": 1' + b"0" * 5_000 + b"}"),
    ]  # fmt: skip
    found = decoding.decoded(json_decoder("id STRING"), values)
    assert found.columns["id"].to_pylist() == [None] * 5 + ["5"] + [None] * 4
    assert [(each["row"], each["reason"], each["place"]) for each in found.dead.to_pylist()] == [
        (0, "wrong_type", "$.id"), (1, "wrong_type", "$.id"), (2, "not_admitted", "$"), (3, "not_admitted", "$.id"),
        (4, "not_admitted", "$.legs[1]"), (6, "wrong_type", "$.id"), (8, "malformed", None), (9, "wrong_type", "$.id"),
    ]  # fmt: skip
    numbers = decoding.decoded(json_decoder("id BIGINT, legs STRING"), values)
    assert numbers.columns["id"].to_pylist() == [5, *[None] * 9]
    assert numbers.rescued.to_pylist() == ['{"more":5}', *[None] * 9]
    letters = {each["row"]: (each["reason"], each["place"], each["detail"]) for each in numbers.dead.to_pylist()}
    assert letters[1][:2] == ("not_admitted", "$.more")
    assert letters[1][2].endswith("(#/properties/more/maximum)")
    assert letters[9][0] == "not_admitted"
    assert letters[6] == ("not_admitted", "$.id", letters[6][2])


def test_schemas_of_json_find_their_references_and_nothing_else(registry: FakeRegistry) -> None:
    leg = {"type": "object", "required": ["to"], "properties": {"next": {"$ref": "#"}}}
    for number, base in ((31, {}), (32, {"$id": "https://example.com/schemas/order.json"})):
        draft = "http://json-schema.org/draft-07/schema#"
        schema = {**base, "$schema": draft, "properties": {"leg": {"$ref": "leg.json"}}}
        references = [{"name": "leg.json", "subject": "leg", "version": 1}]
        registry.has(
            f"/schemas/ids/{number}", {"schema": json.dumps(schema), "schemaType": "JSON", "references": references}
        )
    registry.has("/subjects/leg/versions/1", {"schema": json.dumps(leg), "schemaType": "JSON"})
    with fake_registry() as other:
        other.has("/x.json", {})
        bad: list[Any] = [
            {"$ref": other.url + "/x.json"}, {"$ref": "file:///etc/passwd"}, {"$ref": "missing.json"}, {"type": 5},
            {"pattern": "(?=a)b"}, {"$schema": other.url + "/x.json"}, 7, nested(5_000), {"$ref": "#/definitions/none"},
        ]  # fmt: skip
        for number, each in enumerate(bad, 41):
            registry.has(f"/schemas/ids/{number}", {"schema": json.dumps(each), "schemaType": "JSON"})
        registry.has("/schemas/ids/60", {"schema": "{", "schemaType": "JSON"})
        good = [headed(number, b'{"leg": {"to": "A", "next": {"to": "B"}}}') for number in (31, 32)]
        refused = [headed(number, b'{"leg": {"to": "A", "next": {}}}') for number in (31, 32)]
        rest = [headed(number, b"{}") for number in (*range(41, 41 + len(bad)), 60)]
        found = decoding.decoded(json_decoder("leg STRUCT<to: STRING>"), [*good, *refused, *rest])
        assert other.asked == []
    assert found.dead["reason"].to_pylist() == ["not_admitted"] * 2 + ["bad_schema"] * len(rest)
    assert found.dead["place"].to_pylist()[:2] == ["$.leg.next"] * 2
    assert found.columns["leg"].to_pylist()[:2] == [{"to": "A"}] * 2


def nested(levels: int) -> Any:
    """Return a schema that is nested `levels` deep, but at most 400 deep, because Python's parser cannot read deeper
    schemas."""
    made: Any = {}
    for _ in range(min(levels, 400)):
        made = {"not": made}
    return made


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
PROMISED = {
    "type": "object",
    "properties": {"a": {"type": ["integer", "null"], "minimum": -5}, "b": {"maxLength": 2}, "c": {"maxItems": 1}},
}


@decoding.UNTIMED
@given(
    st.lists(
        st.none()
        | st.binary(max_size=6)
        | st.dictionaries(st.sampled_from("abc"), DOCUMENTS, max_size=3).map(lambda made: json.dumps(made).encode()),
        max_size=6,
    )
)
def test_what_is_admitted_is_the_same_for_a_block_and_one_by_one(values: list[bytes | None]) -> None:
    of = AdmittedDecoder(decoder_of(FormatSpec("json", {"schema": "a BIGINT"})), json.dumps(PROMISED))
    found = decoding.decoded(of, values)
    dead = set(found.dead["row"].to_pylist())
    for row, value in enumerate(values):
        if value is not None and row not in dead:
            jsonschema.Draft7Validator(PROMISED).validate(json.loads(value))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FormatSpec("avro", {"schema": DECLARED, "registry": "http://x"}), "'registry' of format 'avro' is 'http://x'"),
        (FormatSpec("avro", {"registry": True}), "'schema' of format 'avro' is missing"),
        (FormatSpec("string", {"registry": True}), "'string' does not support `registry`"),
        (FormatSpec("protobuf", {"schema": "a INT", "registry": True}), "'message' of format 'protobuf' is missing"),
        (FormatSpec("protobuf", {"message": "a.B", "registry": True}), "'schema' of format 'protobuf' is missing"),
        (FormatSpec("protobuf", {"message": "a.B", "schema": "a WORD", "registry": True}), "schema: 'WORD'"),
        (
            FormatSpec("protobuf", {"message": "a.B", "descriptor_set": "", "registry": True}),
            "no option 'descriptor_set'",
        ),
        (
            FormatSpec("avro", {"schema": record(a=["int", "string"]), "registry": True}),
            "one type and, optionally, null",
        ),
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
@given(
    st.lists(
        st.none()
        | st.binary(max_size=8)
        | st.binary(max_size=6).map(lambda more: b"\0" + more)
        | st.binary(min_size=14, max_size=18).map(lambda more: b"\1" + more)
        | st.binary(min_size=6, max_size=10).map(lambda more: b"\2" + more)
    ),
    st.sampled_from(get_args(wire.IdFrom)),
)
def test_heads_are_the_same_for_a_block_and_one_by_one(values: list[bytes | None], id_from: wire.IdFrom) -> None:
    block = pa.array([b"\0\0\0\0\1", *values], pa.binary()).slice(1)
    fast, exact = wire.heads_of(block, id_from), wire.heads_exactly(block, id_from)
    assert [fast.key(n) for n in fast.numbers.tolist()] == [exact.key(n) for n in exact.numbers.tolist()]
    assert fast.numbers.dtype == np.int64


# --- what an id means ---


SWAPPED = record(name="string", id="int")


def test_a_registry_that_gives_an_id_another_schema_is_refused(registry: FakeRegistry, tmp_path: Path) -> None:
    values = pa.array([headed(1, written(OLD, {"id": 1, "name": "x"}))], pa.binary())
    avro(tmp_path).decode(values)
    registry.has("/schemas/ids/1", {"schema": json.dumps(OLD, indent=3)})  # the same schema, formatted differently
    assert avro(tmp_path).decode(values).columns["id"].to_pylist() == [1]
    registry.has("/schemas/ids/1", {"schema": json.dumps(SWAPPED)})
    with pytest.raises(RegistryChangedError, match="`platform-assets forget-schemas 1`") as caught:
        avro(tmp_path).decode(values)
    former, found = Registered("AVRO", json.dumps(OLD)).fingerprint, Registered("AVRO", json.dumps(SWAPPED)).fingerprint
    assert (caught.value.known, caught.value.found) == (former, found)
    assert pickle.loads(pickle.dumps(caught.value)).number == 1
    # The remedy: from then on the present answer is used.
    assert cache.forget(files_below(tmp_path), [1]) == [f"AVRO schema 1, fingerprint {former}, from {registry.url}"]
    new = pa.array([headed(1, written(SWAPPED, {"id": 7, "name": "y"}))], pa.binary())
    assert avro(tmp_path).decode(new).columns["id"].to_pylist() == [7]
    assert avro(tmp_path).decode(new).columns["id"].to_pylist() == [7]


def test_another_registry_whose_id_means_another_schema_is_refused(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = pa.array([headed(1, written(OLD, {"id": 1, "name": "x"}))], pa.binary())
    avro(tmp_path).decode(values)
    with fake_registry() as other:
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", other.url)
        other.has("/schemas/ids/1", {"schema": json.dumps(SWAPPED)})
        with pytest.raises(RegistryChangedError, match=f"read from {registry.url}"):
            avro(tmp_path).decode(values)
        other.has("/schemas/ids/1", {"schema": json.dumps(OLD)})  # imported with its id, as the error suggests
        assert avro(tmp_path).decode(values).columns["id"].to_pylist() == [1]
    assert {path.name for path in tmp_path.rglob("registry.json")} == {"registry.json"}
    assert len(list(tmp_path.rglob("registry.json"))) == 2


def test_a_registry_that_is_silent_is_asked_once_a_block_for_what_is_kept(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    values = pa.array(
        [
            headed(1, written(OLD, {"id": 1, "name": "x"})),
            headed(300_000, written(NEW, {"id": 2, "name": "y", "colour": None})),
        ],
        pa.binary(),
    )
    avro(tmp_path).decode(values)
    registry.answers.clear()
    for number in (1, 300_000):
        registry.has(f"/schemas/ids/{number}", {}, status=503)
    before = len(registry.asked)
    assert avro(tmp_path).decode(values).columns["id"].to_pylist() == [1, 2]
    assert len(registry.asked) == before + 1
    # A registry that answers but has lost the ids does not invalidate the cached schemas either.
    registry.answers.clear()
    assert avro(tmp_path).decode(values).columns["id"].to_pylist() == [1, 2]


def test_ids_that_nobody_registered_cannot_have_the_registry_asked_without_end(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package also exports a function with the module's name.
    monkeypatch.setattr(sys.modules["platform_assets.decoding.registry.decoder"], "MOST_UNKNOWN", 3)
    good = headed(300_000, written(NEW, {"id": 2, "name": "y", "colour": None}))
    values = [headed(number, b"") for number in range(1_000, 1_010)] + [good, good]
    of = avro()
    found = of.decode(pa.array(values, pa.binary()))
    assert len(registry.asked) == 4
    assert found.columns["id"].to_pylist() == [*[None] * 10, 2, 2]
    assert set(found.dead["reason"].to_pylist()) == {"unknown_schema"}
    assert (
        "was not looked up, because 3 other ids were already missing from the registry"
        in found.dead["detail"].to_pylist()[-1]
    )


# --- location of the id ---


def by_header(schemas: Path | None = None) -> RegistryDecoder:
    made = decoder_of(FormatSpec("avro", {"schema": DECLARED, "registry": True, "id": "header"}))
    assert isinstance(made, RegistryDecoder)
    return made


GUID = "123e4567-e89b-12d3-a456-426614174000"
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def headers(*records: Sequence[tuple[str, bytes | None]] | None) -> pa.ListArray:
    rows = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in records]
    return pa.array([[{"key": "__value_schema_id", "value": b"left out"}], *rows], HEADERS_TYPE).slice(1)


def test_an_id_or_a_guid_in_a_header_is_read(registry: FakeRegistry) -> None:
    registry.has(f"/schemas/guids/{GUID}", {"schema": json.dumps(NEW)})
    old, new = written(OLD, {"id": 1, "name": "x"}), written(NEW, {"id": 2, "name": "y", "colour": None})
    name, guid = "__value_schema_id", b"\1" + uuid.UUID(GUID).bytes
    found = by_header().decode_records(
        pa.array([old, new, new, None, old, old, old, old], pa.binary()),
        headers(
            [("a", b"b"), (name, headed(1, b""))],
            [(name, guid)],
            [(name, headed(1, b"")), ("z", None), (name, guid)],  # the last header wins, as with Kafka's lastHeader
            [(name, guid)],
            None,
            [("__key_schema_id", headed(1, b""))],
            [(name, b"\0\0\1")],
            [(name, None)],
        ),
        "value",
    )
    assert found.columns["id"].to_pylist() == [1, 2, 2, *[None] * 5]
    assert found.dead["row"].to_pylist() == [4, 5, 6, 7]
    assert set(found.dead["reason"].to_pylist()) == {"malformed"}
    details = found.dead["detail"].to_pylist()
    assert details[0] == "the record has no header __value_schema_id, where `id: header` looks for the schema id"
    assert details[2].startswith("header __value_schema_id has 3 bytes")
    key = by_header().decode_records(
        pa.array([old], pa.binary()), headers([("__key_schema_id", headed(1, b""))]), "key"
    )
    assert key.columns["id"].to_pylist() == [1]


def test_a_value_that_happens_to_have_a_head_is_not_read_by_a_foreign_schema(registry: FakeRegistry) -> None:
    """A schema id in a record's header takes precedence over value bytes that look like an id."""
    value = headed(1, written(OLD, {"id": 1, "name": "x"}))
    found = avro().decode_records(
        pa.array([value, value, value], pa.binary()),
        headers([], [("__value_schema_id", headed(300_000, b""))], [("__key_schema_id", b"\0")]),
        "value",
    )
    assert found.columns["id"].to_pylist() == [1, None, 1]
    assert found.dead["detail"].to_pylist() == [
        "the record names its schema in header __value_schema_id: declare `id: header`"
    ]


def test_ids_of_apicurio_are_named_and_then_read(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """For ids from Apicurio's own API, the dead letter names the option with which the values can be read. Ids in
    headers take precedence over ids in prefixes."""
    old, new = written(OLD, {"id": 1, "name": "x"}), written(NEW, {"id": 2, "name": "y", "colour": None})
    content, glob, long = "apicurio.value.contentId", "apicurio.value.globalId", (7).to_bytes(8, "big")
    values = pa.array([b"\0" + long + old, old, new, None, old, old, b"\0" + long], pa.binary())
    of_records = headers(
        [], [(content, long)], [(glob, long)], [(glob, long)], [], [(content, b"1")], [(content, long), (glob, long)]
    )
    details = avro().decode_records(values, of_records, "value").dead["detail"].to_pylist()
    assert details[0].endswith("Apicurio's 8-byte ids begin like this: declare `id: apicurio`")
    assert details[1].endswith("names its schema in an Apicurio header: declare `id: apicurio`")

    def apicurio(way: str = "apicurio") -> RegistryDecoder:
        made = decoder_of(FormatSpec("avro", {"schema": DECLARED, "registry": True, "id": way}))
        assert isinstance(made, RegistryDecoder)
        return made

    with pytest.raises(ConfigurationError, match="next to /apis/ccompat/v7: use an address that contains this path"):
        apicurio().decode_records(values, of_records, "value")
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", f"{registry.url}/apis/ccompat/v7")
    for kind, schema in (("content", OLD), ("global", NEW)):
        registry.has(f"/apis/registry/v3/ids/{kind}Ids/7", schema)
        registry.has(f"/apis/registry/v3/ids/{kind}Ids/7/references", [])
    found = apicurio().decode_records(values, of_records, "value")
    assert found.columns["id"].to_pylist() == [1, 1, 2, *[None] * 4]
    assert [(d["row"], d["reason"]) for d in found.dead.to_pylist()] == [
        (4, "malformed"),
        (5, "malformed"),
        (6, "malformed"),
    ]
    assert found.dead["detail"].to_pylist()[1] == "header apicurio.value.contentId should be an 8-byte id"
    by_global = apicurio("apicurio_global").decode_records(
        pa.array([b"\0" + long + new], pa.binary()), headers([]), "value"
    )
    assert by_global.columns["id"].to_pylist() == [2]


def test_references_of_apicurio_are_followed_and_an_unknown_id_is_one(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", f"{registry.url}/apis/ccompat/v7")
    inner = {"type": "record", "name": "Inner", "namespace": "n", "fields": [{"name": "x", "type": "int"}]}
    outer: Any = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "n.Inner"}]}
    base = "/apis/registry/v3"
    registry.has(f"{base}/ids/contentIds/9", outer)
    reference = {"groupId": None, "artifactId": "a/b", "version": "1", "name": "n.Inner"}
    registry.has(f"{base}/ids/contentIds/9/references", [reference])
    registry.has(f"{base}/groups/default/artifacts/a%2Fb/versions/1/content", inner)
    registry.has(f"{base}/groups/default/artifacts/a%2Fb/versions/1/references", [])
    registry.has(f"{base}/ids/contentIds/8", {"status": 404, "name": "ContentNotFoundException"}, status=404)
    of = decoder_of(FormatSpec("avro", {"schema": record(a=inner), "registry": True, "id": "apicurio"}))
    head = [b"\0" + number.to_bytes(8, "big") for number in (9, 8)]
    found = of.decode(pa.array([head[0] + b"\x0e", head[1]], pa.binary()))
    assert found.columns.to_pylist() == [{"a": {"x": 7}}, {"a": None}]
    assert found.dead.to_pylist()[0]["reason"] == "unknown_schema"
    registry.has(f"{base}/groups/default/artifacts/gone/versions/1/content", {"status": 404}, status=404)
    for artifact, detail in (("..", "would lead to another path"), ("gone", "which the registry does not have")):
        registry.has(f"{base}/ids/contentIds/9/references", [{**reference, "artifactId": artifact}])
        again = decoder_of(FormatSpec("avro", {"schema": record(a=inner), "registry": True, "id": "apicurio"}))
        dead = again.decode(pa.array([head[0] + b"\x0e"], pa.binary())).dead
        assert dead["reason"].to_pylist() == ["bad_schema"]
        assert detail in dead["detail"].to_pylist()[0]


def test_where_ids_are_is_prefix_or_header(registry: FakeRegistry) -> None:
    with pytest.raises(
        ConfigurationError, match="option 'id' of format 'avro' is 'body'; it must be one of: prefix, header"
    ):
        decoder_of(FormatSpec("avro", {"schema": DECLARED, "registry": True, "id": "body"}))
