"""Keys whose row in the snapshot is unknown: the comparison calls them undecided only if the database's row equals one
of the rows that it may be, but not all of them, and they hide no difference of other keys."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pytest

from platform_assets.checks.postgres import comparing, latest
from platform_assets.checks.postgres.comparing import Comparison, PostgresComparison
from platform_assets.checks.postgres.database import Database, Snapshot
from platform_assets.checks.postgres.latest import _MOST_ROWS, LatestRows
from platform_assets.checks.postgres.values import DatabaseType
from platform_assets.model import debezium
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.state import StateDeclaration
from platform_assets_tests.support.decoded_topic import DecodedTopic
from testbed.samples import Keyed

DECODE: Final = DecodeDeclaration(
    FormatSpec("debezium", {"schema": "id BIGINT NOT NULL, name STRING"}),
    FormatSpec("json", {"schema": "id BIGINT NOT NULL"}),
)
STATE: Final = StateDeclaration(("id",), deletes="debezium")
COLUMNS: Final = {"id": DatabaseType("int8"), "name": DatabaseType("text")}
SNAPSHOT: Final = Snapshot("100:200:", lsn=10_000, before=9_000)
SEEN: Final = 50


class FakeDatabase:
    """A table with these columns and rows, given as texts."""

    schema, table = "public", "orders"

    def __init__(self, columns: Mapping[str, DatabaseType], rows: list[list[str]], snapshot: Snapshot) -> None:
        self._columns, self._rows, self.snapshot = columns, rows, snapshot

    def columns(self) -> Mapping[str, DatabaseType]:
        return self._columns

    def is_rewritten(self) -> bool:
        return False

    def rows(self, key: list[str], columns: Mapping[str, DatabaseType]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
        held = [dict(zip(self._columns, row, strict=True)) for row in self._rows]
        return iter([(tuple(row[name] for name in key), [row[name] for name in columns]) for row in held])


def compared(
    folder: Path,
    records: list[Keyed],
    rows: list[list[str]],
    *,
    decode: DecodeDeclaration = DECODE,
    columns: Mapping[str, DatabaseType] = COLUMNS,
    snapshot: Snapshot = SNAPSHOT,
) -> Comparison:
    """Compare a topic with these records with a table that has these rows."""
    topic = DecodedTopic(folder / "lake", "db.public.orders", decode)
    topic.state = STATE
    topic.load(records)
    topic.decode()
    database = cast(Database, FakeDatabase(columns, rows, snapshot))
    made = PostgresComparison(topic.declaration, topic.ledger, cast(Any, None), "", "X")
    return made._compared(database, (), folder)


def record(id: int, operation: str | None, name: str = "", tx: int | None = SEEN, lsn: int | None = 1) -> Keyed:
    """Return a record of a key. Without an operation, it is a tombstone."""
    key: bytes | None = b'{"id":%d}' % id
    if operation is None:
        return Keyed(key, None)
    row = {"id": id, "name": name}
    both = {"before": row, "after": None} if operation == "d" else {"before": None, "after": row}
    source = {"lsn": lsn, "txId": tx, "ts_us": 1, "snapshot": "false", "sequence": None}
    if operation == "t":
        key, both = None, {"before": None, "after": None}
    return Keyed(key, json.dumps({**both, "op": operation, "source": source}).encode())


CREATED: Final = [record(1, "c", "a"), record(2, "c", "b")]
UNPLACED: Final = [*CREATED, record(1, "u", "x", tx=None)]
TRUNCATED: Final = [
    *CREATED, record(0, "t", tx=None), record(1, "c", "z", tx=250), record(0, "t", tx=None), record(2, "u", "b"),
]  # fmt: skip
"""The second truncate belongs to a later transaction, because it follows an event of one; the first one may be seen."""


@pytest.mark.parametrize(
    ("records", "there", "outcome", "named"),
    [
        (UNPLACED, "a", "undecided", [("undecided", "1")]),
        (UNPLACED, "x", "undecided", [("undecided", "1")]),
        (UNPLACED, "y", "different", [("different", "1")]),
        (UNPLACED, None, "different", [("extra", "1")]),
        ([*CREATED, record(1, "u", "a", tx=None)], "a", "equal", []),
        ([*UNPLACED, record(1, "u", "z")], "z", "equal", []),
        ([*UNPLACED, record(1, "u", "z")], "x", "different", [("different", "1")]),
        ([*CREATED, record(1, "d", tx=None)], "a", "undecided", [("undecided", "1")]),
        ([*CREATED, record(1, "d", tx=None)], None, "equal", []),
        ([*UNPLACED, record(1, None)], None, "equal", []),
        ([*CREATED, record(0, "t", tx=None), record(2, "u", "b")], None, "equal", []),
        ([*UNPLACED, record(1, "u", "z", tx=250)], "a", "undecided", [("undecided", "1")]),
        ([*CREATED, record(0, "t", tx=None), record(2, "u", "b")], "a", "undecided", [("undecided", "1")]),
        ([*CREATED, record(0, "t", tx=None), record(2, "u", "b")], "y", "different", [("missing", "1")]),
        ([*CREATED, record(0, "t", tx=None), record(0, "t"), record(2, "u", "b")], None, "equal", []),
        ([record(0, "t", tx=None), *CREATED], "a", "equal", []),
        ([*CREATED, record(1, "u", "z", tx=250), record(1, "d", tx=None)], None, "different", [("extra", "1")]),
        (
            [*CREATED, record(1, "u", "z", tx=250), record(0, "t", tx=None), record(2, "u", "b")],
            None,
            "different",
            [("extra", "1")],
        ),
        ([*CREATED, record(1, "u", "z", tx=250), record(1, "u", "y", tx=None)], "a", "equal", []),
        ([record(2, "c", "b"), record(1, "c", "a", tx=None)], "a", "undecided", [("undecided", "1")]),
        (TRUNCATED, None, "equal", []),
        (TRUNCATED, "a", "undecided", [("undecided", "1")]),
        (TRUNCATED, "y", "different", [("missing", "1")]),
    ],
)
def test_a_row_without_a_transaction_leaves_its_key_undecided(
    tmp_path: Path, records: list[Keyed], there: str | None, outcome: str, named: list[tuple[str, str]]
) -> None:
    rows = [["2", "b"]] if there is None else [["1", there], ["2", "b"]]
    found = compared(tmp_path, records, rows)
    assert [(d.kind, d.key["id"]) for d in found.differences] == named
    assert found.outcome == outcome
    assert bool(found.why_undecided) == (outcome == "undecided")
    if outcome == "undecided":
        assert found.why_undecided[0].startswith("1 keys have newer decoded rows that name no transaction")


AGAIN: Final = 1 << 32
FAR: Final = Snapshot(f"{AGAIN + 10}:{AGAIN + 200}:{AGAIN + 150}", lsn=1 << 40, before=1 << 40)
"""A snapshot after transaction ids began again. Positions of about 1 are from before that."""


@pytest.mark.parametrize(
    ("records", "there", "outcome", "named"),
    [
        # Ids that have not been given out again.
        ([*CREATED, record(1, "u", "x", tx=205)], "x", "equal", []),
        ([*CREATED, record(1, "u", "x", tx=205)], "a", "different", [("different", "1")]),
        ([*CREATED, record(1, "u", "x", tx=205, lsn=1 << 40)], "a", "equal", []),
        ([*CREATED, record(1, "r", "x", tx=205)], "x", "equal", []),
        # The id of a running transaction.
        ([*CREATED, record(1, "u", "x", tx=150)], "a", "undecided", [("undecided", "1")]),
        ([*CREATED, record(1, "u", "x", tx=150)], "x", "undecided", [("undecided", "1")]),
        ([*CREATED, record(1, "u", "x", tx=150)], "y", "different", [("different", "1")]),
        ([*CREATED, record(1, "u", "x", tx=150, lsn=1 << 40)], "a", "equal", []),
        ([*CREATED, record(1, "u", "x", tx=150), record(1, "u", "z")], "z", "equal", []),
        ([*CREATED, record(0, "t", tx=150), record(2, "u", "b")], "a", "undecided", [("undecided", "1")]),
    ],
)
def test_after_ids_began_again_only_those_of_running_transactions_are_ambiguous(
    tmp_path: Path, records: list[Keyed], there: str, outcome: str, named: list[tuple[str, str]]
) -> None:
    found = compared(tmp_path, records, [["1", there], ["2", "b"]], snapshot=FAR)
    assert [(d.kind, d.key["id"]) for d in found.differences] == named
    assert found.outcome == outcome
    if outcome == "undecided":
        assert "the transactions that run now have ended" in found.why_undecided[0]


def test_undecided_keys_do_not_hide_a_difference(tmp_path: Path) -> None:
    found = compared(tmp_path, UNPLACED, [["1", "a"], ["2", "y"]])
    assert (found.outcome, found.why_undecided) == ("different", [])
    assert {kind: found.counts[kind] for kind in found.counts} == {"undecided": 1, "different": 1}
    assert len(found.about_keys) == 1


@pytest.mark.parametrize(
    ("rows", "outcome", "named"),
    [
        ([["2", "b"]], "equal", []),
        ([["2", "y"]], "different", [("different", "2")]),
        ([["1", "a"], ["2", "b"]], "undecided", [("undecided", "1")]),
        ([["1", "a"], ["2", "y"]], "different", [("undecided", "1"), ("different", "2")]),
        ([["1", "y"], ["2", "b"]], "different", [("missing", "1")]),
    ],
)
def test_a_tombstone_without_a_delete_event_matters_only_for_a_key_that_the_database_has(
    tmp_path: Path, rows: list[list[str]], outcome: str, named: list[tuple[str, str]]
) -> None:
    found = compared(tmp_path, [*CREATED, record(1, None)], rows)
    assert [(d.kind, d.key["id"]) for d in found.differences] == named
    assert found.outcome == outcome
    assert len(found.about_keys) == sum(kind == "undecided" for kind, _ in named)


def test_a_delete_ends_the_key_of_its_record_as_in_the_state(tmp_path: Path) -> None:
    # The hex digits of the key are also base64, so the record's key is another one than the row's.
    decode = DecodeDeclaration(
        FormatSpec(
            "debezium", {"schema": "id BINARY NOT NULL, name STRING", "connector": {"binary.handling.mode": "hex"}}
        ),
        FormatSpec("json", {"schema": "id BINARY NOT NULL"}),
    )
    text = "00112233445566778899aabbccddeeff"
    row = {"id": text, "name": "a"}
    events = [{"op": "c", "after": row}, {"op": "d", "before": row}]
    source = {"lsn": 1, "txId": SEEN, "ts_us": 1, "snapshot": "false", "sequence": None}
    key = json.dumps({"id": text}).encode()
    records = [Keyed(key, json.dumps({**each, "source": source}).encode()) for each in events]
    columns = {"id": DatabaseType("bytea"), "name": DatabaseType("text")}
    found = compared(tmp_path, [*records, Keyed(key, None)], [], decode=decode, columns=columns)
    assert (found.outcome, [(d.kind, d.key["id"]) for d in found.differences]) == (
        "different",
        [("extra", f"\\x{text}")],
    )


def test_a_full_folder_of_temporary_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> Comparison:
        with pa.OSFile("/dev/full", "wb") as sink:
            sink.write(b"x" * (1 << 20))
        raise AssertionError("unreachable")

    @contextmanager
    def opened(*args: object) -> Iterator[Database]:
        yield cast(Database, FakeDatabase(COLUMNS, [], SNAPSHOT))

    topic = DecodedTopic(tmp_path / "lake", "db.public.orders", DECODE)
    topic.load(CREATED)
    topic.decode()
    monkeypatch.setattr(comparing, "opened", opened)
    monkeypatch.setattr(PostgresComparison, "_waited", lambda self, database: ())
    monkeypatch.setattr(LatestRows, "sorted", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(FakeDatabase, "primary_key", lambda self: ["id"], raising=False)
    made = PostgresComparison(topic.declaration, topic.ledger, cast(Any, None), "", "X")
    with pytest.raises(comparing.DiskFullError, match="No space left on device") as e:
        made.run()
    assert f"below {tmp_path}:" in str(e.value)
    assert "TMPDIR" in str(e.value)


def test_a_generated_column_is_not_compared(tmp_path: Path) -> None:
    columns = {**COLUMNS, "name": DatabaseType("text", is_generated=True)}
    found = compared(tmp_path, CREATED, [["1", "x"], ["2", "x"]], columns=columns)
    assert (found.outcome, found.columns) == ("equal", ("id",))
    assert found.not_compared == {"name": "PostgreSQL generates it, and streams it as null before version 18"}


def test_rows_after_a_later_one_do_not_matter(tmp_path: Path) -> None:
    many = [record(1, None) for _ in range(_MOST_ROWS + 5)]
    found = compared(tmp_path, [*CREATED, record(1, "u", "z", tx=250), *many], [["1", "a"], ["2", "b"]])
    assert found.outcome == "equal"


def test_merging_runs_changes_nothing(tmp_path: Path) -> None:
    """Runs may have the rows of a key in turn, so only all of them tell which ones count."""
    facts = {debezium.OPERATION: "op"}
    found = []
    for merges in (False, True):
        rows = LatestRows(cast(Any, None), [], facts, {"id": str}, ("name",), SNAPSHOT, tmp_path)
        for offsets, role in ((range(0, 2 * _MOST_ROWS, 2), latest._UNPLACED), ([_MOST_ROWS + 1], latest._SEEN)):
            batch = pa.RecordBatch.from_pylist(
                [
                    {"\0rank": 0, "kafka_partition": 0, "kafka_offset": n, "id": 1, "name": "x", "op": "u"}
                    for n in offsets
                ]
            )
            rows._wait(batch, batch.to_struct_array(), pa.repeat(role, batch.num_rows))
            rows._end_run()
            if merges:
                rows._runs = [rows._merged(rows._runs)]
        (held,) = rows._held()
        found.append(rows._found(held))
    assert found[0] == found[1]
    assert (found[0].are_all, len(found[0].rows)) == (True, 1 + (_MOST_ROWS - 2) // 2)


def test_too_many_rows_before_a_truncate_do_not_matter(tmp_path: Path) -> None:
    many = [record(1, "u", f"x{number}", tx=None) for number in range(_MOST_ROWS + 5)]
    found = compared(tmp_path, [*CREATED, *many, record(0, "t"), record(2, "c", "b")], [["2", "b"]])
    assert found.outcome == "equal"


@pytest.mark.parametrize(
    ("records", "there", "outcome"),
    [
        (TRUNCATED, None, "undecided"),
        (TRUNCATED, "a", "undecided"),
        (TRUNCATED, "y", "undecided"),
        ([*TRUNCATED, record(1, "r", "a")], "a", "equal"),
        ([*CREATED, record(0, "t", tx=None), record(2, "u", "b")], "y", "different"),
        ([record(0, "t", tx=None), *CREATED, record(1, "u", "z", tx=250), record(0, "t", tx=None)], "y", "different"),
        ([*TRUNCATED, record(0, "t"), *CREATED], "y", "different"),
    ],
)
def test_truncates_that_are_left_out_leave_only_the_keys_undecided_that_they_may_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: list[Keyed], there: str | None, outcome: str
) -> None:
    monkeypatch.setattr(latest, "_MOST_TRUNCATES", 1)
    rows = [["2", "b"]] if there is None else [["1", there], ["2", "b"]]
    assert compared(tmp_path, records, rows).outcome == outcome


@pytest.mark.parametrize("there", ["a", "x1003", "y"])
def test_too_many_rows_of_a_key_leave_it_undecided(tmp_path: Path, there: str) -> None:
    """So their number takes no memory."""
    many = [record(1, "u", f"x{number}", tx=None) for number in range(_MOST_ROWS + 5)]
    later = [record(1, "u", f"z{number}", tx=250) for number in range(5)]
    found = compared(tmp_path, [*CREATED, *many, *later], [["1", there], ["2", "b"]])
    assert found.counts["undecided"] == 1
    assert found.outcome == "undecided"


def test_a_large_row_counts_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "_MOST_BYTES", 1_000)
    some = [record(1, "u", "x" * 100, tx=None) for _ in range(20)]
    found = compared(tmp_path, [*CREATED, *some, record(1, "u", "z", tx=None)], [["1", "y"], ["2", "b"]])
    assert found.outcome == "undecided"
    sent_again = Path(tempfile.mkdtemp(dir=tmp_path))
    assert compared(sent_again, [*CREATED, *some, record(1, "r", "y")], [["1", "y"], ["2", "b"]]).outcome == "equal"


def test_too_many_rows_before_a_delete_do_not_matter_if_the_database_lacks_the_key(tmp_path: Path) -> None:
    """The last row decides then, and is never left out."""
    many = [record(1, "u", f"x{number}", tx=None) for number in range(_MOST_ROWS + 5)]
    ended = [*CREATED, *many, record(1, "d", tx=None), record(1, None)]
    assert compared(tmp_path, ended, [["2", "b"]]).outcome == "equal"
    other = Path(tempfile.mkdtemp(dir=tmp_path))
    assert compared(other, ended, [["1", "x7"], ["2", "b"]]).outcome == "undecided"


def test_batches_of_sorted_rows_are_small_also_if_rows_are_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of each file that is merged is in memory, as objects."""
    monkeypatch.setattr(latest, "_MERGED_BYTES", most := 10_000)
    facts = {debezium.OPERATION: "op"}
    rows = LatestRows(cast(Any, None), [], facts, {"id": str}, ("name",), SNAPSHOT, tmp_path)
    widths = [10] * 300 + [9_000] * 20 + [30_000] + [10] * 300
    for run in range(2):
        batch = pa.RecordBatch.from_pylist(
            [
                {"\0rank": 0, "kafka_partition": 0, "kafka_offset": n, "id": 1_000 + n, "name": "x" * width, "op": "u"}
                for n, width in enumerate(widths)
                if n % 2 == run
            ]
        )
        rows._wait(batch, batch.to_struct_array(), pa.repeat(latest._SEEN, batch.num_rows))
        rows._end_run()

    def batches(path: Path) -> list[pa.RecordBatch]:
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
            return [*reader]

    found = [each for path in rows._runs for each in batches(path)]
    merged = batches(rows._merged(rows._runs))
    for some in (found, merged):
        assert sum(each.num_rows for each in some) == len(widths)
        assert [each.nbytes for each in some if each.num_rows > 1 and each.nbytes > most] == []
    assert [len(text) for each in merged for text in each["name"].to_pylist()] == widths


def test_wide_rows_are_read_in_small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "_BLOCK_BYTES", 20_000)
    topic = DecodedTopic(tmp_path / "lake", "db.public.orders", DECODE)
    topic.state = STATE
    topic.load([record(n, "c", f"{n:04}" * 1_000) for n in range(40)])
    topic.decode()
    facts = {fact: debezium.column_of(cast(Any, DECODE).value, fact) for fact in debezium.DEFAULT_NAMES}
    windows = [window.key for window in topic.ledger.windows(topic.topic)]
    table = topic.ledger.lake.table(topic.declaration.decoded_table)
    rows = LatestRows(table, windows, facts, {"id": str}, ("name",), SNAPSHOT, tmp_path)
    found = [block.num_rows for block in rows._blocks()]
    assert (sum(found), max(found) < 10) == (40, True), found
