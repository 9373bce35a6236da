"""Changes of windows: compared with a plain replay of what a producer sent, made again, repaired, and killed at each
step."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from deltalake import DeltaTable

from platform_assets.checks import changes as checks
from platform_assets.engines import changes as engine
from platform_assets.engines.measuring import measure_of
from platform_assets.errors import ChangesOutdatedError, ConfigurationError, FilesLostError, NotLoadedError
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.entries import EXPIRED
from platform_assets.ledger.store import Ledger
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.state import (
    NO_KEY,
    NO_VALUE,
    NO_VERSION,
    OTHER_KEY,
    SEVERAL_PARTITIONS,
    SUPERSEDED,
    StateDeclaration,
)
from platform_assets.model.tables import TableRef
from platform_assets.windows.change import changing
from platform_assets.windows.change.changing import WindowChanger, stale_windows
from platform_assets.windows.decide.parking import park, unpark
from platform_assets.windows.load.receipts import expired_receipt
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets.windows.recover.rebuild_decoded import rebuild_changes
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.decoded_topic import DecodedTopic
from platform_assets_tests.support.erasures import MadeTopic, found_in
from platform_assets_tests.support.variants import long_after
from testbed.samples import Keyed

VALUE: Final = FormatSpec("json", {"schema": "id BIGINT, region STRING, version BIGINT, n BIGINT"})
DECODE: Final = DecodeDeclaration(
    VALUE, FormatSpec("json", {"schema": "id BIGINT, region STRING"}), fail_share=1.0, warn_share=1.0
)
LAST: Final = StateDeclaration(("id", "region"))
ONE: Final = StateDeclaration(("id",))
STATES: Final = (
    LAST,
    StateDeclaration(("id",), deletes="none", keep="first"),
    StateDeclaration(("id", "region"), order="version", deletes="none"),
    StateDeclaration(("id",), order="version", deletes="none", keep="first"),
)


@dataclass(frozen=True, slots=True)
class Sent:
    """One record as its producer noted it; `version` and `n` are None in a delete."""

    id: int | None
    region: str
    version: int | None = None
    n: int | None = None

    @property
    def record(self) -> Keyed:
        key = {"id": self.id, "region": self.region}
        value = None if self.n is None else json.dumps({**key, "version": self.version, "n": self.n}).encode()
        return Keyed(json.dumps(key).encode(), value)


def replayed(notes: Sequence[tuple[int, int, Sent]], state: StateDeclaration) -> dict[Any, tuple[int, int, bool]]:
    """Return partition, offset and delete flag of the record that counts for each key, by replaying the notes
    (partition, offset, record) with a dictionary."""
    best: dict[Any, tuple[Any, int, int, bool]] = {}
    for partition, offset, sent in notes:
        deletes = sent.n is None
        if deletes and state.deletes == "none":
            continue
        if (sent.id is None and "id" in state.key) or (state.version is not None and sent.version is None):
            continue
        key = tuple(getattr(sent, name) for name in state.key)
        rank = (sent.version if state.version is not None else 0, partition, offset, deletes)
        if key not in best or (rank > best[key] if state.keep == "last" else rank < best[key]):
            best[key] = rank
    return {key: rank[1:] for key, rank in best.items()}


def topic_of(root: Path, state: StateDeclaration | None = LAST, decode: DecodeDeclaration = DECODE) -> DecodedTopic:
    made = DecodedTopic(root, "orders", decode)
    made.state = state
    return made


def rows(topic: DecodedTopic, key: str) -> list[dict[str, Any]]:
    found = DeltaTable(topic.root / "changes" / topic.topic).to_pyarrow_table(filters=[("window", "=", key)])
    return sorted(found.to_pylist(), key=lambda row: (row["kafka_partition"], row["kafka_offset"]))


def held(topic: DecodedTopic, key: str) -> dict[Any, tuple[int, int, bool]]:
    state = topic.state or LAST
    found = rows(topic, key)
    made = {
        tuple(row[name] for name in state.key): (row["kafka_partition"], row["kafka_offset"], row["deleted"])
        for row in found
    }
    assert len(made) == len(found), "a key has two rows"
    return made


def check(topic: DecodedTopic) -> None:
    windows = checks.windows_of(topic.declaration, topic.ledger)
    assert checks.conserved(windows).passed, checks.conserved(windows)


def history(seed: int) -> tuple[list[list[Sent]], int]:
    """Return random windows of records, and the number of partitions."""
    r = random.Random(seed)
    windows = []
    for _ in range(r.randint(1, 3)):
        keys = r.choice([1, 3, 40])
        windows.append(
            [
                Sent(
                    None if r.random() < 0.05 else r.randrange(keys),
                    r.choice(["", "nord", "süd"]),
                    None if r.random() < 0.1 else r.randrange(5),
                    None if r.random() < 0.2 else n,
                )
                for n in range(r.choice([0, 1, 7, 60]))
            ]
        )
    return windows, r.randint(1, 3)


def notes_of(sent: Sequence[Sent], partitions: int, starts: dict[int, int]) -> Iterator[tuple[int, int, Sent]]:
    for n, each in enumerate(sent):
        partition = n % partitions
        yield partition, starts.get(partition, 0), each
        starts[partition] = starts.get(partition, 0) + 1


@pytest.mark.parametrize("state", STATES, ids=lambda s: f"{s.order}-{s.deletes}-{s.keep}")
@pytest.mark.parametrize("seed", long_after(2, range(4)))
def test_changes_are_those_of_a_plain_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: StateDeclaration, seed: int
) -> None:
    """The winners are also compared in many small batches."""
    monkeypatch.setattr(engine, "_MOST_WAITING", 5)
    monkeypatch.setattr(engine, "_BLOCK_ROWS", 4)
    windows, partitions = history(seed)
    topic = topic_of(tmp_path, state)
    topic.partitions = partitions
    keys = topic.load(*([each.record for each in sent] for sent in windows))
    topic.decode()
    starts: dict[int, int] = {}
    for key, sent in zip(keys, windows, strict=True):
        done = topic.changer.make(key)
        notes = list(notes_of(sent, partitions, starts))
        if not sent:
            assert (done.outcome, done.receipt.rows) == ("empty", 0)
            continue
        assert held(topic, key) == replayed(notes, state), f"seed {seed}"
        by_place = {(partition, offset): each for partition, offset, each in notes}
        for row in rows(topic, key):
            each = by_place[row["kafka_partition"], row["kafka_offset"]]
            assert (row["id"], row["region"], row["version"], row["n"]) == (
                each.id, each.region, each.version if each.n is not None else None, each.n,
            )  # fmt: skip
            assert row["generation"] == 1
        figures = done.receipt.figures or {}
        refused = sum(figures[name].failing for name in (NO_VALUE, NO_KEY, NO_VERSION) if name in figures)
        assert refused + figures[SUPERSEDED].failing + done.receipt.rows == len(sent)
    check(topic)


def test_records_without_a_place_are_counted_and_listed(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, StateDeclaration(("id",), order="version", deletes="none"))
    (key,) = topic.load(
        [Sent(1, "", 1, 1).record, Sent(None, "", 1, 2).record, Sent(2, "", None, 3).record, Sent(3, "").record]
    )
    topic.decode()
    receipt = topic.changer.make(key).receipt
    assert {name: f.failing for name, f in (receipt.figures or {}).items()} == {
        NO_KEY: 1, NO_VERSION: 1, NO_VALUE: 1, SUPERSEDED: 0,
    }  # fmt: skip
    assert receipt.holes == {NO_KEY: 1, NO_VERSION: 1, NO_VALUE: 1}
    found = checks.placed(checks.windows_of(topic.declaration, topic.ledger))
    assert [f.detail for f in found.findings] == [
        "1 record without a value, for example partition 0 offset 3",
        "1 record without a key, for example partition 0 offset 1",
        "1 record without a version, for example partition 0 offset 2",
    ]


def test_a_tombstone_whose_key_cannot_be_read_is_a_dead_letter(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    (key,) = topic.load([Keyed(b"{not json", None), Keyed(None, None), Sent(1, "a", 1, 1).record])
    topic.decode()
    receipt = topic.changer.make(key).receipt
    assert receipt.rows == 1
    assert receipt.holes == {"dead letters": 1, NO_KEY: 1}
    check(topic)


def test_keys_in_several_partitions_are_counted(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    topic.partitions = 2
    (key,) = topic.load([Sent(1, "a", 1, 1).record, Sent(1, "a", 1, 2).record, Sent(2, "a", 1, 3).record])
    topic.decode()
    figures = topic.changer.make(key).receipt.figures or {}
    assert figures[SEVERAL_PARTITIONS].failing == 1
    found = checks.placed(checks.windows_of(topic.declaration, topic.ledger))
    assert "1 key had records" in found.headline
    assert [f.detail for f in found.findings] == [
        "1 key with records in several partitions, for example partition 1 offset 0"
    ]


def test_records_whose_key_is_not_that_of_their_row_are_counted(tmp_path: Path) -> None:
    """A tombstone with the same record key would delete another row, or none."""
    topic = topic_of(tmp_path)
    wrong = Keyed(Sent(9, "a").record.key, Sent(1, "a", 1, 1).record.value)
    (key,) = topic.load([Sent(2, "a", 1, 2).record, wrong, Sent(3, "a").record])
    topic.decode()
    receipt = topic.changer.make(key).receipt
    assert receipt.rows == 3
    windows = checks.windows_of(topic.declaration, topic.ledger)
    found, place = checks.placed(windows), topic.windows[0].ranges.by_partition[0].start + 1
    assert checks.misses_deletes(windows)
    assert [f.detail for f in found.findings] == [f"1 record {OTHER_KEY}, for example partition 0 offset {place}"]
    assert checks.conserved(windows).passed
    topic.state = replace(LAST, deletes="none")
    topic.changer.make(key)
    assert not checks.misses_deletes(checks.windows_of(topic.declaration, topic.ledger))


def test_a_window_made_again_is_unchanged_or_repaired(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    keys = topic.load([Sent(n % 3, "a", 1, n).record for n in range(9)], [Sent(7, "a").record])
    topic.decode()
    assert [topic.changer.make(key).outcome for key in keys] == ["loaded", "loaded"]
    before = held(topic, keys[0])
    assert topic.changer.make(keys[0]).outcome == "unchanged"
    DeltaTable(tmp_path / "changes" / "orders").delete(f"window = '{keys[0]}' and id = 1")
    assert not checks.conserved(checks.windows_of(topic.declaration, topic.ledger)).passed
    assert topic.changer.make(keys[0]).outcome == "healed"
    assert held(topic, keys[0]) == before
    check(topic)


def test_a_window_that_is_decoded_again_is_outdated_until_its_changes_are_made_again(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    keys = topic.load([Sent(1, "a", 1, 1).record], [Sent(2, "a", 1, 2).record])
    topic.decode()
    first = [topic.changer.make(key).receipt for key in keys]
    assert stale_windows(topic.ledger, topic.declaration) == []
    topic.declared = replace(DECODE, revision=2)
    topic.decode(keys[0])
    assert stale_windows(topic.ledger, topic.declaration) == [keys[0]]
    found = checks.conserved(checks.windows_of(topic.declaration, topic.ledger))
    assert found.undecided
    again = topic.changer.make(keys[0])
    assert (again.outcome, again.receipt.table_version) == ("unchanged", first[0].table_version), "no commit"
    assert stale_windows(topic.ledger, topic.declaration) == []
    topic.state = StateDeclaration(("id",), deletes="none")
    assert stale_windows(topic.ledger, topic.declaration) == keys
    assert topic.changer.make(keys[0]).outcome in ("replaced", "unchanged")
    assert stale_windows(topic.ledger, topic.declaration) == [keys[1]]


def test_a_new_column_of_the_value_is_a_new_column_of_the_changes(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    (key,) = topic.load([Sent(1, "a", 1, 1).record])
    topic.decode()
    topic.changer.make(key)
    wider = FormatSpec("json", {"schema": f"{VALUE.options['schema']}, more STRING"})
    topic.declared = replace(DECODE, value=wider)
    topic.decode()
    topic.changer.make(key)
    assert rows(topic, key)[0]["more"] is None
    check(topic)


def test_a_table_starts_over_if_its_columns_no_longer_fit(tmp_path: Path) -> None:
    text = DecodeDeclaration(VALUE, FormatSpec("string"))
    topic = topic_of(tmp_path, StateDeclaration(("key",)), text)
    (key,) = topic.load([Keyed(b"k", Sent(1, "a", 1, 1).record.value), Keyed(b"k", None)])
    topic.decode()
    topic.changer.make(key)
    assert [(row["key"], row["deleted"]) for row in rows(topic, key)] == [("k", True)]
    topic.state = StateDeclaration(("id",), deletes="none")
    assert topic.changer.make(key).outcome == "replaced"
    (row,) = rows(topic, key)
    assert (row["id"], "key" in row) == (1, False)
    check(topic)


def test_windows_that_a_table_lost_when_it_started_over_are_outdated_after_the_way_back(tmp_path: Path) -> None:
    text, by_key = DecodeDeclaration(VALUE, FormatSpec("string")), StateDeclaration(("key",))
    topic = topic_of(tmp_path, by_key, text)
    value = Sent(1, "a", 1, 1).record.value
    keys = topic.load([Keyed(b"k", value)], [Keyed(b"k", value), Keyed(b"l", value)], [Keyed(None, value)])
    topic.decode()
    for key in keys:
        topic.changer.make(key)
    topic.state = StateDeclaration(("id",), deletes="none")
    topic.changer.make(keys[0])
    topic.state = by_key
    assert stale_windows(topic.ledger, topic.declaration) == keys[:2], "a window without rows lost none"
    for key in keys[:2]:
        assert topic.changer.make(key).outcome in ("healed", "replaced")
        topic.changer.make(keys[2])
    assert [len(rows(topic, key)) for key in keys] == [1, 2, 0]
    assert stale_windows(topic.ledger, topic.declaration) == []
    check(topic)


def test_windows_whose_receipt_names_no_load_are_outdated_once_there_are_decoded_rows(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    (key,) = topic.load([Sent(1, "a", 1, 1).record])
    topic.decode()
    decoded = topic.ledger.receipts(topic.declaration.decoded_table, [key])[key]
    without = topic.changer._without_rows(replace(decoded, kind=EXPIRED), None).receipt
    assert without.made_from is None
    assert stale_windows(topic.ledger, topic.declaration) == [key]
    topic.changer.make(key)
    assert stale_windows(topic.ledger, topic.declaration) == []
    assert len(rows(topic, key)) == 1


def test_outdated_windows_are_read_again_only_after_entries_of_their_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(tmp_path)
    keys = topic.load([Sent(1, "a", 1, 1).record], [Sent(2, "a", 1, 2).record])
    topic.decode()
    topic.changer.make(keys[0])
    assert stale_windows(topic.ledger, topic.declaration) == []
    read, rows_of = list[str](), Ledger.commit_rows

    def counted(ledger: Ledger, table: TableRef, *args: Any, **kwargs: Any) -> Any:
        read.append(table.name)
        return rows_of(ledger, table, *args, **kwargs)

    monkeypatch.setattr(Ledger, "commit_rows", counted)
    assert stale_windows(topic.ledger, topic.declaration) == []
    assert read == []
    topic.changer.make(keys[1])
    read.clear()
    assert stale_windows(topic.ledger, topic.declaration) == []
    assert read == ["changes/orders", "decoded/orders"]


def test_changes_need_a_decoded_window_and_a_state(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    (key,) = topic.load([Sent(1, "a", 1, 1).record])
    with pytest.raises(NotLoadedError, match="decoded/orders"):
        topic.changer.make(key)
    topic.decode()
    topic.state = None
    with pytest.raises(ConfigurationError, match="no `state:`"):
        topic.changer.make(key)


def test_damaged_decoded_rows_are_never_used(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    (key,) = topic.load([Sent(n, "a", 1, n).record for n in range(5)])
    topic.decode()
    DeltaTable(tmp_path / "decoded" / "orders").delete("id = 1")
    with pytest.raises(FilesLostError, match="decoded/orders"):
        topic.changer.make(key)
    assert not list((tmp_path / "changes" / "orders").rglob("*.parquet"))
    topic.decode()
    topic.changer.make(key)
    assert len(held(topic, key)) == 5


class Died(BaseException):
    """An exception that stands for a killed process: nothing below the test catches it."""


@pytest.mark.parametrize("step", ["changes", "receipt"])
def test_a_run_that_dies_leaves_a_window_that_the_next_run_completes(tmp_path: Path, step: str) -> None:
    topic = topic_of(tmp_path)
    (key,) = topic.load([Sent(n % 2, "a", 1, n).record for n in range(5)])
    topic.decode()

    def die(now: str) -> None:
        if now == step:
            raise Died

    with pytest.raises(Died):
        WindowChanger(topic.declaration, topic.ledger, before_step=die).make(key)
    topic.changer.make(key)
    assert held(topic, key) == {(0, "a"): (0, 4, False), (1, "a"): (0, 3, False)}
    check(topic)


def test_two_runs_at_once_leave_one_row_for_each_key(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    (key,) = topic.load([Sent(n % 2, "a", 1, n).record for n in range(5)])
    topic.decode()

    def other(step: str) -> None:
        if step == "changes" and not done:
            done.append(topic.changer.make(key))

    done: list[Any] = []
    WindowChanger(topic.declaration, topic.ledger, before_step=other).make(key)
    assert len(done) == 1
    assert len(held(topic, key)) == 2
    check(topic)


def test_an_erased_record_gives_way_to_the_record_before_it(tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path)
    topic.declaration = replace(topic.declaration, state=StateDeclaration(("key",)))
    windows = topic.seal([{0: [(b"a", b"older"), (b"a", b"secret"), (b"b", b"other")]}])
    topic.fill(windows)
    changer, key = WindowChanger(topic.declaration, topic.ledger), windows[0].key
    changer.make(key)
    assert topic.values("changes") == ["secret", "other"]
    author = Author("tester", "asked to")
    topic.erasure.record(topic.erasure.at_offsets({0: (OffsetRange(1, 2),)}), author)
    topic.erasure.run(author)
    assert topic.values("changes") == ["older", "other"]
    assert not found_in(tmp_path, b"secret")
    assert stale_windows(topic.ledger, topic.declaration) == []
    assert checks.conserved(checks.windows_of(topic.declaration, topic.ledger)).passed
    assert changer.make(key).outcome == "unchanged"


def test_an_erasure_that_was_interrupted_is_completed_before_changes_are_made(tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path)
    topic.declaration = replace(topic.declaration, state=StateDeclaration(("key",)))
    windows = topic.seal([{0: [(b"a", b"older"), (b"a", b"secret")]}])
    topic.fill(windows)
    changer, key = WindowChanger(topic.declaration, topic.ledger), windows[0].key
    changer.make(key)
    topic.erasure.record(topic.erasure.at_offsets({0: (OffsetRange(1, 2),)}), Author("tester", "asked to"))
    changer.make(key)
    assert topic.values("changes") == ["older"]


def test_a_lost_ledger_gets_the_receipts_back(tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    keys = topic.load([Sent(n % 3, "a", 1, n).record for n in range(9)], [Sent(7, "a").record])
    topic.decode()
    before = {key: topic.changer.make(key).receipt for key in keys}
    entries = DeltaTable(tmp_path / "_ledger" / "commits")
    entries.delete("table = 'changes/orders'")
    assert topic.changer.changes.receipt(keys[0]) is None
    assert rebuild_changes(topic.declaration, topic.ledger) == 2
    after = {key: topic.changer.changes.receipt(key) for key in keys}
    for key, was in before.items():
        now = after[key]
        assert now is not None
        assert (now.rows, now.content_digest, now.made_from, now.holes) == (
            was.rows,
            was.content_digest,
            was.made_from,
            was.holes,
        )
    assert stale_windows(topic.ledger, topic.declaration) == []


def test_an_audit_makes_changes_again_and_finds_altered_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_of(tmp_path)
    (key,) = topic.load([Sent(n % 3, "a", 1, n).record for n in range(9)])
    topic.decode()
    topic.changer.make(key)
    assert topic.changer.difference(key) is None
    chosen: Callable[..., Any] = engine.Choice.finished
    monkeypatch.setattr(engine.Choice, "finished", lambda self: ({0: chosen(self)[0][0][:1]}, chosen(self)[1]))
    assert topic.changer.difference(key) is not None


@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "killed before the receipt"])
def test_a_fold_waits_for_a_new_window_whose_changes_were_made_by_another_declaration(
    tmp_path: Path, *, is_recorded: bool
) -> None:
    """A new version of the code made them, and is then taken back."""
    topic = topic_of(tmp_path, ONE)
    first, second = topic.load(
        [Sent(1, "n", 1, 1).record, Sent(2, "n", 1, 2).record], [Sent(1, "n", 2, 3).record, Sent(1, "s", 2, 4).record]
    )
    topic.decode()
    topic.changer.make(first)
    state = TopicState(topic.topic, ONE, topic.lake)
    state.fold()
    topic.state = LAST

    def killed(step: str) -> None:
        if step == "receipt" and not is_recorded:
            raise KeyboardInterrupt

    with nullcontext() if is_recorded else pytest.raises(KeyboardInterrupt):
        WindowChanger(topic.declaration, topic.ledger, before_step=killed).make(second)
    topic.state = ONE
    pending = state.pending()
    assert "1 window has changes that were made with other columns or another `state:`" in pending.waits
    assert not pending.is_due
    with pytest.raises(ChangesOutdatedError, match=second):
        state.fold()
    topic.changer.make(second)
    state.fold()
    assert state.compare().is_equal
    rows = pl.scan_delta(str(tmp_path / "state" / topic.topic)).collect()
    assert {row["id"]: row["n"] for row in rows.to_dicts()} == {1: 4, 2: 2}


def make_killed(topic: DecodedTopic, key: str) -> None:
    """Make the changes of a window in a run that ends between the commit and its receipt."""

    def die(step: str) -> None:
        if step == "receipt":
            raise Died

    with pytest.raises(Died):
        WindowChanger(topic.declaration, topic.ledger, before_step=die).make(key)


def in_state(topic: DecodedTopic) -> dict[int, int]:
    found = pl.scan_delta(str(topic.root / "state" / topic.topic)).collect()
    return {row["id"]: row["n"] for row in found.to_dicts()}


UPSERTS: Final = StateDeclaration(("id",), deletes="none")


@pytest.mark.parametrize("is_parked", [False, True])
def test_a_state_made_from_all_changes_waits_for_changes_of_another_declaration_without_a_receipt(
    tmp_path: Path, *, is_parked: bool
) -> None:
    topic = topic_of(tmp_path, ONE)
    first, second = topic.load([Sent(1, "n", 1, 1).record, Sent(2, "n", 1, 2).record], [Sent(1, "n").record])
    topic.decode()
    topic.changer.make(first)
    TopicState(topic.topic, ONE, topic.lake).fold()
    make_killed(topic, second)
    topic.state = UPSERTS
    topic.changer.make(first)
    table, author = topic.declaration.changes_table, Author("tester", "asked to")
    if is_parked:
        park(table, [second], author, topic.ledger)
    state = TopicState(topic.topic, UPSERTS, topic.lake)
    assert second in state.pending().waits
    with pytest.raises(ChangesOutdatedError, match=second):
        state.fold()
    assert stale_windows(topic.ledger, topic.declaration) == [second]
    if is_parked:
        unpark(table, [second], author, topic.ledger)
    topic.changer.make(second)
    assert stale_windows(topic.ledger, topic.declaration) == []
    state.fold()
    assert in_state(topic) == {1: 1, 2: 2}


@pytest.mark.parametrize("is_merged", [False, True], ids=["separate files", "a shared file"])
def test_changes_that_another_declaration_replaced_without_a_receipt_are_made_again(
    tmp_path: Path, *, is_merged: bool
) -> None:
    topic = topic_of(tmp_path, UPSERTS)
    first, second = topic.load(
        [Sent(1, "n", 1, 1).record, Sent(2, "n", 1, 2).record], [Sent(1, "n", 2, 3).record, Sent(1, "n").record]
    )
    topic.decode()
    for key in (first, second):
        topic.changer.make(key)
    state = TopicState(topic.topic, UPSERTS, topic.lake)
    state.fold()
    if is_merged:
        assert list(Upkeep(topic.declaration.changes_table, topic.ledger, target=1 << 20).run("9999"))
    assert stale_windows(topic.ledger, topic.declaration) == []
    topic.state = ONE
    make_killed(topic, second)
    topic.state = UPSERTS
    assert stale_windows(topic.ledger, topic.declaration) == [second]
    assert second in state.pending().waits
    (tmp_path / "state").rename(tmp_path / "lost")
    assert second in state.pending().waits
    assert topic.changer.make(second).outcome == "healed"
    assert stale_windows(topic.ledger, topic.declaration) == []
    state.fold()
    assert in_state(topic) == {1: 3, 2: 2}


def test_a_state_does_not_wait_for_changes_without_a_receipt_that_cannot_be_made_again(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, ONE)
    first, second = topic.load([Sent(1, "n", 1, 1).record], [Sent(2, "n", 1, 2).record])
    topic.decode()
    topic.changer.make(first)
    make_killed(topic, second)
    known = topic.ledger.receipts(topic.declaration.decoded_table, [second])[second]
    expired = expired_receipt(known, (known.table_version or 0) + 1, "1 day", known.table_id or "")
    topic.ledger.record_receipts([expired])
    assert not stale_windows(topic.ledger, topic.declaration)
    state = TopicState(topic.topic, ONE, topic.lake)
    assert not state.pending().waits
    state.fold()
    assert in_state(topic) == {1: 1, 2: 2}


def test_windows_that_a_damaged_shared_file_took_along_are_stale_before_the_receipt(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, ONE)
    keys = topic.load(*[[Sent(n, "n", 1, n).record] for n in range(3)])
    topic.decode()
    for key in keys:
        topic.changer.make(key)
    table = topic.declaration.changes_table
    assert list(Upkeep(table, topic.ledger, target=1 << 20).run("9999"))
    assert stale_windows(topic.ledger, topic.declaration) == []
    (file,) = topic.lake.table(table).delta().file_uris()
    Path(file.removeprefix("file://")).unlink()
    make_killed(topic, keys[0])
    assert stale_windows(topic.ledger, topic.declaration) == keys
    for key in keys:
        topic.changer.make(key)
    assert stale_windows(topic.ledger, topic.declaration) == []


def test_stale_windows_are_remembered_while_no_table_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_of(tmp_path, ONE)
    (key,) = topic.load([Sent(1, "n", 1, 1).record])
    topic.decode()
    topic.changer.make(key)
    assert stale_windows(topic.ledger, topic.declaration) == []
    with monkeypatch.context() as patched:
        patched.setattr(changing, "_stale", lambda *_: pytest.fail("nothing has changed"))
        assert stale_windows(topic.ledger, topic.declaration) == []
    folder = topic.lake.table(topic.declaration.changes_table)
    DeltaTable(folder.uri).delete()
    assert stale_windows(topic.ledger, topic.declaration) == [key]


def test_a_state_is_not_made_from_changes_of_another_declaration_whose_rows_are_dead_letters_now(
    tmp_path: Path,
) -> None:
    topic = topic_of(tmp_path, ONE)
    first, second = topic.load([Sent(1, "n", 1, 1).record], [Sent(2, "n", 2, 2).record])
    topic.decode()
    for key in (first, second):
        topic.changer.make(key)
    state = TopicState(topic.topic, ONE, topic.lake)
    state.fold()
    place = topic.windows[0].ranges.by_partition[0].start
    topic.declared = replace(topic.declared, repairs=(Repair(first, 0, place, "no json"),))
    topic.decode(first)
    topic.state = LAST
    topic.changer.make(second)
    state = TopicState(topic.topic, LAST, topic.lake)
    assert first in state.pending().waits
    topic.changer.make(first)
    state.fold()
    assert pl.scan_delta(str(tmp_path / "state" / topic.topic)).collect()["id"].to_list() == [2]


def test_a_fold_does_not_wait_for_changes_that_cannot_be_made_again(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, ONE)
    first, second = topic.load([Sent(1, "n", 1, 1).record], [Sent(1, "n", 2, 3).record])
    topic.decode()
    topic.changer.make(first)
    state = TopicState(topic.topic, ONE, topic.lake)
    state.fold()
    topic.state = LAST
    topic.changer.make(second)
    topic.state = ONE
    assert second in state.pending().waits
    for table in (topic.declaration.changes_table, topic.declaration.decoded_table):
        known = topic.ledger.receipts(table, [second])[second]
        expired = expired_receipt(known, (known.table_version or 0) + 1, "1 day", known.table_id or "")
        topic.ledger.record_receipts([expired])
    assert not stale_windows(topic.ledger, topic.declaration)
    assert not state.pending().waits
    state.fold()


@pytest.mark.parametrize("keep", ["1 day", ""])
def test_changes_that_upkeep_has_just_removed_are_not_lost(tmp_path: Path, keep: str) -> None:
    topic = topic_of(tmp_path, ONE)
    (key,) = topic.load([Sent(1, "n", 1, 1).record])
    topic.decode()
    made, table = topic.changer.make(key).receipt, topic.declaration.changes_table
    metadata = LoadMetadata(
        topic.topic, made.topic_id, made.generation, made.window, made.ranges, "other", "run", expired=keep
    )
    WindowCommit(topic.lake, table, measure_of("decoded")).replace(metadata, ())
    assert stale_windows(topic.ledger, topic.declaration) == ([] if keep else [key])
