"""Changes of a database's table: compared with a dictionary that replays the producer's notes, for random histories with
windows that are decoded again, several generations and partitions."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from deltalake import DeltaTable

from platform_assets.checks import changes as checks
from platform_assets.checks import state as state_checks
from platform_assets.cli.state_snippets import changes_from, fresh_view
from platform_assets.engines import changes as engine
from platform_assets.engines.folding import fold
from platform_assets.errors import ConfigurationError, StateOutdatedError
from platform_assets.ledger.entries import RecordedCut
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets.model.state import NO_KEY, TRUNCATE, StateDeclaration
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.avro_data import record, written
from platform_assets_tests.support.avro_events import avro_event, avro_schema, envelope, typed
from platform_assets_tests.support.change_events import event, read_by
from platform_assets_tests.support.decoded_topic import DecodedTopic
from platform_assets_tests.support.fake_registry import fake_registry
from platform_assets_tests.support.made_changes import DAYS, MadeChanges, change
from platform_assets_tests.support.variants import long_after
from testbed import samples
from testbed.samples import Keyed

VALUE: Final = FormatSpec("debezium", {"schema": "id BIGINT NOT NULL, name STRING NOT NULL, tags ARRAY<STRING>"})
DECODE: Final = DecodeDeclaration(
    VALUE, FormatSpec("json", {"schema": "id BIGINT NOT NULL"}), fail_share=1.0, warn_share=1.0
)
STATE: Final = StateDeclaration(("id",), deletes="debezium")
TOMBSTONE: Final = "tombstone"


@dataclass(frozen=True, slots=True)
class Note:
    """One record as its producer noted it. `operation` is Debezium's code, or `TOMBSTONE`. If `damaged`, the record is
    JSON that ends early, until a repair replaces its value."""

    operation: str
    id: int | None = None
    name: str = ""
    damaged: bool = False

    @property
    def row(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "tags": [self.name]}

    @property
    def value(self) -> bytes | None:
        """The event as the connector writes it with REPLICA IDENTITY DEFAULT: a delete has only the key."""
        if self.operation == TOMBSTONE:
            return None
        if self.operation == "t":
            return event("t")
        if self.operation == "d":
            return event("d", before={"id": self.id, "name": "", "tags": None})
        return event(self.operation, after=self.row)

    @property
    def record(self) -> Keyed:
        key = None if self.operation == "t" else json.dumps({"id": self.id}).encode()
        value = self.value
        return Keyed(key, value[:-1] if self.damaged and value else value)


Place = tuple[int, str, int, int]
"""Generation, window, partition and offset."""


def replayed(
    notes: Mapping[Place, Note], ordered: Collection[str]
) -> dict[int | None, tuple[Place, dict[str, Any] | None]]:
    """Return the last record of each key and its row, None for a delete: a plain replay, without the product's code. The
    last truncate in one of the windows `ordered`, which have one partition, has no key, and deletes all keys before it."""
    now: dict[int | None, tuple[Place, dict[str, Any] | None]] = {}
    for place in sorted(notes):
        note = notes[place]
        if note.operation == "t" and not note.damaged and place[1] in ordered:
            now = {None: (place, None)}
        if note.operation != "t" and note.id is not None and not note.damaged:
            now[note.id] = (place, None if note.operation in ("d", TOMBSTONE) else note.row)
    return now


def rows(topic: DecodedTopic, kind: str = "changes") -> list[dict[str, Any]]:
    path = topic.root / kind / topic.topic
    found: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist() if path.exists() else []
    return found


def place_of(row: Mapping[str, Any]) -> Place:
    return row["generation"], row["window"], row["kafka_partition"], row["kafka_offset"]


def held(found: list[dict[str, Any]]) -> dict[int | None, tuple[Place, dict[str, Any] | None]]:
    """Return the newest change of each key, and its row. Changes before the last truncate do not count."""
    now: dict[int | None, tuple[Place, dict[str, Any] | None]] = {}
    for row in sorted(found, key=place_of):
        of_delete = {name: row[name] for name in ("name", "tags", "change_operation", "change_tx_id")}
        assert not row["deleted"] or set(of_delete.values()) == {None}, "a delete has only a key"
        if row["id"] is None:
            now = {}
        now[row["id"]] = (
            place_of(row),
            None if row["deleted"] else {name: row[name] for name in ("id", "name", "tags")},
        )
    return now


@dataclass
class History:
    """A topic whose producer notes what it sends, in two generations of the topic's log."""

    root: Path
    seed: int
    notes: dict[Place, Note] = field(default_factory=dict)
    topic: DecodedTopic = field(init=False)
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.topic = DecodedTopic(self.root, "orders", DECODE)
        self.topic.state = STATE

    def produce(self) -> None:
        """Write random records to the raw table, in one or two generations, with partitions added between windows."""
        r, cuts, sent, keys = self.random, list[RecordedCut](), dict[tuple[int, str], dict[tuple[int, int], Note]](), 0
        for generation in range(1, r.randint(1, 2) + 1):
            ends, own = dict.fromkeys(range(r.randint(1, 2)), 0), f"log-{generation}"
            cuts.append(samples.cut("orders", samples.edge(keys), ends, topic_id=own, generation=generation))
            for _ in range(r.randint(1, 3)):
                before = {**ends, len(ends): 0} if r.random() < 0.2 else ends
                made = {p: self.records(r.choice([0, 1, 5, 30])) for p in before}
                ends = {p: start + len(made[p]) for p, start in before.items()}
                key = samples.edge(keys).strftime("%Y-%m-%d-%H:%M")
                sent[generation, key] = {(p, before[p] + n): each for p in made for n, each in enumerate(made[p])}
                keys += 1
                cuts.append(samples.cut("orders", samples.edge(keys), ends, topic_id=own, generation=generation))
        ledger = self.topic.ledger
        ledger.create()
        for generation in dict.fromkeys(cut.generation for cut in cuts):
            own_cuts = [cut for cut in cuts if cut.generation == generation]
            assert ledger.record_cuts(own_cuts, None if generation == 1 else own_cuts[0].edge)
        self.topic.windows = ledger.windows("orders")
        for window in self.topic.windows:
            notes = sent[window.generation, window.key]
            samples.loaded(
                self.root, window, values={p: n.record for p, n in notes.items()}, holes={}, proved_by="load digest"
            )
            self.notes |= {(window.generation, window.key, *place): note for place, note in notes.items()}

    def records(self, number: int) -> list[Note]:
        """Return random records. Tombstones mostly follow their delete, as the connector writes them."""
        r, made = self.random, list[Note]()
        while len(made) < number:
            id = r.randrange(r.choice([1, 4, 40]))
            operation = r.choice(["c", "r", "u", "u", "d", "d", TOMBSTONE, "t"])
            name = "" if operation in ("d", "t", TOMBSTONE) else f"{r.randrange(10**6)}"
            made.append(
                Note(operation, None if operation == "t" else id, name, operation != TOMBSTONE and r.random() < 0.1)
            )
            if operation == "d" and r.random() < 0.5:
                made.append(Note(TOMBSTONE, id))
        return made[:number]

    def repair(self) -> list[str]:
        """Repair some damaged records. Return their windows, which have to be decoded again."""
        damaged = [place for place, note in self.notes.items() if note.damaged]
        chosen = self.random.sample(damaged, self.random.randint(0, len(damaged)))
        repairs = [Repair(place[1], place[2], place[3], (self.notes[place].value or b"").decode()) for place in chosen]
        self.topic.declared = replace(self.topic.declared, repairs=tuple(repairs))
        self.notes |= {place: replace(self.notes[place], damaged=False) for place in chosen}
        return sorted({place[1] for place in chosen})

    def make(self, *keys: str) -> None:
        """Decode the windows and make their changes, in any order, some of them twice."""
        keys = tuple(self.random.sample(keys, len(keys)))
        if keys:
            self.topic.decode(*keys)
        for key in (*keys, *self.random.sample(keys, len(keys) // 2)):
            self.topic.changer.make(key)

    def judge(self) -> None:
        """Compare the changes with the notes, for each window and for all of them."""
        found, said = rows(self.topic), f"seed {self.seed}"
        ordered = {window.key for window in self.topic.windows if len(window.ranges.by_partition) == 1}
        for window in self.topic.windows:
            own = {p: n for p, n in self.notes.items() if p[:2] == (window.generation, window.key)}
            of_window = [row for row in found if row["window"] == window.key]
            assert held(of_window) == replayed(own, ordered), f"{said}, window {window.key}"
            assert len(of_window) == len(replayed(own, ordered)), f"{said}: a key has two rows"
            figures = self.topic.ledger.receipts(self.topic.declaration.changes_table)[window.key].figures or {}
            truncates = sum(note.operation == "t" and not note.damaged for note in own.values())
            refused = 0 if window.key in ordered else truncates
            assert (figures[TRUNCATE].failing if TRUNCATE in figures else 0) == refused, said
            assert NO_KEY not in figures, said
        expected = replayed(self.notes, ordered)
        assert held(found) == expected, said
        TopicState("orders", STATE, self.topic.lake).fold()
        live, dead = (
            {row["id"]: place_of(row) for row in rows(self.topic, kind)} for kind in ("state", "state_deleted")
        )
        assert live == {id: place for id, (place, row) in expected.items() if row is not None}, said
        assert dead == {id: place for id, (place, row) in expected.items() if row is None}, said
        judged = checks.conserved(checks.windows_of(self.topic.declaration, self.topic.ledger))
        assert judged.passed, f"{said}: {judged}"


@pytest.mark.parametrize("seed", long_after(4, range(12)))
def test_changes_of_random_histories_are_those_of_a_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(engine, "_MOST_WAITING", 7)
    monkeypatch.setattr(engine, "_BLOCK_ROWS", 5)
    history = History(tmp_path, seed)
    history.produce()
    history.make(*(window.key for window in history.topic.windows))
    history.judge()
    history.make(*history.repair())
    history.judge()


def made(
    root: Path,
    *records: Keyed,
    decode: DecodeDeclaration = DECODE,
    state: StateDeclaration = STATE,
    partitions: int = 1,
) -> DecodedTopic:
    """Return a topic with one window, whose changes are made."""
    topic = DecodedTopic(root, "orders", decode)
    topic.state, topic.partitions = state, partitions
    (key,) = topic.load(records)
    topic.decode()
    topic.changer.make(key)
    return topic


@pytest.mark.parametrize("tombstones", [True, False])
def test_a_delete_takes_effect_with_and_without_its_tombstone(tmp_path: Path, tombstones: bool) -> None:
    notes = [Note("c", 1, "a"), Note("c", 2, "b"), Note("d", 1), *([Note(TOMBSTONE, 1)] if tombstones else [])]
    topic = made(tmp_path, *(note.record for note in notes))
    assert {row["id"]: (row["deleted"], row["name"]) for row in rows(topic)} == {1: (True, None), 2: (False, "b")}


def test_events_in_avro_give_the_state_that_they_give_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column is added between two events of the window, so that they name two schemas of the registry."""
    notes = [
        Note("c", 1, "a"), Note("t"), Note("r", 2, "b"), Note("c", 3, "c"), Note("u", 2, "d"), Note("d", 3),
        Note(TOMBSTONE, 3), Note("c", 4, "c"),
    ]  # fmt: skip
    old = {"id": {"type": "int64"}, "name": {"type": "string"}, "tags": typed("array", items=typed("string"))}
    schemas = {1: old, 2: {**old, "added": typed("int32")}}
    key = record(id="long")

    def in_avro(note: Note, number: int) -> Keyed:
        head, event_of = b"\0\0\0\0", json.loads(note.value or b"{}")
        named = None if note.id is None else head + b"\3" + written(key, {"id": note.id})
        if note.operation == TOMBSTONE:
            return Keyed(named, None)
        images = [event_of.get(image) for image in ("before", "after")]
        return Keyed(named, head + bytes([number]) + avro_event(schemas[number], note.operation, *images))

    with fake_registry() as registry:
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", registry.url)
        for number, row in schemas.items():
            registry.has(f"/schemas/ids/{number}", {"schema": json.dumps(avro_schema(envelope(row)))})
        registry.has("/schemas/ids/3", {"schema": json.dumps(key)})
        by_registry = replace(
            DECODE,
            value=FormatSpec("debezium", {**VALUE.options, "registry": True}),
            key=FormatSpec("avro", {"schema": key, "registry": True}),
        )
        records = [in_avro(note, 1 + at % 2) for at, note in enumerate(notes)]
        topics = [
            made(tmp_path / "avro", *records, decode=by_registry),
            made(tmp_path / "json", *(note.record for note in notes)),
        ]
    for topic in topics:
        TopicState("orders", STATE, topic.lake).fold()
    live = [sorted((row["id"], row["name"], row["tags"]) for row in rows(topic, "state")) for topic in topics]
    dead = [{row["id"] for row in rows(topic, "state_deleted")} for topic in topics]
    assert live == [[(2, "d", ["d"]), (4, "c", ["c"])]] * 2
    assert dead == [{None, 3}] * 2
    assert held(rows(topics[0])) == held(rows(topics[1]))


def test_a_reinserted_row_lives(tmp_path: Path) -> None:
    notes = [Note("c", 1, "a"), Note("d", 1), Note(TOMBSTONE, 1), Note("c", 1, "again")]
    topic = made(tmp_path, *(note.record for note in notes))
    assert [(row["id"], row["deleted"], row["name"]) for row in rows(topic)] == [(1, False, "again")]


def test_a_fold_moves_deleted_rows_aside_and_a_later_insert_brings_them_back(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders", DECODE)
    topic.state = STATE
    first = [Note("c", 1, "a"), Note("c", 2, "b"), Note("c", 3, "c"), Note("c", 4, "d")]
    second = [Note("d", 1), Note("d", 2), Note(TOMBSTONE, 2), Note("u", 3, "new")]
    keys = topic.load(*([note.record for note in notes] for notes in (first, second, [Note("c", 1, "again")])))
    topic.decode()
    state, folded = TopicState("orders", STATE, topic.lake), []
    for key in keys:
        topic.changer.make(key)
        state.fold()
        live = {row["id"]: row["name"] for row in rows(topic, "state")}
        folded.append((live, {row["id"]: row["kafka_offset"] for row in rows(topic, "state_deleted")}))
    assert folded == [
        ({1: "a", 2: "b", 3: "c", 4: "d"}, {}),
        ({3: "new", 4: "d"}, {1: 4, 2: 6}),
        ({1: "again", 3: "new", 4: "d"}, {2: 6}),
    ]


@pytest.mark.parametrize(
    "before",
    [
        {"id": 7},
        {"id": 7, "name": None},
        {"id": 7, "name": "", "tags": None},
        {"id": 7, "name": "whole", "tags": ["x"]},
    ],
    ids=["the key alone", "nulls", "placeholders", "REPLICA IDENTITY FULL"],
)
def test_a_delete_names_its_row_whatever_the_replica_identity(tmp_path: Path, before: dict[str, Any]) -> None:
    topic = made(tmp_path, Note("c", 7, "a").record, Keyed(b'{"id": 7}', event("d", before=before)))
    assert [(row["id"], row["deleted"], row["name"], row["tags"]) for row in rows(topic)] == [(7, True, None, None)]


def test_a_delete_without_a_record_key_deletes_the_row_that_it_contains(tmp_path: Path) -> None:
    """Of a table without a primary key, the connector writes records without keys, but whole rows."""
    decode = replace(DECODE, key=FormatSpec("json", {"schema": "id BIGINT"}))
    row = {"id": 7, "name": "a", "tags": None}
    topic = made(tmp_path, Keyed(None, event("c", after=row)), Keyed(None, event("d", before=row)), decode=decode)
    assert [(row["id"], row["deleted"]) for row in rows(topic)] == [(7, True)]


def test_the_record_key_is_right_if_the_event_has_other_columns_of_the_row(tmp_path: Path) -> None:
    """With REPLICA IDENTITY USING INDEX, columns outside of the index have placeholders, such as 0."""
    records = [Note("c", 7, "a").record, Note("c", 0, "b").record]
    topic = made(tmp_path, *records, Keyed(b'{"id": 7}', event("d", before={"id": 0, "name": "a", "tags": None})))
    assert {row["id"]: row["deleted"] for row in rows(topic)} == {7: True, 0: False}


def test_the_operation_can_be_in_a_column_of_another_name(tmp_path: Path) -> None:
    spec = FormatSpec("debezium", {**VALUE.options, "envelope": {"operation": "op"}})
    renamed = StateDeclaration(("id",), deletes="debezium", operation="op")
    assert renamed.digest != STATE.digest
    records = (Note("c", 1, "a").record, Note("d", 1).record)
    topic = made(tmp_path, *records, decode=replace(DECODE, value=spec), state=renamed)
    assert [row["deleted"] for row in rows(topic)] == [True]


def test_records_can_be_identified_by_the_whole_record_key(tmp_path: Path) -> None:
    decode, state = replace(DECODE, key=FormatSpec("string")), StateDeclaration(("key",), deletes="debezium")
    delete = Note("d", 1).record
    topic = made(tmp_path, Note("c", 1, "a").record, Note("c", 2, "b").record, delete, decode=decode, state=state)
    assert {row["key"]: (row["deleted"], row["id"]) for row in rows(topic)} == {
        '{"id": 1}': (True, None), '{"id": 2}': (False, 2),
    }  # fmt: skip


def test_a_truncate_deletes_all_rows_before_it(tmp_path: Path) -> None:
    """Whatever their windows, and in whatever order these are folded."""
    topic = DecodedTopic(tmp_path, "orders", DECODE)
    topic.state = STATE
    first = [Note("c", 1, "a"), Note("c", 2, "b"), Note("d", 3)]
    second = [Note("c", 4, "c"), Note("t"), Note("c", 2, "again")]
    keys = topic.load(*([note.record for note in notes] for notes in (first, second, [Note("c", 5, "d")])))
    topic.decode()
    state = TopicState("orders", STATE, topic.lake)
    for key in (keys[1], keys[0], keys[2]):
        topic.changer.make(key)
        state.fold()
        assert {row["id"] for row in rows(topic, "state")} == ({2, 5} if key == keys[2] else {2})
        assert [(row["id"], row["kafka_offset"]) for row in rows(topic, "state_deleted")] == [(None, 4)]
    assert [(row["id"], row["deleted"]) for row in rows(topic) if row["window"] == keys[1]] == [
        (None, True),
        (2, False),
    ]
    windows = checks.windows_of(topic.declaration, topic.ledger)
    assert checks.conserved(windows).passed
    assert checks.placed(windows).passed
    assert state.compare().is_equal
    for found in state_checks.results(topic.declaration, STATE, topic.ledger, seed="1"):
        assert found.passed, found


def test_rows_come_back_if_the_window_of_a_truncate_has_none_any_more(tmp_path: Path) -> None:
    made = MadeChanges(tmp_path, STATE)
    first, second, third = DAYS[:3]
    made.load(first, [change(1, first, 0, "a"), change(2, first, 1, None)])
    made.load(second, [change(3, second, 2, "b"), {**change(0, second, 3, None), "id": None}])
    made.load(third, [change(4, third, 5, "c")])
    made.state().fold()
    assert (list(made.live()), list(made.dead())) == ([4], [None])
    made.load(second, [change(3, second, 2, "b")])
    assert made.state().fold().reason == f"window {second}, which had a truncate, has been replaced"
    assert (sorted(made.live()), list(made.dead())) == ([1, 3, 4], [2])
    made.check()


def test_a_row_from_before_a_truncate_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [[Note("c", 1, "a").record, Note("c", 2, "b").record], [Note("t").record]]
    topic = DecodedTopic(tmp_path, "orders", DECODE)
    topic.state = STATE
    keys = topic.load(*records)
    topic.decode()
    for key in keys:
        topic.changer.make(key)
    monkeypatch.setattr(fold, "_kept", lambda rows, truncate: rows)
    TopicState("orders", STATE, topic.lake).fold()
    assert {row["id"] for row in rows(topic, "state")} == {1, 2}
    results = {r.check: r for r in state_checks.results(topic.declaration, STATE, topic.ledger, seed="1")}
    assert results[state_checks.EQUALS].alarming
    assert f"before the truncate in window {keys[1]}" in results[state_checks.EQUALS].headline


def test_a_truncate_in_several_partitions_is_named_with_its_place_and_a_remedy(tmp_path: Path) -> None:
    notes = [Note("c", 1, "a"), Note("c", 2, "b"), Note("c", 3, "c"), Note("t")]
    topic = made(tmp_path, *(note.record for note in notes), partitions=2)
    assert {row["id"] for row in rows(topic)} == {1, 2, 3}
    windows = checks.windows_of(topic.declaration, topic.ledger)
    (found,) = checks.placed(windows).findings
    assert (
        found.detail == "1 record of a truncate, in a topic with several partitions, for example partition 1 offset 1"
    )
    assert "still in the state" in found.remedy
    assert checks.misses_deletes(windows)
    assert checks.conserved(windows).passed


def test_other_formats_make_the_same_changes_as_before(tmp_path: Path) -> None:
    """The digest of a state decides which changes are made again after an upgrade."""
    assert StateDeclaration(("id",)).digest == StateDeclaration(("id",), operation="op").digest == "1671866ac39d9e3a"


WHOLE: Final = replace(STATE, snapshots="whole", history=True)


KILLED: Final = [read_by(10, 1, "first"), read_by(10, 2), read_by(10, 3)]
AGAIN: Final = [read_by(20, 1, "first"), Note("u", 1, "streamed").record]
ENDED: Final = [read_by(20, 2, "last"), Note("c", 4, "streamed").record]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_complete_snapshot_deletes_rows_of_one_that_was_killed(tmp_path: Path, order: tuple[int, ...]) -> None:
    topic = DecodedTopic(tmp_path, "orders", DECODE)
    topic.state = WHOLE
    keys = topic.load(KILLED, AGAIN, ENDED)
    topic.decode()
    state, seen = TopicState("orders", WHOLE, topic.lake), set[int]()
    for number in order:
        topic.changer.make(keys[number])
        seen.add(number)
        state.fold()
        ids = {row["id"] for row in rows(topic, "state")}
        assert (3 in ids) == (0 in seen and 2 not in seen)
        assert state.compare().is_equal
    assert {row["id"]: row["name"] for row in rows(topic, "state")} == {1: "streamed", 2: "20", 4: "streamed"}
    assert rows(topic, "state_deleted") == []
    # The row that begins the snapshot is a change, although its key has a later one.
    assert [row["kafka_offset"] for row in rows(topic) if row["window"] == keys[1]] == [3, 4]
    ghost = next(row for row in rows(topic, "history") if row["id"] == 3)
    assert (ghost["valid_from"], ghost["valid_to"], ghost["ended_kafka_offset"]) == (keys[0], keys[2], 5)
    windows = checks.windows_of(topic.declaration, topic.ledger)
    assert checks.conserved(windows).passed
    assert checks.placed(windows).passed
    for found in state_checks.results(topic.declaration, WHOLE, topic.ledger, seed="1"):
        assert found.passed, found


def test_a_row_from_before_a_snapshot_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = DecodedTopic(tmp_path, "orders", DECODE)
    topic.state = WHOLE
    keys = topic.load(KILLED, AGAIN, ENDED)
    topic.decode()
    for key in keys:
        topic.changer.make(key)
    with monkeypatch.context() as patched:
        patched.setattr(fold, "swept_to", lambda attempts: None)
        TopicState("orders", WHOLE, topic.lake).fold()
    assert 3 in {row["id"] for row in rows(topic, "state")}
    results = {r.check: r for r in state_checks.results(topic.declaration, WHOLE, topic.ledger, seed="1")}
    assert f"before the snapshot that began in window {keys[1]}" in results[state_checks.EQUALS].headline


def test_whole_snapshots_in_several_partitions_are_refused_and_partial_ones_are_not(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders", DECODE)
    topic.state, topic.partitions = WHOLE, 2
    # Also if no row of the snapshot is in the other partition.
    (key,) = topic.load([KILLED[0], Note("c", 4, "streamed").record])
    topic.decode()
    with pytest.raises(
        ConfigurationError, match=rf"window {key} has offsets of partition 1, and .snapshots: whole.*Leave"
    ):
        topic.changer.make(key)
    topic.state = STATE
    topic.changer.make(key)
    TopicState("orders", STATE, topic.lake).fold()
    assert {row["id"] for row in rows(topic, "state")} == {1, 4}


def snapshot_row(id: int, window: str, offset: int, lsn: int, kind: str = "true") -> dict[str, Any]:
    facts = {"change_operation": "r", "change_lsn": lsn, "change_snapshot": kind}
    return change(id, window, offset, "read", **facts)


def fresh(made: MadeChanges, reader: Literal["polars", "duckdb"]) -> list[int]:
    """Return the keys that the printed code for fresh rows finds."""
    state, found = made.state(), dict[str, Any]()
    since, is_folded = changes_from(state.pending())
    exec(fresh_view(state, state.opened().live.columns.names, since, None, is_folded=is_folded)[reader], found)
    rows = found["fresh"].collect().select("id") if reader == "polars" else found["fresh"].project("id")
    return sorted(id for (id,) in (rows.rows() if reader == "polars" else rows.fetchall()))


def test_fresh_rows_come_after_a_pending_truncate(tmp_path: Path) -> None:
    made = MadeChanges(tmp_path, StateDeclaration(("id",), deletes="debezium"))
    first, second, third = DAYS[:3]
    made.load(first, [change(1, first, 0, "a"), change(2, first, 1, "b")])
    made.state().fold()
    made.load(
        third, [{**change(0, third, 6, None), "id": None}, change(2, third, 7, "again"), change(5, third, 8, "c")]
    )
    made.load(second, [change(4, second, 3, "late"), change(5, second, 4, "late")])
    assert [fresh(made, "polars"), fresh(made, "duckdb")] == [[2, 5]] * 2
    made.state().fold()
    assert sorted(made.live()) == [2, 5]
    assert [fresh(made, "polars"), fresh(made, "duckdb")] == [[2, 5]] * 2


def test_a_late_beginning_of_a_snapshot_brings_rows_back(tmp_path: Path) -> None:
    made = MadeChanges(tmp_path, WHOLE)
    first, second, third, fourth = DAYS[:4]
    made.load(first, [change(1, first, 0, "ghost"), change(2, first, 1, None)])
    made.load(third, [snapshot_row(4, third, 9, 20)])
    made.state().fold()
    made.check()
    made.load(fourth, [snapshot_row(5, fourth, 12, 20, "last"), snapshot_row(6, fourth, 13, 21)])
    for reader in ("polars", "duckdb"):
        assert fresh(made, reader) == [4, 5, 6]
    made.state().fold()
    assert (sorted(made.live()), list(made.dead())) == ([4, 5, 6], [])
    made.check()
    # Neither row was known to come after the beginning.
    made.load(second, [snapshot_row(3, second, 5, 20, "first")])
    made.load(first, [change(1, first, 0, "ghost"), snapshot_row(2, first, 1, 20, "first")])
    assert made.state().fold().made == "rebuild"
    assert sorted(made.live()) == [2, 3, 4, 5, 6]
    made.check()
    made.load(fourth, [snapshot_row(6, fourth, 13, 21)])
    assert "which had the beginning or the end of a snapshot, has been replaced" in made.state().pending().rebuild
    made.state().fold()
    assert sorted(made.live()) == [1, 2, 3, 4, 6], "the snapshot did not end"
    made.check()
    assert made.state().compare().is_equal


def test_a_late_beginning_alone_makes_the_state_from_all_changes(tmp_path: Path) -> None:
    made = MadeChanges(tmp_path, WHOLE)
    first, second, third, _ = DAYS[:4]
    made.load(second, [change(1, second, 4, "kept"), snapshot_row(2, second, 5, 20)])
    made.load(third, [snapshot_row(3, third, 9, 20, "last")])
    made.state().fold()
    assert sorted(made.live()) == [2, 3]
    made.load(first, [snapshot_row(4, first, 0, 20, "first")])
    with pytest.raises(StateOutdatedError, match="a snapshot begins earlier"):
        made.state().compare()
    outcome = made.state().fold()
    assert (outcome.made, outcome.reason) == (
        "rebuild", "a snapshot begins earlier than the changes that were folded before showed",
    )  # fmt: skip
    assert sorted(made.live()) == [1, 2, 3, 4]
    made.check()
