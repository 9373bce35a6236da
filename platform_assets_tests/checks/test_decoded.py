"""The check and the audit of decoded tables. They do not report maintenance by other programs as damage, and they
report what is damaged."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.checks import decoded as checks
from platform_assets.checks.audit import EXIT_CODES, Audit
from platform_assets.checks.decoded import CONSERVATION
from platform_assets.checks.decoded_audit import DECODED, DecodedAudit
from platform_assets.checks.findings import CheckResult, Finding
from platform_assets.checks.registry import DEEP_AUDIT
from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.engines.decoding.rows import RowMaker
from platform_assets.errors import SparkUnreachableError
from platform_assets.lake import holdings
from platform_assets.ledger.decisions import Author
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.windows import Span
from platform_assets.orchestration import decoded_checks
from platform_assets.windows.decide import parking
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets_tests.support.decoded_topic import DecodedTopic, InProcessEngine, order

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

NOW = datetime(2026, 1, 3, tzinfo=UTC)
TOPIC = "orders"
BAD = [b"broken", b'{"id": "x"}']


@pytest.fixture
def topic(tmp_path: Path) -> DecodedTopic:
    """Return a topic with three windows. In each of the two tables, the first window has several files."""
    made = DecodedTopic(tmp_path, TOPIC)
    made.partitions, made.records_per_file = 2, 1
    made.load([*(order(n) for n in range(8)), *BAD], [order(9), b"broken"], [order(10)])
    made.decode()
    return made


def table(topic: DecodedTopic, kind: str = "decoded") -> DeltaTable:
    return DeltaTable(topic.root / kind / TOPIC)


def conserved(topic: DecodedTopic, budget: float = checks.BUDGET) -> CheckResult:
    return checks.conserved(checks.windows_of(topic.declaration, topic.ledger, budget=budget))


def compact(topic: DecodedTopic, kind: str = "decoded") -> None:
    """Merge small files into larger files with the same rows, as a maintenance job would."""
    done = table(topic, kind).optimize.compact()
    assert done["numFilesRemoved"] > done["numFilesAdded"] > 0


def audit(topic: DecodedTopic, *, deep: bool = True, **given: Any) -> Audit:
    return DecodedAudit(topic.declaration, topic.ledger, lambda: topic.decoder, **given).run(NOW, deep=deep)


def findings(found: Audit) -> list[Finding]:
    return [finding for check in found.checks for finding in check.findings]


# --- OPTIMIZE
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("partitioned")
@pytest.mark.parametrize("kind", ["decoded", "dead_letters"])
def test_compacted_files_of_the_same_rows_pass_and_are_read_once(
    topic: DecodedTopic, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact(topic, kind)
    assert conserved(topic).passed
    receipt = topic.ledger.receipts(next(t for t in topic.declaration.tables if t.kind == kind))[topic.windows[0].key]
    assert receipt.kind == "proof"
    assert receipt.table_version == table(topic, kind).version()
    monkeypatch.setattr("platform_assets.checks.decoded_files.measured_window", None)
    assert conserved(topic).passed
    assert [w.outcome for w in topic.decode()] == ["unchanged"] * 3


def test_row_that_is_lost_is_found_behind_a_compaction(topic: DecodedTopic) -> None:
    compact(topic)
    table(topic).delete("id = 5")
    (finding,) = conserved(topic).findings
    assert (finding.kind, finding.window) == ("not conserved", topic.windows[0].key)
    assert "the window contains 7 rows, but its load committed 8" in finding.detail
    assert (finding.partition, finding.ranges) == (1, (OffsetRange(2, 3),))


def test_value_that_is_altered_by_a_rewrite_is_found(topic: DecodedTopic) -> None:
    table(topic).update(updates={"amount": "1.00"}, predicate="id = 5")
    (finding,) = conserved(topic).findings
    assert "the content of the window's 8 rows differs from what the load committed" in finding.detail
    topic.decode(topic.windows[0].key)
    assert conserved(topic).passed


def test_row_that_took_the_place_of_another_is_found(topic: DecodedTopic) -> None:
    table(topic).update(updates={"kafka_offset": "77"}, predicate="id = 5")
    (finding,) = conserved(topic).findings
    assert "the offsets of the window's 8 rows differ from those that the load committed" in finding.detail


def test_without_time_to_read_nothing_is_said_of_changed_files(topic: DecodedTopic) -> None:
    compact(topic)
    check_result = conserved(topic, budget=0)
    assert (check_result.passed, check_result.undecided) == (False, True)
    assert check_result.headline == "The result is unknown for 3 windows out of 3."
    assert conserved(topic).passed


def test_rows_in_a_window_that_never_was_are_found(topic: DecodedTopic) -> None:
    row = table(topic).to_pyarrow_table().slice(0, 1)
    at = row.schema.get_field_index("window")
    rogue = row.set_column(at, "window", pa.array(["2030-01-01-00:00"]))
    write_deltalake(topic.root / "decoded" / TOPIC, rogue, mode="append")
    (finding,) = conserved(topic).findings
    assert (finding.kind, finding.window) == ("unknown window", "2030-01-01-00:00")
    table(topic).delete("window = '2030-01-01-00:00'")
    assert conserved(topic).passed


def test_table_that_is_gone_is_found(topic: DecodedTopic) -> None:
    (topic.root / "dead_letters" / TOPIC).rename(topic.root / "elsewhere")
    assert {f.window for f in conserved(topic).findings} == {w.key for w in topic.windows[:2]}


def test_a_tick_reads_no_files_and_tells_what_the_last_run_found(topic: DecodedTopic) -> None:
    assert topic.declaration.decode is not None
    compact(topic)
    with dg.DagsterInstance.ephemeral() as instance:
        given = (topic.declaration, topic.declaration.decode, topic.ledger, instance)
        assert list(decoded_checks.after_empty_windows(*given)) == []
        topic.evaluate_checks(instance)
        table(topic).delete("id = 5")
        conservation, share = decoded_checks.after_empty_windows(*given)
        assert (conservation.check_name, conservation.passed) == (CONSERVATION, True)
        assert share.check_name == checks.SHARE
        topic.evaluate_checks(instance)
        conservation, _ = decoded_checks.after_empty_windows(*given)
        assert not conservation.passed


# --- the audit
# ----------------------------------------------------------------------------------------------------------


def outcomes(found: Audit) -> dict[str, str]:
    return {c.check: c.outcome for c in found.checks}


def test_tables_in_order_are_proved_and_left_as_they_are(topic: DecodedTopic) -> None:
    compact(topic)
    before = {p: p.stat().st_mtime_ns for p in topic.root.rglob("*.parquet") if "_ledger" not in p.parts}
    versions = [table(topic, kind).version() for kind in ("decoded", "dead_letters")]
    found = audit(topic)
    assert (found.outcome, found.exit_code) == ("proved", EXIT_CODES["proved"])
    assert outcomes(found) == dict.fromkeys((DECODED, CONSERVATION, DEEP_AUDIT.name), "proved")
    assert (
        "13 rows and dead letters read again, all unchanged since the load; 3 windows decoded again with the same result"
        in (found.checks[-1].headline)
    )
    assert found.to_json()["windows"]["count"] == 3
    assert {p: p.stat().st_mtime_ns for p in topic.root.rglob("*.parquet") if "_ledger" not in p.parts} == before
    assert [table(topic, kind).version() for kind in ("decoded", "dead_letters")] == versions


def test_without_reading_receipts_are_enough_and_no_session_is_asked_for(topic: DecodedTopic) -> None:
    def no_session() -> Any:
        raise AssertionError("asked for a session")

    found = DecodedAudit(topic.declaration, topic.ledger, no_session).run(NOW)
    assert (found.outcome, found.deep) == ("proved", False)


def test_a_parked_window_is_named_as_such(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, TOPIC)
    first, second = topic.load([order(1)], [order(2)])
    topic.decode(second)
    found = audit(topic, deep=False)
    assert [(f.kind, f.window) for f in findings(found)] == [("window not decoded", first)]
    assert found.exit_code == 1
    parking.park(topic.declaration.decoded_table, [first], Author("ann", "a test"), topic.ledger)
    found = audit(topic, deep=False)
    assert [(f.kind, f.window) for f in findings(found)] == [("window parked", first)]
    assert not findings(found)[0].alarming
    assert "1 window parked" in found.checks[0].headline


def rewrite(topic: DecodedTopic, change: Callable[[pa.Table], pa.Table], kind: str = "decoded") -> None:
    """Cause damage that no log shows: replace a file of the third window, or of the dead letters, with a different file
    that has the same name and size."""
    folder = topic.lake.table(next(t for t in topic.declaration.tables if t.kind == kind))
    (name,) = holdings.files_of(folder, topic.windows[2 if kind == "decoded" else 1].key).paths
    path = folder.path / unquote(name)
    size = path.stat().st_size
    pq.write_table(
        change(pq.ParquetFile(path).read()),
        path,
        compression="zstd",
        store_schema=False,
        write_statistics=False,
        use_dictionary=False,
    )
    written = path.read_bytes()
    assert len(written) <= size
    footer = len(written) - 8 - int.from_bytes(written[-8:-4], "little")
    path.write_bytes(written[:footer] + bytes(size - len(written)) + written[footer:])


def test_value_that_was_altered_in_place_is_found_by_reading(topic: DecodedTopic) -> None:
    rewrite(topic, lambda rows: rows.set_column(rows.schema.get_field_index("id"), "id", pa.array([11], pa.int64())))
    assert audit(topic, deep=False).outcome == "proved"
    found = audit(topic)
    assert (found.outcome, found.exit_code) == ("anomalies", 1)
    (finding,) = findings(found)
    assert (finding.kind, finding.window) == ("altered value", topic.windows[2].key)
    assert f"decoded/{TOPIC}: the content of the window's 1 rows differs" in finding.detail
    topic.decode(topic.windows[2].key)
    assert audit(topic).outcome == "proved"


def test_dead_letter_that_was_lost_in_place_is_found_by_reading(topic: DecodedTopic) -> None:
    rewrite(topic, lambda rows: rows.slice(0, 0), "dead_letters")
    (finding,) = findings(audit(topic))
    assert (finding.kind, finding.window) == ("not conserved", topic.windows[1].key)
    assert f"dead_letters/{TOPIC}: the window contains 0 rows, but its load committed 1" in finding.detail


def test_file_that_is_gone_is_found_by_reading(topic: DecodedTopic) -> None:
    next((topic.root / "decoded" / TOPIC).rglob("*.parquet")).unlink()
    assert "files lost" in {f.kind for f in findings(audit(topic))}


def test_rows_that_the_raw_window_gives_no_more_are_found_by_decoding(
    topic: DecodedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables and receipts agree, but the values are now decoded differently, by a decoder that has a defect or by
    another version of the decoder."""
    decode = RowMaker.rows

    def otherwise(*given: Any) -> Any:
        rows, letters = decode(*given)
        at = rows.schema.get_field_index("amount")
        return rows.set_column(at, rows.schema.field(at), pa.nulls(len(rows), rows.schema.field(at).type)), letters

    monkeypatch.setattr(RowMaker, "rows", otherwise)
    found = audit(topic)
    assert {(f.kind, f.window) for f in findings(found)} == {("decoded otherwise", w.key) for w in topic.windows}
    assert "but with different content at the same offsets" in findings(found)[0].detail
    assert not list(topic.root.rglob("*audit-*"))


def test_windows_of_another_declaration_are_read_and_not_decoded(topic: DecodedTopic) -> None:
    topic.declared = replace(topic.declared, revision=2)
    found = audit(topic)
    assert found.outcome == "proved"
    assert (
        "0 windows decoded again with the same result; 3 skipped, because they have no offsets or were decoded with "
        "another declaration" in found.checks[-1].headline
    )


def test_window_that_was_left_out_is_named_and_the_newest_ones_may_wait(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, TOPIC)
    first, second, third = topic.load([order(1)], [order(2)], [order(3)])
    topic.decode(second)
    found = audit(topic, deep=False)
    (finding,) = findings(found)
    assert (finding.kind, finding.window) == ("window not decoded", first)
    assert f"platform-assets load decoded/{TOPIC} {first}" in finding.remedy
    assert audit(topic, deep=False, in_flight=lambda keys: frozenset(keys)).outcome == "proved"
    assert audit(topic, deep=False, span=Span(second, third)).outcome == "proved"
    topic.decode(first)
    assert audit(topic, deep=False).outcome == "proved"


def test_what_cannot_be_read_is_no_result(topic: DecodedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    error = SparkUnreachableError("sc://nowhere", "connection refused")
    monkeypatch.setattr(InProcessEngine, "measure", lambda engine, table, keys, version: [(k, error) for k in keys])
    found = audit(topic)
    assert (found.outcome, found.exit_code) == ("undecided", 2)
    assert any("connection refused" in reason for reason in found.reasons)


def test_topic_without_windows_has_no_result(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, TOPIC)
    assert (audit(topic).outcome, audit(topic).reasons) == ("undecided", ("the raw table contains no window to audit",))


def test_bounded_audit_says_what_it_left(topic: DecodedTopic) -> None:
    found = audit(topic, budget=0)
    assert found.checks[-1].check_result is not None
    assert dict(found.checks[-1].check_result.figures)["windows_left"] == 3
    assert json.dumps(found.to_json())


@pytest.mark.long
@pytest.mark.spark
def test_spark_itself_reads_what_was_compacted_and_decodes_raw_rows_again(
    topic: DecodedTopic, connection: Callable[[], SparkSession]
) -> None:
    """Spark's implementation of the digests is independent of the implementation that computed the digests in the
    receipts."""
    compact(topic)
    compact(topic, "dead_letters")
    session = functools.cache(connection)
    engine = DecodeEngine(topic.lake, session)
    decoder = WindowDecoder(topic.declaration, topic.ledger, engine)
    found = DecodedAudit(topic.declaration, topic.ledger, lambda: decoder).run(NOW, deep=True)
    assert (found.outcome, found.reasons) == ("proved", ())
    assert dict(found.to_json()["checks"][-1]["figures"]) == {
        "rows_read": 13,
        "windows_decoded_again": 3,
        "rows_read_otherwise": 10,
        "windows_left": 0,
    }

    def altered(rows: pa.Table) -> pa.Table:
        ids = pc.if_else(pc.equal(rows["window"], topic.windows[2].key), pa.scalar(11, pa.int64()), rows["id"])
        return rows.set_column(rows.schema.get_field_index("id"), "id", ids)

    rewrite(topic, altered)
    (finding,) = findings(DecodedAudit(topic.declaration, topic.ledger, lambda: decoder).run(NOW, deep=True))
    assert (finding.kind, finding.window) == ("altered value", topic.windows[2].key)
