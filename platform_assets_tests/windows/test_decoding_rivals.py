"""Decoding while other processes commit, and decoding long after the raw load. The real decoding code runs in this
process."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.checks import decoded as checks
from platform_assets.components.decode_block import decode_declaration
from platform_assets.engines.decoding.engine import DecodedFiles, DecodeOrder
from platform_assets.errors import ConcurrentLoadError, ReplacedRowsError, SchemaChangeError
from platform_assets.lake import decoded_table, holdings, load_log
from platform_assets.lake.dead_letters import rows as dead_rows
from platform_assets.lake.decoded_table import fingerprint
from platform_assets.lake.location import Folder
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets_tests.support.decoded_topic import DecodedTopic, InProcessEngine, order, tables_without_spark
from platform_assets_tests.support.erasures import MadeTopic

OLD = DecodeDeclaration(FormatSpec("json", {"schema": "at STRING, amount INT"}))


class Interrupted(InProcessEngine):
    """Runs another action once, right after its own files are written."""

    then: Callable[[], object] = staticmethod(lambda: None)

    def decode(self, order: DecodeOrder) -> DecodedFiles:
        written = super().decode(order)
        then, Interrupted.then = Interrupted.then, staticmethod(lambda: None)
        then()
        return written


def interrupted(topic: DecodedTopic, then: Callable[[], object]) -> WindowDecoder:
    """Return a decoder with the current declaration; `then` happens while it decodes."""
    Interrupted.then = staticmethod(then)
    return WindowDecoder(topic.declaration, topic.ledger, Interrupted(topic.lake, tables_without_spark))


def begun_again(topic: DecodedTopic, schema: str) -> DecodeDeclaration:
    """Return a declaration that replaces the table's current columns."""
    held = decoded_table.held(topic.lake.table(topic.declaration.decoded_table))
    return DecodeDeclaration(FormatSpec("json", {"schema": schema}), replaces=fingerprint(held))


@pytest.mark.parametrize("schema", ["at TIMESTAMP, amount INT", "at STRING, qty INT"])
def test_files_of_former_columns_are_not_put_into_a_table_that_was_begun_again(tmp_path: Path, schema: str) -> None:
    topic = DecodedTopic(tmp_path, "orders", OLD)
    values = [b'{"at": "2026-01-0%dT00:00:00Z", "amount": 1, "qty": 2}' % (n + 1) for n in range(3)]
    first, second, third = topic.load(*[[value] for value in values])
    topic.decode(first)
    newer = DecodedTopic(tmp_path, "orders", begun_again(topic, schema))
    newer.windows = topic.windows
    old = interrupted(topic, lambda: newer.decode(first, second))
    with pytest.raises(SchemaChangeError):
        old.decode(third)
    table = DeltaTable(tmp_path / "decoded" / "orders").to_pyarrow_table()
    assert set(table["window"].to_pylist()) == {first, second}
    newer.decode(third)
    assert checks.conserved(checks.windows_of(newer.declaration, newer.ledger, None)).passed
    assert DeltaTable(tmp_path / "decoded" / "orders").to_pyarrow_table().num_rows == 3


def test_columns_that_rows_cannot_be_decoded_into_replace_none_until_their_loss_is_accepted(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders")
    first, second, third = topic.load([order(1), order(2)], [b"broken"], [order(3)])
    topic.decode()
    text = DecodeDeclaration(FormatSpec("json", {"schema": "id STRING"}))

    def declared_again(declared: DecodeDeclaration) -> DecodedTopic:
        again = DecodedTopic(tmp_path, "orders", declared)
        again.windows = topic.windows
        return again

    with pytest.raises(SchemaChangeError) as refused:
        declared_again(text).decode(second)
    said = str(refused.value)
    assert said.index("removes its 3 rows in 2 windows") < said.index("`replaces: ")
    assert f"Version {refused.value.version} of the table keeps these rows" in said
    before = DeltaTable(tmp_path / "decoded" / "orders")
    # Also for a window without anything to lose.
    with pytest.raises(ReplacedRowsError) as lost:
        declared_again(replace(text, replaces=refused.value.held)).decode(second)
    assert f"window {first} has 2 rows in the table and would have 0" in str(lost.value)
    assert "cannot hold some rows of 2 of the 2 windows that were tried" in str(lost.value)
    assert "3 rows in 2 windows. Nothing was changed" in str(lost.value)
    now = DeltaTable(tmp_path / "decoded" / "orders")
    assert (now.version(), sorted(now.file_uris())) == (before.version(), sorted(before.file_uris()))
    assert {path.as_posix() for path in (tmp_path / "decoded" / "orders").rglob("*.parquet")} == set(now.file_uris())
    # As it says.
    (accepted,) = re.findall(r"`replaces: (\{.*?\})`", str(lost.value))
    block = {"value": {"format": "json", "schema": "id STRING"}, "replaces": yaml.safe_load(accepted)}
    declared_again(decode_declaration(block)).decode(first, second, third)
    table = DeltaTable(tmp_path / "decoded" / "orders")
    assert table.to_pyarrow_table().num_rows == 0
    old = DeltaTable(tmp_path / "decoded" / "orders", version=refused.value.version)
    assert old.to_pyarrow_table().num_rows == 3


def test_rows_that_only_windows_in_the_middle_would_lose_are_found_and_the_error_says_what_was_tried(
    tmp_path: Path,
) -> None:
    topic = DecodedTopic(tmp_path, "orders", DecodeDeclaration(FormatSpec("json", {"schema": "id INT"})))
    keys = topic.load(*[[b'{"id": %d}' % (300 if n == 4 else n)] for n in range(11)])
    topic.decode()
    smaller = DecodeDeclaration(FormatSpec("json", {"schema": "id TINYINT"}))

    def declared_again(declared: DecodeDeclaration) -> DecodedTopic:
        again = DecodedTopic(tmp_path, "orders", declared)
        again.windows = topic.windows
        return again

    with pytest.raises(SchemaChangeError) as refused:
        declared_again(smaller).decode(keys[0])
    with pytest.raises(ReplacedRowsError) as lost:
        declared_again(replace(smaller, replaces=refused.value.held)).decode(keys[0])
    said = str(lost.value)
    assert (
        f"rows of 1 of the 6 windows that were tried: window {keys[4]} has 1 rows in the table and would have 0" in said
    )
    assert "11 rows in 11 windows; the result for the other 5 is not known" in said


def test_what_is_declared_beside_the_former_columns_leaves_every_row(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders")
    first, second = topic.load([order(1), order(2)], [b'{"id": 3, "amount": 1, "text": "x"}'])
    topic.decode(first)
    schema = f"{topic.declared.value.options['schema']}, text STRING"
    more = DecodedTopic(tmp_path, "orders", DecodeDeclaration(FormatSpec("json", {"schema": schema})))
    more.windows = topic.windows
    more.decode(second)
    assert DeltaTable(tmp_path / "decoded" / "orders").to_pyarrow_table().num_rows == 3


def test_columns_that_hold_every_row_replace_the_former_ones_as_ever(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders", OLD)
    (key,) = topic.load([b'{"at": "2026-01-01T00:00:00Z", "amount": 1, "qty": 2}'])
    topic.decode()
    newer = DecodedTopic(tmp_path, "orders", begun_again(topic, "at STRING, qty INT"))
    newer.windows = topic.windows
    newer.decode(key)
    assert DeltaTable(tmp_path / "decoded" / "orders").to_pyarrow_table()["qty"].to_pylist() == [2]


def test_a_run_that_was_overtaken_by_another_declaration_leaves_what_that_one_made(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders")
    (key,) = topic.load([order(1)])
    newer = DecodedTopic(tmp_path, "orders", replace(topic.declared, revision=2))
    newer.windows = topic.windows
    with pytest.raises(ConcurrentLoadError):
        interrupted(topic, lambda: newer.decode(key)).decode(key)
    held = newer.ledger.receipts(newer.declaration.decoded_table)[key].made_from
    assert held is not None
    assert held.declaration == newer.declared.digest_of(key)


def test_a_run_that_was_overtaken_by_its_own_declaration_compares(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders")
    (key,) = topic.load([order(1), b"broken"])
    assert interrupted(topic, lambda: topic.decode(key)).decode(key).outcome == "unchanged"


@pytest.mark.parametrize(
    ("seen", "known", "found"),
    [
        (("decoded", "decoded"), True, ["could not tell"]),
        (("receipts", "receipts"), True, ["could not tell"]),
        (("decoded", "receipts"), False, ["could not tell"]),
        (("decoded", "end"), False, []),
        (("receipts", "end"), True, ["could not tell"]),
    ],
)
def test_a_check_calls_no_window_wrong_that_another_load_replaces(
    tmp_path: Path, seen: tuple[str, str], known: bool, found: list[str]
) -> None:
    """The check reads twice: when the other load has reached each of the two steps in `seen`. `known`: Dagster knows
    the load's run."""
    topic = DecodedTopic(tmp_path, "orders")
    first, _ = topic.load([order(1), b"broken"], [order(2)])
    topic.decode()
    repaired = replace(topic.declared, repairs=(Repair(first, 0, 1, order(3).decode()),))
    newer = DecodedTopic(tmp_path, "orders", repaired)
    reached, go_on = queue.Queue[str](), threading.Semaphore(0)

    def wait(step: str) -> None:
        reached.put(step)
        assert go_on.acquire(timeout=60)

    def load() -> None:
        engine = InProcessEngine(newer.lake, tables_without_spark)
        WindowDecoder(newer.declaration, newer.ledger, engine, before_step=wait).decode(first)
        reached.put("end")

    def come_to(step: str) -> None:
        while (at := reached.get(timeout=60)) != step:
            assert at != "end"
            go_on.release()

    def in_flight(keys: list[str]) -> frozenset[str]:
        assert keys == [first]
        if seen[1] != seen[0]:
            go_on.release()
            come_to(seen[1])
        return frozenset(keys) if known else frozenset()

    with ThreadPoolExecutor(1) as other:
        loading = other.submit(load)
        come_to(seen[0])
        check_result = checks.conserved(checks.confirmed_windows(newer.declaration, newer.ledger, None, in_flight))
        go_on.release(5)
        loading.result(60)
    assert [f.kind for f in check_result.findings] == found
    assert not check_result.alarming
    assert checks.conserved(checks.windows_of(newer.declaration, newer.ledger, None)).passed


def test_a_window_that_is_wrong_and_stays_so_is_called_wrong(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders")
    first, _ = topic.load([order(1), b"broken"], [order(2)])
    topic.decode()
    DeltaTable(tmp_path / "decoded" / "orders").delete(f"window = '{first}'")
    check_result = checks.conserved(
        checks.confirmed_windows(topic.declaration, topic.ledger, None, lambda keys: frozenset())
    )
    assert [(f.window, f.kind) for f in check_result.findings] == [(first, "not conserved")]
    assert check_result.alarming


def expire(folder: Path, upto: int) -> None:
    """Let the log expire as delta-rs does when log files are older than a month: only a checkpoint and later files are
    left."""
    DeltaTable(folder).create_checkpoint()
    for file in (folder / "_delta_log").glob("*.json"):
        if int(file.stem) <= upto:
            file.unlink()


def test_a_window_whose_load_has_left_the_log_is_decoded_sent_and_has_a_way_back(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders")
    first, _ = topic.load([order(1), b"broken"], [order(2)])
    raw = tmp_path / "raw" / "orders"
    expire(raw, load_log.version(topic.lake.table(topic.declaration.raw_table)) - 1)
    assert topic.decode(first)[0].outcome == "loaded"
    assert topic.decode(first)[0].outcome == "unchanged"

    letters = topic.lake.table(topic.declaration.dead_letter_table)
    receipt = topic.ledger.receipts(topic.declaration.dead_letter_table)[first]
    topic.decode()
    expire(tmp_path / "dead_letters" / "orders", load_log.version(letters) - 1)
    assert receipt.table_version is not None
    version = holdings.version_with(letters, first, receipt.files_digest, receipt.table_version)
    assert [row["value"] for row in dead_rows(letters, first, version)] == [b"broken"]

    # Damaged, and in no version of the log: the result is None, not an error.
    folder = topic.lake.table(topic.declaration.raw_table)
    held = topic.ledger.receipts(topic.declaration.raw_table)[first]
    DeltaTable(raw).delete(f"window = '{first}'")
    assert held.table_version is not None
    assert holdings.files_if_kept(folder, first, held.table_version) is None


def test_a_window_that_an_accepted_loss_left_fewer_rows_is_decoded_again_where_the_check_says_so(
    tmp_path: Path,
) -> None:
    topic = DecodedTopic(tmp_path, "orders")
    (key,) = topic.load([order(1), order(2), b"broken"])
    topic.decode(key)
    # What `accept-loss` leaves of a damaged window: other files, and a receipt of fewer rows.
    left = DecodedTopic(tmp_path / "left", "orders")
    left.load([order(1), order(2)])
    receipt = left.ledger.receipts(left.declaration.raw_table)[key]
    source, target = tmp_path / "left" / "raw" / "orders", tmp_path / "raw" / "orders"
    for path in source.rglob("*.parquet"):
        (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        (target / path.relative_to(source)).write_bytes(path.read_bytes())
    _take_over(target, source, key)
    version = load_log.version(topic.lake.table(topic.declaration.raw_table))
    topic.ledger.record_receipts([replace(receipt, table_version=version)])
    check_result = checks.conserved(checks.windows_of(topic.declaration, topic.ledger, None))
    assert not check_result.passed
    assert topic.decode(key)[0].outcome == "replaced"
    assert checks.conserved(checks.windows_of(topic.declaration, topic.ledger, None)).passed
    assert DeltaTable(tmp_path / "decoded" / "orders").to_pyarrow_table().num_rows == 2


def _take_over(table: Path, other: Path, key: str) -> None:
    """Make `table` contain the files of the window that were copied into it from `other`."""
    held, actions = DeltaTable(table), pa.table(DeltaTable(other).get_add_actions(flatten=True))
    adds: list[AddAction | RemoveAction] = [
        AddAction(unquote(action["path"]), action["size_bytes"], {"window": key}, 0, True, "{}")
        for action in actions.to_pylist()
    ]
    held.create_write_transaction(
        adds, "overwrite", held.schema(), partition_by=["window"], partition_filters=[("window", "=", key)]
    )


def test_the_version_with_the_raw_rows_is_found_by_reading_the_tables_files_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = MadeTopic(tmp_path, "people")
    (window,) = topic.seal([{0: [(b"k", b"v")]}])
    topic.fill([window], decode=False)
    folder, raw = topic.lake.table(topic.declaration.raw_table), topic.receipts()[window.key]
    read: list[str] = []
    actions = holdings.actions

    def counted(path: Folder, version: int | None = None, **among: Any) -> Any:
        read.append(path.name)
        return actions(path, version, **among)

    with monkeypatch.context() as patched:
        patched.setattr(holdings, "actions", counted)
        decoder = topic.decoder()
        found = decoder._version_with(raw, raw.table_version or 0)
    assert (found, read) == (raw.table_version, [folder.name])
