"""Decoded tables in Dagster: one run loads and decodes, checks show dead letters, and missing windows are requested
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from deltalake import DeltaTable

from platform_assets.checks import decoded as checks
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Author
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets.model.expectations import Expectation
from platform_assets.model.windows import closed_edges, key_of, milliseconds
from platform_assets.orchestration import dagster_records, events, names, run_steps, status
from platform_assets.orchestration.names import OUTCOME, table_key
from platform_assets.windows.decide import parking
from platform_assets_tests.support.daemon import Daemon
from platform_assets_tests.support.damage import delete_rows
from platform_assets_tests.support.runs_of import failure_of, materializations, materialize, minutes_ago, plain
from platform_assets_tests.support.streams import ANY_TIME
from testbed.loads import EVERY_MINUTE, START, Record, TopicLake
from testbed.project import definitions

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

TEXT = DecodeDeclaration(FormatSpec("string"), warn_share=0.1, fail_share=0.3)
SMALL = replace(TEXT, value=FormatSpec("string", {"max_bytes": 3}))
LETTERS = Expectation("value_pattern", "pattern", ("value",), pattern="[a-z]*")
ONCE = Expectation("value_unique", "unique", ("value",))


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setattr(run_steps, "_RETRY_AFTER_SECONDS", 0)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


def decoded_lake(lake: LakeMaker, declared: DecodeDeclaration = TEXT) -> TopicLake:
    lk = lake(partitions=2, start=minutes_ago(5))
    lk.declare(declared)
    return lk


def evaluations(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    return {e.check_name: e for e in result.get_asset_check_evaluations()}


def rows(lk: TopicLake, kind: str) -> int:
    return len(DeltaTable(lk.root / kind / lk.topic).to_pyarrow_table())


@pytest.mark.broker
def test_one_run_loads_and_decodes(lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance) -> None:
    """A corrected declaration redrives dead letters: first they fail a check, and after the redrive they are rows."""
    lk = decoded_lake(lake, SMALL)
    key = lk.window_of([Record(b"long \x01 text"), Record(b"ok"), Record(None), Record(b"x", partition=1)])
    result = materialize(lk, spark_remote, [key], instance)
    assert result.success
    found = evaluations(result)
    assert found[checks.CONSERVATION].passed
    share = found[checks.SHARE]
    assert (share.passed, share.severity) == (False, dg.AssetCheckSeverity.WARN)
    (sample,) = plain(share.metadata["samples"])
    assert (sample["reason"], sample["count"], sample["value"]) == ("too_large", 1, r"long \x01 text")
    assert "dead-letters dead_letters/" in share.description
    values = materializations(instance, table_key(lk.declaration.decoded_table))[key]
    assert (values[events.ROWS], values[OUTCOME]) == (3, "loaded")
    assert values[events.DECLARATION] == SMALL.digest
    assert "1 dead letters" in values[events.SUMMARY]
    letters = materializations(instance, table_key(lk.declaration.dead_letter_table))[key]
    assert (letters[events.ROWS], letters[events.RAW_LOAD]) == (1, values[events.RAW_LOAD])

    lk.declare(TEXT)
    result = materialize(lk, spark_remote, [key], instance)
    assert result.success
    assert all(e.passed for e in evaluations(result).values())
    assert materializations(instance, table_key(lk.declaration.decoded_table))[key][OUTCOME] == "replaced"
    assert (rows(lk, "decoded"), rows(lk, "dead_letters")) == (4, 0)


@pytest.mark.broker
def test_too_many_dead_letters_and_damage_are_errors(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    lk = decoded_lake(lake, SMALL)
    keys = [lk.window_of([Record(b"too long"), Record(b"ok")]), lk.window_of([Record(b"ok")])]
    result = materialize(lk, spark_remote, keys, instance)
    assert not result.success, "a blocking check that fails is an error of its run"
    found = evaluations(result)
    assert found[checks.CONSERVATION].passed
    assert (found[checks.SHARE].passed, found[checks.SHARE].severity) == (False, dg.AssetCheckSeverity.ERROR)
    values = materializations(instance, table_key(lk.declaration.decoded_table))
    assert [values[key][events.ROWS] for key in keys] == [1, 1]
    DeltaTable(lk.root / "decoded" / lk.topic).delete(f"window = '{keys[0]}'")
    windows = checks.windows_of(lk.declaration, lk.ledger)
    (finding,) = checks.conserved(windows).findings
    assert (finding.window, finding.kind) == (keys[0], "not conserved")
    assert finding.remedy == f"Materialize partition {keys[0]} of decoded/{lk.topic}: the run decodes the window again."
    materialize(lk, spark_remote, [keys[0]], instance)
    assert checks.conserved(checks.windows_of(lk.declaration, lk.ledger)).passed


@pytest.mark.long
@pytest.mark.broker
def test_what_is_expected_of_rows_warns_until_they_are_corrected(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    """The message names a window that was decoded earlier, and the command that measures the window without changing
    its rows."""
    lk = decoded_lake(lake)
    older = lk.window_of([Record(b"A")])
    assert materialize(lk, spark_remote, [older], instance).success
    judged = replace(TEXT, expect=(LETTERS, ONCE))
    lk.declare(judged)
    key = lk.window_of([Record(b"ok"), Record(b"ok"), Record(b"x\x1b1", partition=1), Record(None)])
    result = materialize(lk, spark_remote, [key], instance)
    assert result.success, "a warning fails nothing"
    found = evaluations(result)
    assert {name for name, e in found.items() if not e.passed} >= {LETTERS.name, ONCE.name}
    pattern, unique = found[LETTERS.name], found[ONCE.name]
    assert pattern.severity is unique.severity is dg.AssetCheckSeverity.WARN
    assert plain(pattern.metadata["samples"]) == [{"window": key, "partition": 1, "offset": 0, "value": r"x\x1b1"}]
    assert plain(pattern.metadata["windows"]) == [{"window": key, "rows": 3, "failing": 1}]
    assert (plain(pattern.metadata["rows"]), plain(pattern.metadata["failing"])) == (3, 1)
    assert "1 of 3 rows fail (`value matches '[a-z]*' as a whole`): 1 in window" in pattern.description
    (sample,) = plain(unique.metadata["samples"])
    assert (sample["offset"], sample["value"]) == (2, "ok: 2 rows, the first at partition 0 offset 1")
    assert "the producer sent the same key again" in unique.description
    load = f"`platform-assets load decoded/{lk.topic} {older}`"
    assert f"1 window not measured with this declaration (newest: {older}). Run {load}" in pattern.description

    lk.declare(replace(judged, repairs=(Repair(key, 0, 2, "other"), Repair(key, 1, 0, "x"))))
    result = materialize(lk, spark_remote, [key], instance)
    assert result.success
    assert all(e.passed for e in evaluations(result).values())
    before = rows(lk, "decoded")
    result = materialize(lk, spark_remote, [older], instance)
    assert materializations(instance, table_key(lk.declaration.decoded_table))[older][OUTCOME] == "unchanged"
    assert rows(lk, "decoded") == before
    found = evaluations(result)
    assert (found[LETTERS.name].passed, found[ONCE.name].passed) == (False, True)
    assert plain(found[LETTERS.name].metadata["windows_not_measured"]) == 0


@pytest.mark.broker
def test_what_is_expected_with_severity_error_fails_the_run(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    """Only the run's own windows count: a window that failed in an earlier run is shown, but does not fail later runs."""
    lk = decoded_lake(lake, replace(TEXT, expect=(replace(LETTERS, severity="error"), ONCE)))
    key = lk.window_of([Record(b"1"), Record(b"a")])
    result = materialize(lk, spark_remote, [key], instance)
    assert not result.success
    found = evaluations(result)
    assert (found[LETTERS.name].passed, found[LETTERS.name].severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert rows(lk, "decoded") == 2
    key = lk.window_of([Record(b"a")])
    result = materialize(lk, spark_remote, [key], instance)
    assert result.success
    assert evaluations(result)[ONCE.name].passed, "a key is unique within a window"
    assert plain(evaluations(result)[LETTERS.name].metadata["other_windows_failing"]) == 1


def test_each_expectation_is_a_check(tmp_path: Path) -> None:
    declared = replace(TEXT, expect=(replace(LETTERS, severity="error"), ONCE))
    declaration = TopicDeclaration("orders", EVERY_MINUTE, START, decode=declared)
    graph = definitions(declaration, "localhost:1", tmp_path, "sc://localhost:1").resolve_asset_graph()
    keys = [dg.AssetCheckKey(table_key(declaration.decoded_table), name) for name in (LETTERS.name, ONCE.name)]
    assert set(names.check_keys(declaration)) >= set(keys)
    specs = [graph.get_check_spec(key) for key in keys]
    assert [spec.blocking for spec in specs] == [True, False]
    assert specs[1].description == "Expected in each loaded window: `(value) is unique`."
    assert graph.get(table_key(declaration.decoded_table)).code_version == TEXT.digest


@pytest.mark.broker
def test_what_is_loaded_and_not_decoded_is_asked_for(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    """The decode declaration was added after these windows were loaded. New windows are decoded by the run that loads
    them."""
    now = datetime.now(UTC)
    edges = closed_edges("* * * * *", now - timedelta(minutes=7), now)
    lk = lake(config=ANY_TIME, start=edges[0])
    lk.send([Record(b"%d" % n, timestamp=milliseconds(edge)) for n, edge in enumerate(edges[:3])])
    d = Daemon(lk, instance, spark_remote, lk.declaration, now=edges[3] + timedelta(seconds=5))
    d.tick()
    assert d.sealed == d.loaded
    assert len(d.sealed) == 3
    d.declaration = replace(lk.declaration, decode=TEXT)
    assert d.tick() == 1
    assert d.newest_succeeded()
    table = d.declaration.decoded_table
    assert set(lk.ledger.receipts(table)) == d.sealed
    raw = instance.fetch_materializations(table_key(d.declaration.raw_table), limit=100).records
    assert len(raw) == len(d.sealed), "decoding alone loads nothing again"
    assert set(materializations(instance, table_key(table))) == d.sealed
    assert rows(lk, "decoded") == 3
    lk.send([Record(b"later", timestamp=milliseconds(edges[4]))])
    d.now, before = now, len(d.results)
    d.tick()
    assert len(d.results) == before + 1
    assert set(lk.ledger.receipts(table)) == d.sealed == d.loaded
    assert set(materializations(instance, table_key(d.declaration.dead_letter_table))) == d.sealed
    assert rows(lk, "decoded") == 4
    assert d.tick() == 0


@pytest.mark.broker
def test_a_window_without_offsets_leaves_what_the_checks_have_found(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    """Dagster shows a check as not evaluated if the check's newest evaluation is older than the newest materialization."""
    now = datetime.now(UTC)
    edges = closed_edges("* * * * *", now - timedelta(minutes=7), now)
    lk = lake(config=ANY_TIME, start=edges[0])
    first = milliseconds(edges[0])
    lk.send([Record(value, timestamp=first) for value in (b"too long", b"a", b"b", b"c", b"d")])
    declared = replace(lk.declaration, decode=replace(SMALL, expect=(replace(LETTERS, pattern="[a-c]"), ONCE)))
    d = Daemon(lk, instance, spark_remote, declared, now=edges[1] + timedelta(seconds=5))
    assert d.tick() == 1
    table = table_key(declared.decoded_table)
    keys = [dg.AssetCheckKey(table, name) for name in (*checks.NAMES, LETTERS.name, ONCE.name)]
    before = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    d.now = edges[2] + timedelta(seconds=5)
    assert d.tick() == 0
    newest = instance.fetch_materializations(table, limit=1).records[0]
    assert newest.partition_key == key_of(edges[1])
    after = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    for key in keys:
        # Dagster's rule: an evaluation without a run belongs to the newest materialization if that has no run either.
        assert after[key].run_id == newest.run_id != before[key].run_id
        event = after[key].event
        assert event is not None
        assert event.asset_check_evaluation is not None
        assert event.asset_check_evaluation.passed is (key.name in (checks.CONSERVATION, ONCE.name))
        if key.name == LETTERS.name:
            assert plain(event.asset_check_evaluation.metadata["failing"]) == 1
        if key.name == checks.SHARE:
            assert event.asset_check_evaluation.severity is dg.AssetCheckSeverity.WARN
            assert "1 of 5 records are dead letters" in (event.asset_check_evaluation.description or "")


@pytest.mark.long
@pytest.mark.broker
def test_windows_of_an_earlier_schedule_are_decoded(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    now = datetime.now(UTC)
    edges = closed_edges("* * * * *", now - timedelta(minutes=6), now)
    lk = lake(config=ANY_TIME, start=edges[0])
    lk.send([Record(b"%d" % n, timestamp=milliseconds(edge)) for n, edge in enumerate(edges[:3])])
    d = Daemon(lk, instance, spark_remote, lk.declaration)
    d.ticks(timedelta(minutes=1))
    d.declaration = replace(lk.declaration, decode=TEXT, schedule="*/30 * * * *")
    assert d.ticks(timedelta(minutes=1)) >= 1
    assert set(lk.ledger.receipts(d.declaration.decoded_table)) == d.sealed
    assert set(materializations(instance, table_key(d.declaration.decoded_table))) >= d.loaded
    assert rows(lk, "decoded") == 3


@pytest.mark.broker
def test_failing_check_of_the_raw_table_holds_back_what_is_decoded(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    """This holds in the run that loads, and for the runs that the sensor requests."""
    lk = decoded_lake(lake)
    key = lk.window_of([Record(b"%d" % n) for n in range(4)])
    lk.load(key)
    delete_rows(lk, key)
    second = lk.window_of([Record(b"v")])
    result = materialize(lk, spark_remote, [second], instance)
    assert not result.success
    assert lk.ledger.receipts(lk.declaration.decoded_table) == {}
    blocking = [k for k in definitions(lk.declaration, "x", lk.root, "sc://x").resolve_asset_graph().asset_check_keys
                if k.asset_key == table_key(lk.declaration.raw_table)]  # fmt: skip
    assert dagster_records.blocked_by(instance, blocking)
    assert materialize(lk, spark_remote, [key], instance).success
    assert not dagster_records.blocked_by(instance, blocking)


@pytest.mark.broker
def test_changed_columns_fail_the_run_with_the_difference(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    lk = decoded_lake(lake)
    key = lk.window_of([Record(b"v")])
    assert materialize(lk, spark_remote, [key], instance).success
    lk.declare(DecodeDeclaration(FormatSpec("string", {"column": "line"})))
    result = materialize(lk, spark_remote, [key], instance)
    assert "value STRING is dropped, or renamed to line" in failure_of(result)
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[dagster_records.TABLE_TAG] == f"decoded/{lk.topic}"


@pytest.mark.long
@pytest.mark.broker
def test_columns_that_do_not_fit_spend_one_run_until_they_are_declared_otherwise_or_the_window_is_parked(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    now = datetime.now(UTC)
    edges = closed_edges("* * * * *", now - timedelta(minutes=7), now)
    lk = lake(config=ANY_TIME, start=edges[0])
    lk.send([Record(b"0", timestamp=milliseconds(edges[0]))])
    declared = replace(lk.declaration, decode=TEXT)
    d = Daemon(lk, instance, spark_remote, declared, now=edges[1] + timedelta(seconds=5))
    assert d.tick() == 1
    lk.send([Record(b"1", timestamp=milliseconds(edges[1]))])
    renamed = DecodeDeclaration(FormatSpec("string", {"column": "line"}))
    d.declaration = replace(lk.declaration, decode=renamed)
    d.now = edges[2] + timedelta(seconds=5)
    assert d.tick() == 1
    (second,) = set(lk.ledger.receipts(declared.raw_table)) - set(lk.ledger.receipts(declared.decoded_table))
    # From that moment on: a failed run's end has the real time, whatever the tick's time is.
    d.now = datetime.now(UTC)
    known = {w.key for w in lk.ledger.windows(lk.topic)}
    assert d.tick() == 0
    assert {w.key for w in lk.ledger.windows(lk.topic)} >= known

    def shown() -> tuple[int, int, str]:
        (table,) = status.collect([d.declaration], lk.ledger, lk.cluster, instance, (), datetime.now(UTC)).tables
        assert table.decoded is not None
        return table.decoded.windows_failed, table.decoded.windows_waiting, " ".join(table.decoded.problems)

    failed, _, said = shown()
    assert failed == 1
    assert f"window {second} has needed attention since" in said
    assert "value STRING is dropped, or renamed to line" in said

    table, author = declared.decoded_table, Author("ann", "the old columns are right")
    parking.park(table, [second], author, lk.ledger)
    assert decisions.parking(lk.ledger.lake, declared.raw_table).parked == {}
    assert (shown()[0], shown()[2]) == (0, "")
    assert d.tick() == 0
    d.declaration = declared
    assert d.tick() == 0, "parked, whatever is declared"
    parking.unpark(table, [second], author, lk.ledger)
    assert d.tick() == 1
    assert d.newest_succeeded()
    assert second in lk.ledger.receipts(table)


def test_assets_have_columns_lineage_and_the_version_of_what_is_declared(tmp_path: Path) -> None:
    declared = replace(TEXT, key=FormatSpec("string"))
    declaration = TopicDeclaration("orders", EVERY_MINUTE, START, decode=declared)
    graph = definitions(declaration, "localhost:1", tmp_path, "sc://localhost:1").resolve_asset_graph()
    raw, key = table_key(declaration.raw_table), table_key(declaration.decoded_table)
    node = graph.get(key)
    assert (node.code_version, node.parent_keys) == (declared.digest, {raw})
    columns = node.metadata["dagster/column_schema"].columns
    assert [c.name for c in columns][5:] == ["key", "value", "rescued", "window"]
    assert [c.name for c in columns if not c.constraints.nullable] == ["key", "value"]
    lineage = node.metadata["dagster/column_lineage"].deps_by_column
    assert {name: deps[0].column_name for name, deps in lineage.items()}["key"] == "key"
    assert [d.column_name for d in lineage["rescued"]] == ["value"]
    changed = replace(declaration, decode=replace(TEXT, revision=2))
    other = definitions(changed, "localhost:1", tmp_path, "sc://localhost:1").resolve_asset_graph()
    assert other.get(key).code_version != node.code_version
