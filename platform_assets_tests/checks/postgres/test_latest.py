"""The latest rows by key of random histories, against a dictionary that replays the records in order."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from platform_assets.checks.postgres import latest
from platform_assets.checks.postgres.database import Snapshot
from platform_assets.checks.postgres.latest import Latest, LatestRows, order_of
from platform_assets.model import debezium
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets_tests.support.decoded_topic import DecodedTopic
from platform_assets_tests.support.variants import long_after
from testbed.samples import Keyed

DECLARED = DecodeDeclaration(FormatSpec("debezium", {"schema": "id INT NOT NULL, name STRING NOT NULL, qty INT"}))
SNAPSHOT = Snapshot("100:200:120,150", lsn=10_000, before=9_000)


def only(found: Latest) -> dict[str, Any]:
    """Return the row of a key whose row is known."""
    (row,) = found.rows
    assert row is not None
    assert found.cause is None
    return row


def event(operation: str, tx: int | None, row: dict[str, Any] | None, lsn: int | None = 1) -> bytes:
    source = {"lsn": lsn, "txId": tx, "ts_us": 1, "snapshot": "false", "sequence": None}
    both = {"before": row, "after": None} if operation == "d" else {"before": None, "after": row}
    return json.dumps({**both, "source": source, "op": operation}).encode()


@pytest.mark.parametrize("seed", long_after(4, range(8)))
@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
def test_the_latest_rows_are_those_of_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, run_bytes: int
) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(latest, "_MERGED_RUNS", 2)
    of, expected = random.Random(seed), dict[tuple[str | None, ...], int | None]()
    windows, later, later_reads = list[list[bytes | None]](), 0, 0
    for _ in range(4):
        windows.append([])
        for _ in range(of.randrange(60)):
            key, qty, tx = (of.randrange(12), of.choice("aä😀")), of.randrange(100), of.choice([50, 120, 130, 150, 250])
            operation = of.choices("crudt", (5, 2, 5, 4, 0.3))[0]
            row = {"id": key[0], "name": key[1], "qty": None if operation == "d" else qty}
            windows[-1].append(event(operation, tx, None if operation == "t" else row))
            if operation == "d":
                windows[-1].append(None)
            if tx not in (50, 130):
                later += 1
                later_reads += operation == "r"
            elif operation == "t":
                expected.clear()
            elif operation == "d":
                expected.pop((str(key[0]), key[1]), None)
            else:
                expected[str(key[0]), key[1]] = qty
    topic = DecodedTopic(tmp_path / "lake", "db.public.items", DECLARED)
    topic.load(*windows)
    topic.decode()
    found = LatestRows(
        topic.lake.table(topic.declaration.decoded_table), [w.key for w in topic.windows], debezium.DEFAULT_NAMES,
        {"id": str, "name": str}, ("id", "qty"), SNAPSHOT, tmp_path, run_bytes,
    )  # fmt: skip
    rows = list(found.sorted())
    assert {key: only(row)["qty"] for key, row in rows} == expected
    keys = [tuple((part or "").encode() for part in key) for key, _ in rows]
    assert keys == sorted(keys), "PostgreSQL sorts by bytes"
    assert (found.later, found.later_reads) == (later, later_reads)


def test_a_row_without_a_transaction_counts_only_if_an_earlier_snapshot_read_it(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path / "lake", "db.public.items", DECLARED)
    rows = [{"id": number, "name": "a", "qty": 1} for number in range(5)]
    changed = [{**row, "qty": 2} for row in rows]
    topic.load(
        [event("r", None, row, lsn=9_000) for row in rows],
        [event("u", None, changed[0]), event("d", None, rows[1]), event("r", None, changed[2], lsn=9_001)],
        [event("r", None, changed[3], lsn=None), event("u", None, changed[4]), event("u", 50, {**rows[4], "qty": 3})],
    )
    topic.decode()
    found = LatestRows(
        topic.lake.table(topic.declaration.decoded_table), [w.key for w in topic.windows], debezium.DEFAULT_NAMES,
        {"id": str}, ("qty",), SNAPSHOT, tmp_path,
    )  # fmt: skip
    candidates = {key: ([row and row["qty"] for row in each.rows], each.cause) for (key,), each in found.sorted()}
    assert candidates == {
        "0": ([1, 2], "unplaced"), "1": ([1, None], "unplaced"), "2": ([1], None), "3": ([1, 2], "unplaced"), "4": ([3], None),
    }  # fmt: skip
    assert (found.later, found.later_reads) == (1, 1)


@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
def test_a_null_key_is_not_an_empty_text_and_sorts_last(tmp_path: Path, run_bytes: int) -> None:
    declared = DecodeDeclaration(FormatSpec("debezium", {"schema": "name STRING, qty INT"}))
    topic = DecodedTopic(tmp_path / "lake", "db.public.items", declared)
    names = [None, "", "a", None, ""]
    topic.load(*([event("c", 50, {"name": name, "qty": n})] for n, name in enumerate(names)))
    topic.decode()
    found = LatestRows(
        topic.lake.table(topic.declaration.decoded_table), [w.key for w in topic.windows], debezium.DEFAULT_NAMES,
        {"name": str}, ("qty",), SNAPSHOT, tmp_path, run_bytes,
    )  # fmt: skip
    rows = [(key, only(row)["qty"]) for key, row in found.sorted()]
    assert rows == [(("",), 4), (("a",), 2), ((None,), 3)]
    assert [key for key, _ in rows] == sorted((key for key, _ in rows), key=order_of)


@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
@pytest.mark.parametrize("key", ["of columns", "one text"])
def test_a_tombstone_deletes_its_key_and_is_counted_unless_an_event_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_bytes: int, key: str
) -> None:
    monkeypatch.setattr(latest, "_MERGED_RUNS", 2)
    declared = replace(DECLARED, key=FormatSpec("json", {"schema": "id INT NOT NULL"}))
    if key == "one text":
        schema = "id STRING NOT NULL, name STRING NOT NULL, qty INT"
        declared = DecodeDeclaration(FormatSpec("debezium", {"schema": schema}), key=FormatSpec("string"))
    topic = DecodedTopic(tmp_path / "lake", "db.public.items", declared)

    def of(number: int, operation: str | None, tx: int = 50, qty: int = 0) -> Keyed:
        row = {"id": number if key == "of columns" else str(number), "name": "a", "qty": qty}
        record_key = b'{"id":%d}' if key == "of columns" else b"%d"
        return Keyed(record_key % number, None if operation is None else event(operation, tx, row))

    seen, later = 50, 250
    topic.load(
        [of(number, "c", seen, number) for number in range(7)],
        [of(1, None), of(2, "d", seen), of(2, None), of(3, "u", later), of(3, "d", later), of(3, None)],
        [of(4, None), of(4, "c", seen, 40), of(5, "d", later), of(5, None), of(5, "c", later), of(7, None)],
        [of(6, None), of(6, "c", later)],
    )
    topic.decode()
    found = LatestRows(
        topic.lake.table(topic.declaration.decoded_table), [w.key for w in topic.windows], debezium.DEFAULT_NAMES,
        {"id": str}, ("qty",), SNAPSHOT, tmp_path, run_bytes,
    )  # fmt: skip
    rows = {key: each for (key,), each in found.sorted()}
    assert {key: only(each)["qty"] for key, each in rows.items() if each.cause is None} == {
        "0": 0, "3": 3, "4": 40, "5": 5,
    }  # fmt: skip
    unsure = {key: [row and row["qty"] for row in each.rows] for key, each in rows.items() if each.cause == "tombstone"}
    assert unsure == {"1": [1, None], "6": [6, None]}, "the database has either no row, or one that the state lacks"
