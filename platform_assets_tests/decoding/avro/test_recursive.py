"""A record of the writer that contains itself: declared fields are decoded, and the other fields are rescued."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any, Final

import pyarrow as pa
import pytest

from platform_assets.decoding.avro.decoder import AvroDecoder
from platform_assets.decoding.avro.exact import MOST_AGAIN
from platform_assets.errors import ConfigurationError
from platform_assets_tests.support.avro_data import avro, decoded, record, written

NODE: Final[dict[str, Any]] = {
    "type": "record",
    "name": "R",
    "namespace": "n",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "next", "type": ["null", "R"]},
        {"name": "others", "type": {"type": "array", "items": "n.R"}},
        {"name": "raw", "type": ["null", "bytes", "double"]},
        {"name": "last", "type": "string"},
    ],
}


def node(number: int, **more: Any) -> dict[str, Any]:
    """Return a record without a nested record."""
    return {"id": number, "next": None, "others": [], "raw": None, "last": f"text {number}"} | more


TREE: Final = node(
    1, next=node(2, next=node(3, raw=b"\xff")), others=[node(4), node(5, others=[node(6, raw=math.inf)])], raw=0.5
)
RESCUED: Final[dict[str, Any]] = {
    "next": {"id": 2, "next": {"id": 3, "raw": {"bytes": "/w=="}, "last": "text 3"}, "last": "text 2"},
    "others": [
        {"id": 4, "last": "text 4"},
        {"id": 5, "others": [{"id": 6, "raw": {"double": "inf"}, "last": "text 6"}], "last": "text 5"},
    ],
    "raw": {"double": 0.5},
}


def test_what_is_declared_is_decoded_and_the_rest_is_rescued() -> None:
    of = avro(record(last="string", id="long"), NODE)
    values = [written(NODE, TREE), written(NODE, node(7)), None, written(NODE, node(8))[:-1]]
    rows, rescued, dead = decoded(pickle.loads(pickle.dumps(of)), values)
    assert rows[:2] == [{"last": "text 1", "id": 1}, {"last": "text 7", "id": 7}]
    assert [None if text is None else json.loads(text) for text in rescued] == [RESCUED, None, None, None]
    assert [(each["row"], each["reason"], each["place"]) for each in dead] == [(3, "malformed", "$.last")]


def test_a_declaration_may_follow_the_record_as_far_as_it_likes() -> None:
    inner: dict[str, Any] = {
        "type": "record",
        "name": "Inner",
        "aliases": ["R"],
        "fields": [{"name": "id", "type": "int"}],
    }
    inner["fields"][0]["type"] = "long"
    of = avro(record(id="long", next=["null", inner], last="string"), NODE)
    rows, rescued, _ = decoded(of, [written(NODE, TREE), written(NODE, node(7))])
    assert [row["next"] for row in rows] == [{"id": 2}, None]
    found = json.loads(rescued[0])
    assert found["next"] == {"next": RESCUED["next"]["next"], "last": "text 2"}
    assert found["others"] == RESCUED["others"]


@pytest.mark.parametrize("levels", [MOST_AGAIN, MOST_AGAIN + 1])
def test_records_within_each_other_are_bounded(levels: int) -> None:
    tree = node(0)
    for number in range(levels):
        tree = node(number, next=tree)
    of = avro(record(id="long"), NODE)
    _, rescued, dead = decoded(of, [written(NODE, tree)])
    assert [each["reason"] for each in dead] == ["too_deep"] * (levels > MOST_AGAIN)
    assert (rescued[0] is None) == (levels > MOST_AGAIN)


def test_a_record_that_never_ends_is_a_dead_letter() -> None:
    endless = record(id="long", me={"type": "record", "name": "Me", "fields": [{"name": "me", "type": "Me"}]})
    _, _, dead = decoded(avro(record(id="long"), endless), [b"\x02", b"\x02" * 1_000])
    assert [each["reason"] for each in dead] == ["too_deep"] * 2


def test_rows_without_the_record_are_read_by_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {**NODE, "fields": [each for each in NODE["fields"] if each["name"] != "others"]}
    given = [{name: part for name, part in node(number).items() if name != "others"} for number in range(100)]
    values = pa.array([written(schema, each) for each in given], pa.binary())
    monkeypatch.setattr(AvroDecoder, "decode_exactly", lambda *_: pytest.fail("the exact path was asked"))
    found = avro(record(id="long", last="string"), schema).decode(values)
    assert found.columns["id"].to_pylist() == list(range(100))


def test_a_declared_record_within_itself_is_refused_and_the_remedy_reads_it() -> None:
    with pytest.raises(ConfigurationError, match=r"n\.R contains itself, .* leave this field out, .* `writer_schema`"):
        avro(NODE)
    left_out = {**NODE, "fields": [each for each in NODE["fields"] if each["name"] not in ("next", "others", "raw")]}
    rows, rescued, dead = decoded(avro(left_out, NODE), [written(NODE, TREE)])
    assert (rows, dead) == ([{"id": 1, "last": "text 1"}], [])
    assert json.loads(rescued[0]) == RESCUED
