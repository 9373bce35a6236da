"""The judge of the `database` scenario, which reads events with Python's `json`, and one small seed of the scenario."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from platform_assets_tests.soak import database
from platform_assets_tests.soak import database_judge as judge
from platform_assets_tests.soak.database_judge import PLACEHOLDER, Key, Named, Record, Row
from platform_assets_tests.soak.database_work import tables
from testbed import postgres

(ORDERS,) = (table for table in tables(random.Random(1), text=True) if table.name == "orders")
KEY, COLUMNS = ORDERS.key, ORDERS.columns


def _event(op: str, number: int | None = None, amount: str | None = "1.50", **source: Any) -> Record:
    """Return a record as the connector writes it. A `number` of None is a truncate."""
    row = None if number is None else {"id": number, "amount": amount, "note": "a", "placed": None, "foreign": 1}
    before, after = (row, None) if op == "d" else (None, row)
    value = {"before": before, "after": after, "op": op, "source": {"snapshot": "false", "lsn": 1, **source}}
    return None if number is None else json.dumps({"id": number}).encode(), json.dumps(value).encode()


def _keys(records: list[Record], **options: Any) -> list[str]:
    return sorted(key for (key,) in judge.replay(records, KEY, COLUMNS, **options).rows)


def test_the_last_event_of_a_key_counts() -> None:
    records = [
        _event("c", 1),
        _event("u", 1, "2.00"),
        _event("c", 2),
        _event("d", 2),
        (b'{"id": 2}', None),
        _event("r", 3),
    ]
    said = judge.replay(records, KEY, COLUMNS)
    assert said.rows == {
        ("1",): {"id": 1, "amount": Decimal(2), "note": "a", "placed": None},
        ("3",): {"id": 3, "amount": Decimal("1.5"), "note": "a", "placed": None},
    }
    assert said.records == 6


def test_a_truncate_deletes_all_rows_before_it() -> None:
    assert _keys([_event("c", 1), _event("t"), _event("c", 2)]) == ["2"]


def test_an_event_with_a_placeholder_says_nothing_about_its_row() -> None:
    placeholder = _event("u", 1, PLACEHOLDER)
    said = judge.replay([_event("c", 1), placeholder, _event("c", 2, PLACEHOLDER)], KEY, COLUMNS)
    assert list(said.rows) == [("1",)]
    assert said.rows["1",]["amount"] == Decimal("1.5")
    assert said.incomplete == 2


def test_a_whole_snapshot_deletes_rows_without_an_event_since_its_first_one() -> None:
    killed = [_event("r", 1, snapshot="first", lsn=5), _event("r", 2, snapshot="true", lsn=5)]
    whole = [
        _event("r", 2, snapshot="first", lsn=9), _event("r", 3, snapshot="last_in_data_collection", lsn=9),
        _event("c", 4, snapshot=None),
    ]  # fmt: skip
    assert _keys([*killed, *whole]) == ["1", "2", "3", "4"]
    assert _keys([*killed, *whole], whole=True) == ["2", "3", "4"]
    assert _keys([*killed, *whole[:1]], whole=True) == ["1", "2"]


def test_missing_extra_and_different_rows_are_told_apart() -> None:
    there: dict[Key, Row] = {("1",): {"a": 1, "b": None}, ("2",): {"a": 1}, ("3",): {"a": 1, "b": 2}}
    here: dict[Key, Row] = {("1",): {"a": 1}, ("3",): {"a": 2, "b": 3}, ("4",): {"a": 1}}
    assert judge.differences(there, here, ["a", "b"]) == {
        ("missing", ("2",), frozenset()), ("extra", ("4",), frozenset()), ("different", ("3",), frozenset({"a", "b"})),
    }  # fmt: skip
    assert judge.differences(there, there, ["a", "b"]) == set()


LOST: set[Named] = {("missing", ("10",), frozenset()), ("different", ("2",), frozenset({"amount"}))}


def _answer(lost: set[Named], **changes: Any) -> dict[str, Any]:
    kinds = Counter(kind for kind, *_ in lost)
    return {
        "outcome": "different" if lost else "equal",
        "rows": 7,
        "counts": {kind: kinds[kind] for kind in ("missing", "extra", "different", "undecided")},
        "differences": [
            {"kind": kind, "key": {"id": key}, "columns": sorted(columns)}
            for kind, (key,), columns in sorted(lost, key=lambda each: each[1])
        ][: judge.NAMED],
        "reasons": [],
        **changes,
    }


def _judged(answer: dict[str, Any], lost: set[Named]) -> list[str]:
    return judge.judge_comparison(answer, lost, KEY, 7)


@pytest.mark.parametrize("lost", [set(), LOST, {("extra", (f"{n:05}",), frozenset()) for n in range(judge.NAMED + 5)}])
def test_a_comparison_that_names_exactly_the_keys_is_right(lost: set[Named]) -> None:
    assert _judged(_answer(lost), lost) == []


@pytest.mark.parametrize(
    "answer",
    [
        _answer(set()),
        _answer(LOST, outcome="undecided", reasons=["why"]),
        _answer(LOST, rows=8),
        _answer(LOST, counts={"missing": 2, "extra": 0, "different": 1, "undecided": 0}),
        _answer(set(list(LOST)[:1])),
        _answer(LOST | {("extra", ("3",), frozenset())}),
        _answer({("missing", ("11",), frozenset()), ("different", ("2",), frozenset({"amount"}))}),
        _answer({("extra", ("10",), frozenset()), ("different", ("2",), frozenset({"amount"}))}),
        _answer({("missing", ("10",), frozenset()), ("different", ("2",), frozenset({"note"}))}),
        _answer(LOST, differences=[*_answer(LOST)["differences"], _answer(LOST)["differences"][0]]),
    ],
)
def test_a_comparison_that_names_other_keys_is_wrong(answer: dict[str, Any]) -> None:
    assert _judged(answer, LOST)


def test_a_comparison_that_finds_differences_in_equal_rows_is_wrong() -> None:
    assert _judged(_answer(LOST), set())


def test_a_state_must_have_the_rows_of_the_topic() -> None:
    said = judge.replay([_event("c", 1), _event("c", 2)], KEY, COLUMNS).rows
    state = {key: {**row, "amount": Decimal("1.50")} for key, row in said.items()}
    assert judge.judge_state(state, said, COLUMNS) == []
    assert judge.judge_state({**state, ("3",): state["1",]}, said, COLUMNS)
    assert judge.judge_state({("1",): state["1",]}, said, COLUMNS)
    assert judge.judge_state({**state, ("2",): {**state["2",], "amount": Decimal("1.51")}}, said, COLUMNS)


def _bytes(number: int, length: int) -> str:
    return base64.b64encode(number.to_bytes(length, "big", signed=True)).decode()


def test_values_of_the_connector_are_those_of_python() -> None:
    utc = datetime(2024, 2, 29, 13, 37, 3, 100000, tzinfo=UTC)
    naive = utc.replace(tzinfo=None)
    assert judge.unscaled(2)(_bytes(-150, 2)) == judge.exact("-1.50") == Decimal("-1.5")
    assert judge.scaled({"scale": 3, "value": _bytes(1, 1)}) == Decimal("0.001")
    assert judge.exact("NAN") == judge.exact(Decimal("NaN")) == judge.number("NaN") == judge.number(float("nan"))
    assert judge.single(3.4028235e38) == judge.single(3.4028234663852886e38)
    assert judge.moment_of_text("2024-02-29T13:37:03.1Z") == judge.moment(utc) == judge.moment(naive) == naive
    assert judge.moment_of_microseconds(1_709_213_823_100_000) == naive
    assert judge.day_of_number(19782) == judge.day_of_text("2024-02-29Z") == date(2024, 2, 29)
    assert judge.many(judge.unscaled(0))([None, _bytes(7, 1)]) == (None, Decimal(7))


@pytest.mark.soak
@pytest.mark.cluster
@pytest.mark.skipif(postgres.programs() is None, reason=postgres.HOW)
@pytest.mark.timeout(1200)
def test_a_small_seed_finds_nothing(tmp_path: Path) -> None:
    with database.services(tmp_path / "services") as services:
        found = database.run(2, services, tmp_path / "seed", copied=2_000, steps=1)
    assert found.anomalies == []
    assert found.kills.total() >= 2
    assert found.records > 2_000
