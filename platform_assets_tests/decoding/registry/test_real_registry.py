"""A real registry. Its schemas are read by id, even after other schemas are registered, and even if the registry is no
longer running."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import urllib3

from platform_assets.decoding.decoder import Decoder
from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.registry import client as clients
from platform_assets.errors import RegistryUnreachableError
from platform_assets.lake.files import files_below
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.conftest import Registry
from platform_assets_tests.support.avro_data import record, written
from platform_assets_tests.support.proto_data import class_of, indexed, proto

OLD = record(id="int", name="string")
NEW = record(id="int", name="string", colour=(["null", "string"], None))
DECLARED = record(id="long", name="string")
JSON_SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}


@pytest.fixture
def register(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that registers a schema. `register(subject, schema, kind="AVRO")` returns the status and the
    answer."""
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", registry.url)
    monkeypatch.setattr(clients, "_FIRST_PAUSE", 0.001)

    def asked(method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        with urllib3.PoolManager(retries=False) as pool:
            answer = pool.request(method, registry.url + path, json=body)
            return answer.status, answer.json()

    def made(
        subject: str, schema: Any, kind: str = "AVRO", compatibility: str | None = None, references: Any = ()
    ) -> tuple[int, Any]:
        if compatibility is not None:
            assert asked("PUT", f"/config/{subject}", {"compatibility": compatibility})[0] == 200
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": kind, "references": list(references)}
        return asked("POST", f"/subjects/{subject}/versions", body)

    return made


def headed(number: int, datum: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + datum


def block(*values: bytes) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


@pytest.mark.alone
def test_schemas_are_read_by_id_and_outlive_their_registry(
    registry: Registry, register: Callable[..., Any], tmp_path: Path
) -> None:
    """This is a single test, because a registry takes long to start. It covers Avro and JSON Schema, both kinds of
    changes, an unknown id, an outage, recovery, and loss."""
    subject = f"s-{uuid.uuid4().hex}"
    status, old = register(subject, OLD)
    assert status == 200
    status, new = register(subject, NEW, compatibility="BACKWARD")
    assert (status, new != old) == (200, True)
    status, _ = register(subject, record(another="bytes"))
    assert status == 409
    status, by_json = register(f"j-{subject}", JSON_SCHEMA, "JSON")
    assert status == 200

    # The same schema, with ids written by Apicurio's own serializers.
    with urllib3.PoolManager(retries=False) as pool:
        own = registry.url.removesuffix("/apis/ccompat/v7") + "/apis/registry/v3/groups/default/artifacts"
        version = pool.request("GET", f"{own}/{subject}/versions/1").json()
    for way, name in (("apicurio", "contentId"), ("apicurio_global", "globalId")):
        of = decoder_of(FormatSpec("avro", {"schema": DECLARED, "registry": True, "id": way}))
        value = b"\0" + version[name].to_bytes(8, "big") + written(OLD, {"id": 5, "name": "x"})
        unknown = b"\0" + (1 << 40).to_bytes(8, "big")
        found = of.decode(block(value, unknown))
        assert found.columns["id"].to_pylist() == [5, None], (way, found.dead.to_pylist())
        assert found.dead["reason"].to_pylist() == ["unknown_schema"]

    def avro() -> Decoder:
        return decoder_of(FormatSpec("avro", {"schema": DECLARED, "registry": True}), files_below(tmp_path))

    values = block(
        headed(old["id"], written(OLD, {"id": 1, "name": "old"})),
        headed(new["id"], written(NEW, {"id": 2, "name": "new", "colour": "red"})),
        headed(by_json["id"], b"{}"),
        headed(999_999_999, b""),
    )
    found = avro().decode(values)
    assert found.columns.to_pylist()[:2] == [{"id": 1, "name": "old"}, {"id": 2, "name": "new"}]
    assert found.rescued.to_pylist() == [None, '{"colour":"red"}', None, None]
    assert [(each["row"], each["reason"]) for each in found.dead.to_pylist()] == [
        (2, "bad_schema"),
        (3, "unknown_schema"),
    ]
    text = decoder_of(FormatSpec("json", {"schema": "id BIGINT", "registry": True}))
    assert text.decode(block(headed(by_json["id"], b'{"id": 7}'))).columns["id"].to_pylist() == [7]

    _, later = register(subject, record(id="int", name="string", size=("int", 0)))
    fresh = block(
        headed(later["id"], written(record(id="int", name="string", size="int"), {"id": 3, "name": "later", "size": 4}))
    )
    registry.stop()
    try:
        of = avro()
        with pytest.raises(RegistryUnreachableError, match="did not answer"):
            of.decode(fresh)
        kept = values.slice(0, 3)
        assert avro().decode(kept).columns.to_pylist() == found.columns.slice(0, 3).to_pylist()
    finally:
        registry.start()
    assert of.decode(fresh).columns.to_pylist() == [{"id": 3, "name": "later"}]


@pytest.mark.long
@pytest.mark.alone
def test_json_is_judged_by_the_schema_that_wrote_it_also_when_its_registry_is_lost(
    registry: Registry, register: Callable[..., Any], tmp_path: Path
) -> None:
    subject = f"j-{uuid.uuid4().hex}"
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    assert register(f"{subject}-leg", {**draft, "required": ["to"]}, "JSON")[0] == 200
    references = [{"name": "leg.json", "subject": f"{subject}-leg", "version": 1}]
    old: dict[str, Any] = {
        **draft,
        "properties": {"id": {"type": "integer", "maximum": 9}, "leg": {"$ref": "leg.json"}},
    }
    status, first = register(subject, old, "JSON", references=references)
    assert status == 200
    wider = {**old, "properties": {**old["properties"], "id": {"type": "integer"}}}
    status, second = register(subject, wider, "JSON", compatibility="BACKWARD", references=references)
    assert (status, first != second) == (200, True)
    narrower = {**old, "properties": {**old["properties"], "id": {"type": "string"}}}
    assert register(subject, narrower, "JSON", compatibility="BACKWARD", references=references)[0] == 409

    def text() -> Decoder:
        return decoder_of(FormatSpec("json", {"schema": "id BIGINT", "registry": True}), files_below(tmp_path))

    values = block(
        headed(first["id"], b'{"id": 9}'),
        headed(first["id"], b'{"id": 10}'),
        headed(second["id"], b'{"id": 10, "leg": {"to": "A"}}'),
        headed(second["id"], b'{"id": 10, "leg": {}}'),
        headed(999_999_999, b"{}"),
    )
    found = text().decode(values)
    assert found.columns["id"].to_pylist() == [9, None, 10, None, None]
    assert [(each["reason"], each["place"]) for each in found.dead.to_pylist()] == [
        ("not_admitted", "$.id"),
        ("not_admitted", "$.leg"),
        ("unknown_schema", None),
    ]
    registry.stop()
    try:
        kept = text().decode(values.slice(0, 4))
        assert kept.columns.to_pylist() == found.columns.slice(0, 4).to_pylist()
        with pytest.raises(RegistryUnreachableError, match="did not answer"):
            text().decode(values)
    finally:
        registry.start()


@pytest.mark.long
@pytest.mark.alone
def test_protobuf_is_read_by_id_with_what_it_imports_and_outlives_its_registry(
    registry: Registry, register: Callable[..., Any], tmp_path: Path
) -> None:
    subject = f"p-{uuid.uuid4().hex}"
    money = proto("message Money { string currency = 1; int64 units = 2; }")
    imports = {"shop/money.proto": money}
    old = proto(
        "message Order { int32 id = 1; Money price = 2; google.protobuf.Timestamp at = 3; }",
        imports=("shop/money.proto", "google/protobuf/timestamp.proto"),
    )
    new = old.replace("Timestamp at = 3;", "Timestamp at = 3; string colour = 4;")
    assert register(f"{subject}-money", money, "PROTOBUF")[0] == 200
    references = [{"name": "shop/money.proto", "subject": f"{subject}-money", "version": 1}]
    status, first = register(subject, old, "PROTOBUF", references=references)
    assert status == 200
    status, second = register(subject, new, "PROTOBUF", compatibility="BACKWARD", references=references)
    assert (status, first != second) == (200, True)
    status, _ = register(
        subject, old.replace("int32 id", "string id"), "PROTOBUF", compatibility="BACKWARD", references=references
    )
    assert status == 409
    status, other = register(f"{subject}-other", proto("message Order { string id = 1; }"), "PROTOBUF")
    assert status == 200

    def protobuf() -> Decoder:
        declared = {"schema": "id BIGINT NOT NULL, price STRUCT<units: BIGINT>, at TIMESTAMP", "message": "shop.Order"}
        return decoder_of(FormatSpec("protobuf", {**declared, "registry": True}), files_below(tmp_path))

    price = {"currency": "CHF", "units": 5}
    values = block(
        headed(first["id"], indexed(class_of(old, "shop.Order", imports)(id=1, price=price, at={"seconds": 60}))),
        headed(second["id"], indexed(class_of(new, "shop.Order", imports)(id=2, colour="red"), 0)),
        headed(other["id"], b"\0"),
        headed(999_999_999, b"\0"),
    )
    found = protobuf().decode(values)
    assert found.columns.to_pylist()[:2] == [
        {"id": 1, "price": {"units": 5}, "at": datetime(1970, 1, 1, 0, 1, tzinfo=UTC)},
        {"id": 2, "price": None, "at": None},
    ]
    assert found.rescued.to_pylist()[:2] == ['{"price":{"currency":"CHF"}}', '{"colour":"red"}']
    assert found.dead["reason"].to_pylist() == ["bad_schema", "unknown_schema"]
    status, later = register(subject, new.replace("= 4;", "= 4; bool late = 5;"), "PROTOBUF", references=references)
    assert status == 200
    fresh = block(headed(later["id"], indexed(class_of(old, "shop.Order", imports)(id=3))))
    registry.stop()
    try:
        of = protobuf()
        with pytest.raises(RegistryUnreachableError, match="did not answer"):
            of.decode(fresh)
        assert protobuf().decode(values.slice(0, 3)).columns.to_pylist() == found.columns.slice(0, 3).to_pylist()
    finally:
        registry.start()
    assert of.decode(fresh).columns["id"].to_pylist() == [3]
