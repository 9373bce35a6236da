"""Windows whose values refer to schemas in a registry: they are decoded in Spark's workers, and again while the
registry is not available."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from deltalake import DeltaTable

from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.errors import RegistryUnreachableError
from platform_assets.lake.location import Lake
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets_tests.conftest import LakeMaker
from platform_assets_tests.support.avro_data import record, written
from platform_assets_tests.support.fake_registry import fake_registry
from testbed.loads import Record, TopicLake

LEG = {
    "type": "record",
    "name": "Leg",
    "fields": [{"name": "to", "type": "string"}, {"name": "km", "type": ["null", "int"]}],
}
OLD = record(id="int", legs={"type": "array", "items": LEG}, first=["null", "Leg"])
NEW = record(id="int", legs={"type": "array", "items": LEG}, first=["null", "Leg"], colour="string")
VALUES = [
    b"\0\0\0\0\1" + written(OLD, {"id": 1, "legs": [{"to": "A", "km": None}], "first": {"to": "A", "km": 2}}),
    b"\0\0\0\0\2" + written(NEW, {"id": 2, "legs": [], "first": None, "colour": "red"}),
    b"no head",
    None,
]


def decoder(lake: TopicLake, revision: int) -> WindowDecoder:
    """Return a decoder; with another revision, windows are decoded again."""
    declared = DecodeDeclaration(FormatSpec("avro", {"schema": OLD, "registry": True}), revision=revision)
    engine = DecodeEngine(Lake.at(lake.root), lake.spark)
    return WindowDecoder(replace(lake.declaration, decode=declared), lake.ledger, engine)


def test_a_window_is_decoded_again_when_its_registry_has_gone(lake: LakeMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lake(partitions=1)
    key = made.window_of([Record(value) for value in VALUES])
    made.load(key)
    with fake_registry() as registry:
        # The server's own environment, and so its workers', has no address: it comes with the load.
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", registry.url)
        registry.has("/schemas/ids/1", {}, status=503)
        with pytest.raises(RegistryUnreachableError, match="HTTP 503"):
            decoder(made, 1).decode(key)
        registry.has("/schemas/ids/1", {"schema": json.dumps(OLD)})
        registry.has("/schemas/ids/2", {"schema": json.dumps(NEW)})
        done = decoder(made, 1).decode(key)
    assert (done.outcome, done.decoded.rows, done.dead_letters.rows) == ("loaded", 3, 1)
    table = DeltaTable(made.root / "decoded" / made.topic)
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["kafka_offset"])
    assert [(row["id"], row["rescued"], row["tombstone"]) for row in rows] == [
        (1, None, False), (2, '{"colour":"red"}', False), (None, None, True),
    ]  # fmt: skip
    assert (rows[0]["legs"], rows[0]["first"]) == ([{"to": "A", "km": None}], {"to": "A", "km": 2})
    assert len(list((made.root / "_ledger" / "schemas").rglob("[0-9].json"))) == 2

    again = decoder(made, 2).decode(key)
    assert (again.decoded.rows, again.dead_letters.rows) == (3, 1)
