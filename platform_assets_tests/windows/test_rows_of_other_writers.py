"""Rows that no load writes, with another topic id or without a window: checks report them, and the remedies remove
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.checks.decoded import conserved, windows_of
from platform_assets.checks.facts import Facts, collect
from platform_assets.checks.findings import Finding, foreign_ids, of_another_writer
from platform_assets.checks.registry import CHECKS
from platform_assets.checks.rules import deep_audit
from platform_assets.model.tables import TableKind
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets_tests.support.erasures import MadeTopic, evaluation_of, proved
from testbed.layouts import Layout

LATER = "2030-01-01-00:00"
pytestmark = pytest.mark.usefixtures("layout")
CHANGED = "kafka_partition = 0 AND kafka_offset = 3"


def made(tmp_path: Path) -> MadeTopic:
    topic = MadeTopic(tmp_path / "lake")
    topic.fill(topic.seal([{0: [(b"k", b"%d-%d" % (w, n)) for n in range(5)]} for w in range(3)]))
    return topic


def table(topic: MadeTopic, kind: TableKind = "raw") -> DeltaTable:
    return DeltaTable(topic.root / kind / topic.topic)


def ids(topic: MadeTopic, kind: TableKind = "raw") -> set[Any]:
    return set(pl.read_delta(str(topic.root / kind / topic.topic))["topic_id"])


def findings(topic: MadeTopic) -> list[Finding]:
    return [found for check in CHECKS.values() for found in check.evaluate(evaluation_of(topic)).findings]


def counted(topic: MadeTopic) -> Facts:
    return collect(topic.declaration.raw_table, topic.ledger, counting=CHECKS.values())


# --- another topic id


@pytest.mark.parametrize("value", ["NULL", "'other'"])
def test_rows_with_another_topic_id_are_named_and_a_load_removes_them(
    tmp_path: Path, layout: Layout, value: str
) -> None:
    topic = made(tmp_path)
    window, before = topic.ledger.windows(topic.topic)[0], ids(topic)
    table(topic).update(predicate=CHANGED, updates={"topic_id": value})
    for found in (findings(topic), list(deep_audit.evaluate(evaluation_of(topic)).findings)):
        assert [(f.kind, f.window) for f in found] == [("altered value", window.key)]
        assert ("'other'" if value != "NULL" else "no topic id") in found[0].detail
        assert f"Materialize partition {window.key}" in found[0].remedy
    if layout == "flat":
        damaged = [done.damaged for done in Upkeep(topic.declaration.raw_table, topic.ledger).run(LATER)]
        assert damaged == [(window.key,)]
    assert topic.load(window).outcome == "healed"
    assert ids(topic) == before
    topic.decoder().decode(window.key)
    proved(topic)
    if layout == "flat":
        assert all(done.version for done in Upkeep(topic.declaration.raw_table, topic.ledger).run(LATER))
        proved(topic)


def test_a_past_version_with_another_topic_id_is_not_restored(tmp_path: Path) -> None:
    topic = made(tmp_path)
    window, before = topic.ledger.windows(topic.topic)[0], ids(topic)
    table(topic).update(predicate=CHANGED, updates={"topic_id": "'other'"})
    table(topic).delete(f"window = '{window.key}' AND kafka_offset = 4")
    topic.records[:] = [record for record in topic.records if record.offset != 1]
    assert topic.load(window).outcome == "restored"
    assert ids(topic) == before
    topic.decoder().decode(window.key)
    proved(topic)


def test_decoded_rows_with_another_topic_id_are_named_and_decoding_removes_them(tmp_path: Path) -> None:
    topic = made(tmp_path)
    window, before = topic.ledger.windows(topic.topic)[0], ids(topic, "decoded")
    table(topic, "decoded").update(predicate=CHANGED, updates={"topic_id": "'other'"})
    (found,) = conserved(windows_of(topic.declaration, topic.ledger)).findings
    assert (found.window, "topic id 'other'" in found.detail) == (window.key, True)
    topic.decoder().decode(window.key)
    assert ids(topic, "decoded") == before
    proved(topic)


def test_many_foreign_topic_ids_are_named_briefly() -> None:
    assert foreign_ids("own", ["own"]) is None
    assert foreign_ids("own", []) is None
    text = foreign_ids("own", ["own", None, *(f"{n}\n" + "x" * 1000 for n in range(9))])
    assert text is not None
    assert text.startswith("there are rows with no topic id, topic id '0\\nxxx")
    assert text.endswith(" and 7 more instead of topic id 'own'")
    assert len(text) < 200


# --- no window


def test_rows_without_a_window_are_named_and_the_remedy_removes_them(tmp_path: Path) -> None:
    topic = made(tmp_path)
    one = table(topic).to_pyarrow_table().slice(0, 1)
    one = one.set_column(one.column_names.index("window"), "window", pa.nulls(1, pa.string()))
    write_deltalake(table(topic), one, mode="append")
    found = findings(topic)
    assert {(f.kind, f.window) for f in found} == {("unknown window", ""), ("duplicate across windows", "")}
    assert {f.remedy for f in found} == {of_another_writer("")}
    assert "the rows whose `window` is null" in of_another_writer("")
    assert any("no window partition 0 offsets" in f.sentence() for f in found)
    table(topic).delete("window IS NULL")
    proved(topic)


def test_decoded_rows_without_a_window_are_named(tmp_path: Path) -> None:
    topic = made(tmp_path)
    one = table(topic, "decoded").to_pyarrow_table().slice(0, 1)
    one = one.set_column(one.column_names.index("window"), "window", pa.nulls(1, pa.string()))
    write_deltalake(table(topic, "decoded"), one, mode="append")
    (found,) = conserved(windows_of(topic.declaration, topic.ledger)).findings
    assert (found.kind, found.window, found.remedy) == (
        "unknown window", "", of_another_writer("", topic.declaration.decoded_table),
    )  # fmt: skip
    table(topic, "decoded").delete("window IS NULL")
    proved(topic)


def test_rows_without_a_window_are_found_where_older_windows_are_only_counted(tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path / "lake")
    topic.load_many(topic.seal([{0: [(b"k", b"%d" % w)]} for w in range(60)]))
    assert counted(topic).older.windows == 36
    one = table(topic).to_pyarrow_table().slice(0, 1)
    one = one.set_column(one.column_names.index("window"), "window", pa.nulls(1, pa.string()))
    write_deltalake(table(topic), one, mode="append")
    assert counted(topic).unknown == ("",)
    table(topic).delete("window IS NULL")
    found = counted(topic)
    assert (found.unknown, found.older.windows) == ((), 36)
