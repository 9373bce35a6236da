"""A decoded window: each raw row is in exactly one of two tables, whichever process dies, and whatever is declared
next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.errors import (
    ConfigurationError,
    DecodingDiffersError,
    FilesLostError,
    NotLoadedError,
    SchemaChangeError,
)
from platform_assets.lake import load_log
from platform_assets.lake.location import Lake
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets.model.expectations import Expectation, FailingRow, Figures
from platform_assets.windows.decode.decoding import DecodedWindow, WindowDecoder
from platform_assets.windows.load.replacing import Loaded
from platform_assets_tests.conftest import LakeMaker
from platform_assets_tests.support import parts
from platform_assets_tests.support.decoded_topic import InProcessEngine, tables_without_spark
from platform_assets_tests.support.local_engine import Kept, LocalEngine
from testbed.loads import Record, TopicLake

TEXT = DecodeDeclaration(FormatSpec("string"))
MORE = DecodeDeclaration(FormatSpec("string"), key=FormatSpec("string"))
GOOD, BAD = (b"one", b"", b"zwei drei", None, b"x" * 500), (b"\xff", b"a\xc3", b"\xed\xa0\x80")
RECORDS = [Record(value, b"k%d" % i, i % 2, (("h", b"1"),)) for i, value in enumerate((*GOOD, *BAD))]
SMALL_LETTERS = Expectation("value_pattern", "pattern", ("value",), pattern="[a-z]*")
ONCE = Expectation("value_unique", "unique", ("value",))


class Died(BaseException):
    """An exception that stands for a killed process: nothing below the test catches it."""


@dataclass
class Decoding:
    """A topic's lake with its decoded tables. `workers` is true if Spark's workers load and decode, and false if this
    process does, with the same code."""

    lake: TopicLake
    workers: bool
    declared: DecodeDeclaration = field(default_factory=lambda: TEXT)

    def load(self, key: str) -> Loaded:
        """Load a window of the raw table."""
        if self.workers:
            return self.lake.load(key)
        kept = [
            Kept(r.partition, r.offset, r.key, r.value, datetime.fromtimestamp(r.timestamp / 1000, UTC))
            for r in self.lake.committed()
        ]
        return self.lake.loader(engine=LocalEngine(self.lake.ledger.lake, kept)).load(key)

    def decoder(self, before_step: Callable[[str], None] = lambda step: None) -> WindowDecoder:
        """Return a new window decoder, which looks like another process to the lake."""
        declaration = replace(self.lake.declaration, decode=self.declared)
        of_lake = Lake.at(self.lake.root)
        engine = (
            DecodeEngine(of_lake, self.lake.spark) if self.workers else InProcessEngine(of_lake, tables_without_spark)
        )
        return WindowDecoder(declaration, self.lake.ledger, engine, before_step=before_step)

    def decode(self, key: str) -> DecodedWindow:
        """Decode one window, and check that nothing is lost or duplicated."""
        done = self.decoder().decode(key)
        self.check_conserved(key)
        return done

    def die_before(self, step: str, key: str) -> None:
        """Start to decode a window, and die before `step`."""

        def die(now: str) -> None:
            if now == step:
                raise Died

        with pytest.raises(Died):
            self.decoder(die).decode(key)

    def rows(self, kind: str, key: str) -> list[dict[str, Any]]:
        """Return the rows of one window, by partition and offset."""
        found = DeltaTable(self.lake.root / kind / self.lake.topic).to_pyarrow_table(filters=[("window", "=", key)])
        return sorted(found.to_pylist(), key=lambda row: (row["kafka_partition"], row["kafka_offset"]))

    def check_conserved(self, key: str) -> None:
        """Check that each raw row is in exactly one of the tables, that receipts match the tables, and that receipts
        match each other."""

        def place(row: dict[str, Any]) -> tuple[str, int, int]:
            return row["topic_id"], row["kafka_partition"], row["kafka_offset"]

        decoded, dead = self.rows("decoded", key), self.rows("dead_letters", key)
        raw = sorted((r.topic_id, r.partition, r.offset) for r in self.lake.rows(key))
        assert sorted(map(place, [*decoded, *dead])) == raw
        letters = {place(row): row for row in dead}
        for row in self.lake.rows(key):
            letter = letters.get((row.topic_id, row.partition, row.offset))
            assert letter is None or (letter["key"], letter["value"]) == (row.key, row.value)
        d = self.decoder()
        receipts = [(r, r.receipt(key)) for r in (d.decoded, d.dead_letters)]
        for replacer, receipt in receipts:
            assert receipt is not None
            assert replacer.is_intact(receipt)
        assert {r.made_from for _, r in receipts if r is not None} == {receipts[0][1].made_from}  # type: ignore[union-attr]

    def orphans(self) -> list[Path]:
        """Return the data files that no version of either table refers to."""
        found: list[Path] = []
        for kind in ("decoded", "dead_letters"):
            table = self.lake.root / kind / self.lake.topic
            log = "".join(path.read_text() for path in table.glob("_delta_log/*.json"))
            found += [path for path in table.rglob("*.parquet") if path.name not in log]
        return found


USUAL = parts.SPARK.chosen() == "local" and parts.LAKE.chosen() == "folder"


@pytest.fixture
def decoding(lake: LakeMaker) -> Decoding:
    """In a session with a store or a Spark cluster, workers load and decode in all tests."""
    return Decoding(lake(partitions=2), workers=not USUAL)


@pytest.fixture
def by_workers(decoding: Decoding) -> None:
    """Let Spark's workers load and decode."""
    decoding.workers = True


@pytest.mark.usefixtures("by_workers")
def test_first_load(decoding: Decoding) -> None:
    key = decoding.lake.window_of(RECORDS)
    decoding.load(key)
    done = decoding.decode(key)
    assert (done.outcome, done.decoded.rows, done.dead_letters.rows) == ("loaded", 5, 3)
    rows = decoding.rows("decoded", key)
    assert sorted((r["value"] is None, r["tombstone"]) for r in rows) == [(False, False)] * 4 + [(True, True)]
    assert {r["value"].encode() for r in rows if not r["tombstone"]} == {v for v in GOOD if v is not None}
    assert {(d["value"], d["reason"], d["side"]) for d in decoding.rows("dead_letters", key)} == {
        (value, "malformed", "value") for value in BAD
    }
    assert {d["declaration"] for d in decoding.rows("dead_letters", key)} == {TEXT.digest}
    assert all(d["headers"] == [{"key": "h", "value": b"1"}] for d in decoding.rows("dead_letters", key))
    made = done.decoded.made_from
    raw = decoding.lake.ledger.receipts(decoding.lake.declaration.raw_table)[key]
    assert made is not None
    assert (made.load_id, made.version, made.declaration) == (raw.load_id, raw.table_version, TEXT.digest)
    commit = next(load_log.load_commits(decoding.decoder().decoded.folder))
    assert (commit.metadata.made_from, commit.metadata.load_id) == (made, done.decoded.load_id)


def test_again_without_any_change(decoding: Decoding) -> None:
    key = decoding.lake.window_of(RECORDS)
    decoding.load(key)
    first = decoding.decode(key)
    again = decoding.decode(key)
    assert (again.outcome, again.decoded, again.dead_letters) == ("unchanged", first.decoded, first.dead_letters)
    assert decoding.orphans() == []


@pytest.mark.parametrize("step", ["dead letters", "decoded", "receipts"])
def test_death_before_each_step_of_a_first_load(decoding: Decoding, step: str) -> None:
    key = decoding.lake.window_of(RECORDS)
    decoding.load(key)
    decoding.die_before(step, key)
    assert decoding.decoder().decoded.receipt(key) is None
    assert decoding.decode(key).outcome == "loaded"
    assert decoding.decode(key).outcome == "unchanged"
    assert decoding.orphans() == []


@pytest.mark.parametrize("step", ["dead letters", "decoded", "receipts"])
def test_death_before_each_step_of_a_replacement(decoding: Decoding, step: str) -> None:
    """Afterwards, either the replacement is tried again, or another declaration with the same columns replaces it."""
    key = decoding.lake.window_of(RECORDS)
    decoding.load(key)
    decoding.decode(key)
    decoding.declared = MORE
    decoding.die_before(step, key)
    decoding.declared = TEXT if step == "decoded" else MORE
    if step == "decoded":
        # The table has the new column by now, so a declaration without it is another change.
        decoding.declared = replace(MORE, revision=2)
    assert decoding.decode(key).outcome == "replaced"
    assert decoding.decode(key).outcome == "unchanged"
    assert decoding.orphans() == []


def test_death_between_both_commits_and_the_former_declaration(decoding: Decoding) -> None:
    """Rows that were committed under the other declaration do not match the receipts, so they are replaced."""
    key = decoding.lake.window_of(RECORDS)
    decoding.load(key)
    decoding.decode(key)
    decoding.declared = replace(TEXT, revision=2)
    decoding.die_before("decoded", key)
    decoding.declared = TEXT
    assert decoding.decode(key).outcome == "healed"
    assert {d["declaration"] for d in decoding.rows("dead_letters", key)} == {TEXT.digest}


@pytest.mark.usefixtures("by_workers")
def test_damage_is_healed(decoding: Decoding) -> None:
    key = decoding.lake.window_of(RECORDS)
    decoding.load(key)
    decoding.decode(key)
    for kind in ("decoded", "dead_letters"):
        table = DeltaTable(decoding.lake.root / kind / decoding.lake.topic)
        table.delete(f"window = '{key}' and kafka_offset = {decoding.rows(kind, key)[0]['kafka_offset']}")
        assert decoding.decode(key).outcome == "healed"
    assert decoding.decode(key).outcome == "unchanged"


def test_other_rows_of_the_same_declaration_are_refused(decoding: Decoding, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release decodes differently without a new version of its decoder; the remedy in the message works."""
    key = decoding.lake.window_of(RECORDS)
    decoding.load(key)
    digest = DecodeDeclaration.digest
    with monkeypatch.context() as patched:
        former = replace(TEXT, value=FormatSpec("string", {"max_bytes": 100}))
        patched.setattr(DecodeDeclaration, "digest", property(lambda d: TEXT_DIGEST))
        decoding.declared = former
        decoder = decoding.decoder()
        receipts = decoder.decode(key)
        assert receipts.dead_letters.rows == 4
        decoding.declared = TEXT
        before = [load_log.version(r.folder) for r in (decoder.decoded, decoder.dead_letters)]
        with pytest.raises(DecodingDiffersError, match=r"3 rows instead of the 4 that load .* raise `revision:`"):
            decoding.decoder().decode(key)
        assert before == [load_log.version(r.folder) for r in (decoder.decoded, decoder.dead_letters)]
    assert DecodeDeclaration.digest is digest
    decoding.declared = replace(TEXT, revision=2)
    assert decoding.decode(key).outcome == "replaced"
    assert decoding.orphans() == []


def test_window_that_the_raw_table_has_not_got(decoding: Decoding) -> None:
    key = decoding.lake.window_of(RECORDS)
    with pytest.raises(NotLoadedError, match=rf"platform-assets load raw/{decoding.lake.topic} {key}"):
        decoding.decoder().decode(key)
    decoding.load(key)
    assert decoding.decode(key).outcome == "loaded"


@pytest.mark.usefixtures("by_workers")
def test_windows_without_offsets_and_without_rows(decoding: Decoding) -> None:
    empty = decoding.lake.close_window()
    decoding.load(empty)
    assert decoding.decode(empty).outcome == "empty"
    decoding.declared = replace(TEXT, revision=2)
    assert decoding.decode(empty).outcome == "empty"
    decoding.lake.abort(RECORDS)
    aborted = decoding.lake.close_window()
    decoding.load(aborted)
    done = decoding.decode(aborted)
    assert (done.outcome, done.decoded.rows, done.dead_letters.rows) == ("loaded", 0, 0)
    assert decoding.decode(aborted).outcome == "unchanged"


@pytest.mark.usefixtures("by_workers")
def test_redrive(decoding: Decoding) -> None:
    """A corrected declaration turns the window's dead letters into rows; other windows keep theirs."""
    decoding.declared = replace(TEXT, value=FormatSpec("string", {"max_bytes": 2}))
    keys = [decoding.lake.window_of([Record(b"long enough"), Record(b"ok")]) for _ in range(2)]
    for key in keys:
        decoding.load(key)
        assert decoding.decode(key).dead_letters.rows == 1
    assert decoding.rows("dead_letters", keys[0])[0]["reason"] == "too_large"
    decoding.declared = TEXT
    done = decoding.decode(keys[0])
    assert (done.outcome, done.decoded.rows, done.dead_letters.rows) == ("replaced", 2, 0)
    assert decoding.rows("dead_letters", keys[0]) == []
    assert len(decoding.rows("dead_letters", keys[1])) == 1


@pytest.mark.usefixtures("by_workers")
def test_repair_of_a_record_that_is_known_to_be_bad(decoding: Decoding) -> None:
    keys = [decoding.lake.window_of([Record(b"ok"), Record(b"\xff")]) for _ in range(2)]
    for key in keys:
        decoding.load(key)
        decoding.decode(key)
    decoding.declared = replace(TEXT, repairs=(Repair(keys[0], 0, 1, "mended"),))
    done = decoding.decode(keys[0])
    assert (done.outcome, done.decoded.rows, done.dead_letters.rows) == ("replaced", 2, 0)
    assert [r["value"] for r in decoding.rows("decoded", keys[0])] == ["ok", "mended"]
    assert decoding.decode(keys[0]).outcome == decoding.decode(keys[1]).outcome == "unchanged"
    decoding.declared = replace(TEXT, repairs=(Repair(keys[0], 0, 2, "mended"),))
    with pytest.raises(ConfigurationError, match=rf"window {keys[0]} of .* has no offset 2 in partition 0"):
        decoding.decoder().decode(keys[0])


@pytest.mark.usefixtures("by_workers")
def test_expectations_are_measured_as_the_window_is_written(decoding: Decoding) -> None:
    """Expectations do not change rows: failing rows are decoded, and do not become dead letters."""
    decoding.declared = replace(TEXT, expect=(SMALL_LETTERS, ONCE))
    values = (b"one", b"one", None, None, b"\xff", b"one")
    sent = [*(Record(value) for value in values), Record(b"TWO", partition=1), Record(b"two", partition=1)]
    key = decoding.lake.window_of(sent)
    decoding.load(key)
    done = decoding.decode(key)
    assert (done.decoded.rows, done.dead_letters.rows) == (7, 1)
    found = {
        SMALL_LETTERS.digest: Figures(5, 1, (FailingRow(1, 0, "TWO"),)),
        ONCE.digest: Figures(5, 2, (FailingRow(0, 1, "one: 3 rows, the first at partition 0 offset 0"),)),
    }
    assert done.decoded.figures == found
    assert done.dead_letters.figures is None
    assert decoding.decoder().decoded.receipt(key) == done.decoded
    assert next(load_log.load_commits(decoding.decoder().decoded.folder)).metadata.figures == found
    entries = decoding.lake.ledger.commit_rows(decoding.lake.declaration.decoded_table)
    assert [text is None for text in entries["expectations"].to_pylist()] == [False, True], "once a window"
    again = decoding.decode(key)
    assert (again.outcome, again.decoded) == ("unchanged", done.decoded)
    aborted = decoding.lake.close_window()
    decoding.load(aborted)
    assert decoding.decode(aborted).decoded.figures is None


def test_other_expectations_leave_rows_as_they_are(decoding: Decoding) -> None:
    """Expectations are measured when the window is decoded again, which makes no commit."""
    key = decoding.lake.window_of([Record(b"a"), Record(b"a"), Record(b"B")])
    decoding.load(key)
    first = decoding.decode(key)
    assert first.decoded.figures is None
    for expected, failing in (((ONCE,), [1]), ((SMALL_LETTERS, replace(ONCE, severity="error")), [1, 1])):
        decoding.declared = replace(TEXT, expect=expected)
        done = decoding.decode(key)
        assert done.outcome == "unchanged"
        assert replace(done.decoded, figures=None) == first.decoded
        assert [(done.decoded.figures or {})[e.digest].failing for e in expected] == failing
        assert decoding.decoder().decoded.receipt(key) == done.decoded
    decoding.declared = TEXT
    assert decoding.decode(key).decoded == done.decoded, "figures of what is expected no more are kept"
    decoding.declared = replace(TEXT, expect=(ONCE,))
    table = DeltaTable(decoding.lake.root / "decoded" / decoding.lake.topic)
    table.delete(f"window = '{key}' and kafka_offset = 0")
    healed = decoding.decode(key)
    assert (healed.outcome, set(healed.decoded.figures or {})) == ("healed", {ONCE.digest})
    assert decoding.orphans() == []


def test_keys_are_added_to_a_table_with_older_windows(decoding: Decoding) -> None:
    first = decoding.lake.window_of(RECORDS)
    decoding.load(first)
    before = decoding.decode(first)
    decoding.declared = MORE
    second = decoding.lake.window_of(
        [Record(b"v", b"k"), Record(b"v", b"\xff"), Record(b"\xff", b"\xff"), Record(b"v")]
    )
    decoding.load(second)
    assert decoding.decode(second).decoded.rows == 2
    assert [r["key"] for r in decoding.rows("decoded", second)] == ["k", None]
    assert [d["side"] for d in decoding.rows("dead_letters", second)] == ["key", "value"]
    assert {r["key"] for r in decoding.rows("decoded", first)} == {None}
    # Read with the column that it lacks, the older window still has its receipt's digest.
    assert decoding.decoder().decoded.is_intact(before.decoded)


def test_change_that_is_no_addition_is_refused_until_it_is_declared(decoding: Decoding) -> None:
    key = decoding.lake.window_of(RECORDS)
    decoding.load(key)
    decoding.decode(key)
    decoding.declared = DecodeDeclaration(FormatSpec("string", {"column": "line"}))
    with pytest.raises(SchemaChangeError, match="value STRING is dropped, or renamed to line") as refused:
        decoding.decoder().decode(key)
    assert {r["value"] for r in decoding.rows("decoded", key)} >= {"one"}
    decoding.declared = replace(decoding.declared, replaces=refused.value.held)
    assert decoding.decode(key).outcome == "replaced"
    assert {r["line"] for r in decoding.rows("decoded", key)} >= {"one"}


def test_lost_raw_files_are_named(decoding: Decoding) -> None:
    key = decoding.lake.window_of(RECORDS)
    decoding.load(key)
    for path in decoding.lake.table.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(FilesLostError, match=f"raw/{decoding.lake.topic}"):
        decoding.decoder().decode(key)
    decoding.load(key)
    assert decoding.decode(key).outcome == "loaded"


@pytest.mark.usefixtures("by_workers")
def test_raw_rows_that_are_not_those_of_the_receipt_are_not_decoded(decoding: Decoding) -> None:
    key = decoding.lake.window_of(RECORDS)
    decoding.load(key)
    for path in decoding.lake.table.rglob("*.parquet"):
        rows = pa.parquet.read_table(path)
        pa.parquet.write_table(rows.slice(1), path)
    with pytest.raises(FilesLostError, match="dead letters, but the receipt of load"):
        decoding.decoder().decode(key)
    assert decoding.orphans() == []


def test_topic_that_is_not_decoded(decoding: Decoding) -> None:
    with pytest.raises(ConfigurationError, match="has no `decode:` in its YAML"):
        WindowDecoder(decoding.lake.declaration, decoding.lake.ledger, decoding.decoder().engine).decode("x")


TEXT_DIGEST = TEXT.digest
