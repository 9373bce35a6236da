"""Output of `platform-assets status` for decoded tables: windows, dead letters, checks, and the reasons why windows are
not decoded."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.storage.tags import PARTITION_NAME_TAG
from deltalake import DeltaTable
from rich.console import Console

from platform_assets.checks.decoded import CONSERVATION, SHARE
from platform_assets.checks.registry import CHECKS
from platform_assets.cli.status_table import print_status
from platform_assets.errors import NotLoadedError, PlatformError, SchemaChangeError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import decoded_table
from platform_assets.lake.decoded_table import fingerprint
from platform_assets.ledger.entries import COLUMNS_OF_NEWEST
from platform_assets.ledger.known_files import KnownFiles
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets.orchestration import status
from platform_assets.orchestration.dagster_records import FAILURES_TAG, TABLE_TAG
from platform_assets.orchestration.decoded_status import LATELY, DecodedStatus
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.planning import Failures
from platform_assets.orchestration.status import Status
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from testbed.samples import edge

TOPIC = "orders"


@pytest.fixture
def topic(tmp_path: Path) -> DecodedTopic:
    return DecodedTopic(tmp_path, TOPIC)


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as made:
        yield made


def seen(topic: DecodedTopic, instance: dg.DagsterInstance | None = None, declared: bool = True) -> Status:
    declaration = topic.declaration if declared else replace(topic.declaration, decode=None)
    cluster = Cluster(None, ClientSettings("localhost:1"))
    now = edge(len(topic.windows)) if topic.windows else edge(0)
    return status.collect([declaration], topic.ledger, cluster, instance, (), now, "no broker in this test")


def of_decoded(found: Status) -> DecodedStatus:
    (table,) = found.tables
    assert table.error is None
    assert table.decoded is not None
    return table.decoded


def text(found: Status) -> str:
    console = Console(file=io.StringIO(), width=250)
    print_status(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def failed_run(topic: DecodedTopic, instance: dg.DagsterInstance, key: str, error: PlatformError) -> None:
    table = topic.declaration.decoded_table
    tags = {PARTITION_NAME_TAG: key, TABLE_TAG: table.name, FAILURES_TAG: Failures.of({key: error}).to_tag()}
    keys = frozenset([table_key(table)])
    instance.add_run(
        dg.DagsterRun(
            "__ASSET_JOB",
            str(uuid.uuid4()),
            status=dg.DagsterRunStatus.FAILURE,
            tags=tags,
            asset_selection=keys,
        )
    )


def test_windows_rows_and_dead_letters_are_counted(topic: DecodedTopic, instance: dg.DagsterInstance) -> None:
    keys = topic.load([order(1), order(2), b"broken"], [order(3)], [], [order(4)])
    topic.decode(*keys[:3], instance=instance)
    found = seen(topic, instance)
    d = of_decoded(found)
    assert (d.table, d.windows_decoded, d.windows_waiting, d.windows_failed) == (f"decoded/{TOPIC}", 3, 1, 0)
    assert (d.rows, d.dead_letters, d.newest_window) == (3, 1, keys[2])
    assert (d.recent_windows, d.recent_records, d.recent_dead_letters) == (2, 4, 1)
    assert [(w.window, w.state) for w in d.undecoded] == [(keys[3], "to be asked for")]
    assert [c.name for c in d.checks] == [CONSERVATION, SHARE]
    assert found.to_json()["tables"][0]["decoded"]["windows_waiting"] == 1


def test_only_the_newest_windows_count_as_recent(topic: DecodedTopic) -> None:
    topic.load([b"broken"], *([order(n)] for n in range(LATELY)))
    topic.decode()
    d = of_decoded(seen(topic))
    assert (d.dead_letters, d.recent_windows, d.recent_records, d.recent_dead_letters) == (1, LATELY, LATELY, 0)


def test_receipts_are_read_once_a_table_and_nothing_of_them_that_is_not_shown(
    topic: DecodedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.load([order(1), b"broken"], [order(2)], [order(3)])
    topic.decode()
    read: list[tuple[str, frozenset[str]]] = []
    plain = KnownFiles.rows

    def counted(files: KnownFiles, value: str, columns: list[str] | None = None, **times: Any) -> pa.Table:
        found = plain(files, value, columns, **times)
        read.append((value, frozenset(found.column_names)))
        return found

    monkeypatch.setattr(KnownFiles, "rows", counted)
    of_table = of_decoded(seen(topic))
    assert (of_table.rows, of_table.dead_letters, of_table.windows_stale) == (3, 1, 0)
    # Two columns always show which windows have an entry.
    of_tables = [
        (name, columns)
        for name, columns in read
        if name.endswith(f"/{TOPIC}") and not name.startswith("raw/") and columns != {"window_start", "kind"}
    ]
    needed = frozenset([*COLUMNS_OF_NEWEST, "kind", "rows"])
    assert of_tables == [(f"decoded/{TOPIC}", needed | {"made_from"}), (f"dead_letters/{TOPIC}", needed)]


def test_a_topic_that_is_not_decoded_has_no_such_tables(topic: DecodedTopic) -> None:
    topic.load([order(1)])
    (table,) = seen(topic, declared=False).tables
    assert table.decoded is None


def test_nothing_sealed_and_nothing_decoded_is_told_as_none(topic: DecodedTopic) -> None:
    d = of_decoded(seen(topic))
    assert (d.windows_decoded, d.windows_waiting, d.newest_window, d.checks[0].passed) == (0, 0, None, None)
    topic.load([order(1)])
    assert of_decoded(seen(topic)).windows_waiting == 1


def healthy(found: Status) -> bool:
    """Return True if nothing is wrong except that these tests have no broker."""
    return replace(found, tables=tuple(replace(t, broker_error=None, problems=()) for t in found.tables)).healthy


def test_a_warning_is_shown_and_an_error_needs_attention(topic: DecodedTopic, instance: dg.DagsterInstance) -> None:
    keys = topic.load([order(1), order(2), order(3), b"broken"], [order(4), b"broken"])
    topic.decode(keys[0], instance=instance)
    found = seen(topic, instance)
    share = of_decoded(found).checks[1]
    assert (share.passed, share.warning, healthy(found)) == (False, True, True)
    assert f"{SHARE} WARNS" in text(found)
    topic.decode(keys[1], instance=instance)
    found = seen(topic, instance)
    share = of_decoded(found).checks[1]
    assert (share.passed, share.warning, healthy(found)) == (False, False, False)
    shown = text(found)
    assert f"{SHARE} FAILED" in shown
    assert f"decoded/{TOPIC}: {SHARE}: 1 of 2 records are dead letters" in shown
    assert f"platform-assets dead-letters dead_letters/{TOPIC}" in shown


def test_dead_letters_that_no_check_names_are_shown(topic: DecodedTopic, instance: dg.DagsterInstance) -> None:
    topic.declared = replace(topic.declared, warn_share=0.3)
    topic.load([order(1), order(2), order(3), b"broken"])
    topic.decode(instance=instance)
    found = seen(topic, instance)
    assert healthy(found)
    assert f"dead_letters/{TOPIC}: 1 of 4 records in the newest 1 window; 1 in all" in text(found)


def test_a_lost_row_needs_attention(topic: DecodedTopic, instance: dg.DagsterInstance) -> None:
    (key,) = topic.load([order(1), order(2)])
    topic.decode(instance=instance)
    assert healthy(seen(topic, instance))
    DeltaTable(topic.root / "decoded" / TOPIC).delete("id = 1")
    topic.evaluate_checks(instance, key)
    assert not healthy(seen(topic, instance))
    assert f"{CONSERVATION} FAILED" in text(seen(topic, instance))


def test_runs_that_fail_to_decode_are_named_with_their_error(topic: DecodedTopic, instance: dg.DagsterInstance) -> None:
    first, second = topic.load([order(1)], [order(2)])
    error = SchemaChangeError(f"decoded/{TOPIC}", ["amount DECIMAL(12, 2) is dropped"], "abc")
    failed_run(topic, instance, first, error)
    found = seen(topic, instance)
    d = of_decoded(found)
    assert (d.windows_failed, d.windows_waiting, healthy(found)) == (1, 1, False)
    assert [(w.window, w.state, w.tries) for w in d.undecoded] == [
        (first, "waits for somebody", 1),
        (second, "to be asked for", 0),
    ]
    (problem,) = d.problems
    assert f"window {first} has needed attention" in problem
    assert "amount DECIMAL(12, 2) is dropped" in problem
    assert f"decoded/{TOPIC}: window {first} has needed attention" in text(found)
    failed_run(topic, instance, second, NotLoadedError(f"decoded/{TOPIC}", f"raw/{TOPIC}", second))
    assert any(f"1 window ({second}) could not be decoded" in p for p in of_decoded(seen(topic, instance)).problems)
    topic.decode()
    assert of_decoded(seen(topic, instance)).problems == ()


def test_windows_that_a_check_of_the_raw_table_holds_back_are_named(
    topic: DecodedTopic, instance: dg.DagsterInstance
) -> None:
    (key,) = topic.load([order(1)])
    assert of_decoded(seen(topic, instance)).problems == ()
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            table_key(topic.declaration.raw_table), next(iter(CHECKS)), False, severity=dg.AssetCheckSeverity.ERROR
        )
    )
    (problem,) = of_decoded(seen(topic, instance)).problems
    assert f"1 window ({key}) not decoded, because a check of raw/{TOPIC} failed" in problem


def test_windows_whose_rows_went_with_former_columns_are_named_with_what_brings_them_back(topic: DecodedTopic) -> None:
    first, second = topic.load([order(1)], [order(2), order(3)])
    topic.decode()
    held = decoded_table.held(topic.lake.table(topic.declaration.decoded_table))
    topic.declared = DecodeDeclaration(
        FormatSpec("json", {"schema": "id STRING"}), replaces=fingerprint(held), loses_rows=True
    )
    topic.decode(second)
    found = of_decoded(seen(topic))
    assert (found.windows_decoded, found.rows, found.healthy) == (1, 0, False)
    (problem,) = found.problems
    assert f"1 window between {first} and {first} had rows that are no longer in decoded/orders" in problem
    topic.decode(first)
    assert of_decoded(seen(topic)).healthy


def test_windows_of_another_declaration_are_counted_and_need_no_attention(topic: DecodedTopic) -> None:
    keys = topic.load([order(1)], [order(2)], [])
    topic.decode()
    assert of_decoded(seen(topic)).windows_stale == 0
    topic.declared = replace(topic.declared, repairs=(Repair(keys[1], 0, 1, '{"id": 7}'),))
    assert of_decoded(seen(topic)).windows_stale == 1
    topic.decode(keys[1])
    assert of_decoded(seen(topic)).windows_stale == 0
    topic.declared = replace(topic.declared, revision=2)
    assert of_decoded(seen(topic)).windows_stale == 2
    assert healthy(seen(topic))
    assert "2 windows decoded with an earlier declaration" in text(seen(topic))


@pytest.mark.parametrize("width", [60, 250])
def test_the_row_of_a_decoded_table_has_its_figures(topic: DecodedTopic, width: int) -> None:
    topic.load([order(1), order(2), b"broken"], [order(3)])
    topic.decode(topic.windows[0].key)
    console = Console(file=io.StringIO(), width=width)
    print_status(seen(topic), console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert f"decoded/{TOPIC}" in shown
    assert "1/2" in shown
    assert "0 of 2 ran" in shown
