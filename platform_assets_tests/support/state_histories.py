"""Random histories of a topic's changes, a state that is folded from them in memory, and the state that a plain
dictionary gives."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from platform_assets.engines.folding.fold import FoldOrder, SweptBackError, fold
from platform_assets.lake import state_table
from platform_assets.model.snapshots import Attempt
from platform_assets.model.state import StateDeclaration
from platform_assets.windows.state.pending import ChangesLoad, FoldPlan, plan

CHANGES = pa.schema(
    [
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("generation", pa.int32()),
        ("deleted", pa.bool_()),
        ("id", pa.int64()),
        ("name", pa.string()),
        ("rev", pa.int64()),
        ("change_operation", pa.string()),
        ("change_lsn", pa.int64()),
        ("change_snapshot", pa.string()),
        ("window", pa.string()),
    ]
)
LIVE = pa.schema([f for f in CHANGES if f.name != "deleted"])
VALUES = ("name", "rev", "change_operation", "change_lsn", "change_snapshot")
DEAD = pa.schema([f for f in CHANGES if f.name not in ("deleted", *VALUES)])
HISTORY = state_table.history_columns(CHANGES)
Row = dict[str, Any]


def place(row: Row, state: StateDeclaration) -> tuple[Any, ...]:
    """Return a row's place in the total order, written independently of the product."""
    own = (row["generation"], row["window"], row["kafka_partition"], row["kafka_offset"])
    return own if state.version is None else (row[state.version], *own)


def expected(
    windows: dict[str, list[Row]], state: StateDeclaration, collected: str = ""
) -> tuple[dict[Any, Row], dict[Any, Row]]:
    """Return the live rows and the deleted keys that a replay of all changes, one after another, gives. Keys that were
    deleted in windows up to `collected` are left out, but not a truncate."""
    now = replayed(windows, state)
    if state.snapshots == "whole" and (first := last_snapshot(windows)) is not None:
        now = {key: row for key, row in now.items() if key is None or place(row, state) >= first}
    live = {key: {n: row.get(n) for n in LIVE.names} for key, row in now.items() if not row["deleted"]}
    dead = {key: row for key, row in now.items() if row["deleted"] and (key is None or row["window"] > collected)}
    return live, {key: {n: row[n] for n in DEAD.names} for key, row in dead.items()}


def last_snapshot(windows: dict[str, list[Row]]) -> tuple[Any, ...] | None:
    """Return the place of the first row of the complete snapshot that begins last. A snapshot is not complete if its rows
    up to the window of its end are in several partitions."""
    attempts: dict[Any, list[Row]] = {}
    for row in (row for rows in windows.values() for row in rows):
        if row.get("change_operation") == "r":
            attempts.setdefault((row["generation"], row["change_lsn"]), []).append(row)
    own = StateDeclaration(("id",))
    firsts = []
    for rows in attempts.values():
        rows.sort(key=lambda row: place(row, own))
        end = next(
            (row["window"] for row in rows if row["change_snapshot"] in ("last", "last_in_data_collection")), None
        )
        if end is not None and all(row["kafka_partition"] == 0 for row in rows if row["window"] <= end):
            firsts.append(place(rows[0], own))
    return max(firsts, default=None)


def replayed(windows: dict[str, list[Row]], state: StateDeclaration) -> dict[Any, Row]:
    """Return the last row of each key, and the last truncate, as if snapshots deleted nothing."""
    now: dict[Any, Row] = {}
    rows = sorted((row for rows in windows.values() for row in rows), key=lambda row: place(row, state))
    for row in rows if state.keep == "last" else reversed(rows):
        now[row["id"]] = row
        if row["id"] is None:
            # A truncate.
            now = {None: row}
    return now


@dataclass
class MemorySide:
    """A table of a state in memory."""

    columns: pa.Schema
    rows: pa.Table
    new: list[pa.Table] = field(default_factory=list)

    def blocks(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        yield from self.rows.select(self.columns.names if names is None else list(names)).to_batches()

    def has_buckets(self, count: int) -> bool:
        return False

    def bucket(self, number: int) -> pa.Table:
        raise AssertionError("unreachable: has_buckets is false")

    def write(self, number: int, count: int, rows: pa.Table) -> None:
        self.new.append(rows)

    def taken(self) -> pa.Table:
        """Return the new rows."""
        return pa.concat_tables([self.columns.empty_table(), *self.new])


@dataclass
class History:
    """A topic whose windows are loaded at random, in any order and repeatedly, and its state."""

    seed: str
    state: StateDeclaration
    keys: int = 6
    windows: dict[str, list[Row]] = field(default_factory=dict)
    loads: list[ChangesLoad] = field(default_factory=list)
    live: pa.Table = field(default_factory=LIVE.empty_table)
    dead: pa.Table = field(default_factory=DEAD.empty_table)
    live_version: int = -1
    dead_version: int = -1
    earlier: pa.Table = field(default_factory=HISTORY.empty_table)
    history_version: int = -1
    rebuilds: int = 0
    truncated: set[str] = field(default_factory=set)
    snapshots: dict[str, tuple[Attempt, ...]] = field(default_factory=dict)
    """The attempts that each table knows."""
    collected: str = ""
    """The window up to which deleted keys are collected in the table of deleted keys, whose folds come first."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._made: dict[str, list[Row]] = {}
        self._offsets: dict[tuple[int, int], int] = {}
        self._lsn, self._ongoing = 100, False
        generation, partitions = 1, 1
        for number in range(self.random.randint(2, 8)):
            if self.random.random() < 0.15:
                generation += 1
            if self.random.random() < (0.05 if self.state.has_sweeps else 0.3):
                partitions += 1
            key = f"2026-01-{number + 1:02}-00:00"
            self._made[key] = list(self._records(generation, key, partitions))

    def _snapshot(self) -> Row:
        """Return the facts of a row of a snapshot, which goes on over several windows, ends, or is killed and begun again;
        or those of a streamed change."""
        if not self.state.has_sweeps or (not self._ongoing and self.random.random() < 0.7):
            return {"change_operation": "c", "change_lsn": self.random.randrange(9), "change_snapshot": "false"}
        if not self._ongoing or self.random.random() < 0.15:
            self._lsn, self._ongoing = self._lsn + 1, True
        kind = self.random.choice(["true", "true", "first", "last", "last_in_data_collection", "incremental"])
        self._ongoing = not kind.startswith("last")
        if kind == "incremental":
            return {"change_operation": "r", "change_lsn": None, "change_snapshot": kind}
        return {"change_operation": "r", "change_lsn": self._lsn, "change_snapshot": kind}

    def _records(self, generation: int, window: str, partitions: int) -> Iterator[Row]:
        for _ in range(self.random.randint(0, 6)):
            facts = self._snapshot()
            partition = self.random.randrange(partitions)
            offset = self._offsets.get((generation, partition), 0)
            self._offsets[generation, partition] = offset + self.random.randint(1, 3)
            is_read = facts["change_operation"] == "r"
            is_truncate = not is_read and self.state.has_truncates and self.random.random() < 0.1
            deleted = is_truncate or (not is_read and self.state.has_deletes and self.random.random() < 0.4)
            yield {
                "kafka_partition": partition,
                "kafka_offset": offset,
                "kafka_timestamp": None,
                "generation": generation,
                "deleted": deleted,
                "id": None if is_truncate else self.random.randrange(self.keys),
                "name": None if deleted else f"{window} {partition} {offset}",
                "rev": None if deleted else self.random.randrange(4),
                **(dict.fromkeys(facts) if deleted else facts),
                "window": window,
            }

    def load(self) -> None:
        """Load a window: one that is new, late, or loaded before, perhaps decoded to other rows.

        Changes have one row per key and window. Some windows here have all their rows, so that each column of the order
        decides somewhere.
        """
        window = self.random.choice(sorted(self._made))
        rows = [replace_values(row, self.random) for row in self._made[window] if self.random.random() < 0.7]
        before = self.windows.get(window)
        self.windows[window] = rows if self.random.random() < 0.3 else self._of_window(rows)
        self.loads.append(ChangesLoad(len(self.loads), window, bool(before)))

    def _of_window(self, rows: list[Row]) -> list[Row]:
        won = {(r["kafka_partition"], r["kafka_offset"]) for r in replayed({"": rows}, self.state).values()}
        named = set[Any]()
        for row in rows:
            # The first row of each snapshot, and the first one that ends it.
            of = (row["kafka_partition"], row["change_lsn"])
            for kind in ("first", *(["end"] if str(row["change_snapshot"]).startswith("last") else [])):
                if row["change_operation"] == "r" and (kind, of) not in named:
                    named.add((kind, of))
                    won.add((row["kafka_partition"], row["kafka_offset"]))
        return [row for row in rows if (row["kafka_partition"], row["kafka_offset"]) in won]

    def fold(self, *, buckets: int = 1, crashes: bool = False, again: bool = False) -> None:
        """Fold the pending loads. With `crashes`, end between two commits; with `again`, apply all loads again."""
        versions = (self.live_version, self.dead_version, self.history_version)
        since = self.loads[min(versions) + 1 :]
        planned = plan(since, versions, self.truncated, self.collected, self.snapshots.values())
        if not self._fold(planned, buckets=buckets, crashes=crashes, again=again):
            planned = replace(planned, rebuild="swept back")
            assert self._fold(planned, buckets=buckets, crashes=crashes, again=again)

    def _fold(self, planned: FoldPlan, *, buckets: int, crashes: bool, again: bool) -> bool:
        """Fold as planned. Return False if that is not possible because a snapshot begins earlier than was known."""
        live, dead = MemorySide(LIVE, self.live), MemorySide(DEAD, self.dead)
        earlier = MemorySide(HISTORY, self.earlier)
        names = planned.windows
        if planned.rebuild:
            self.rebuilds += 1
            live, dead, earlier = (MemorySide(s.columns, s.columns.empty_table()) for s in (live, dead, earlier))
            names = frozenset(self.windows)
        elif again:
            names = frozenset(self.windows)
        collected = "" if planned.rebuild else self.collected
        collects = collected
        if self.state.has_deletes and self.random.random() < 0.3:
            # Any window, also if earlier ones are yet to come.
            collects = max(collected, self.random.choice(sorted(self._made)))
        order = FoldOrder(
                self.state, live, dead, names,
                lambda: self._blocks([w for w in self.windows if w in names]),
                lambda: self._blocks([w for w in self.windows if w not in names]),
                buckets,
                earlier,
                collected,
                collects,
                () if planned.rebuild else planned.snapshots,
                None if planned.rebuild else planned.swept,
            )  # fmt: skip
        try:
            made = fold(order)
        except SweptBackError:
            assert not planned.rebuild
            return False
        self.snapshots["dead"] = made.snapshots
        self.collected = collects
        self.dead, self.dead_version = dead.taken(), len(self.loads) - 1
        self.truncated = {made.truncated, *(self.truncated if crashes else ())} - {""}
        if not crashes or self.random.random() < 0.5:
            self.earlier, self.history_version = earlier.taken(), len(self.loads) - 1
            self.snapshots["history"] = made.snapshots
        if not crashes:
            self.live, self.live_version = live.taken(), len(self.loads) - 1
            self.snapshots["live"] = made.snapshots
        return True

    def _blocks(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        self.random.shuffle(names)
        for name in names:
            if self.windows[name]:
                yield pa.RecordBatch.from_pylist(self.windows[name], CHANGES)

    def run(self, steps: int = 14) -> None:
        """Load and fold at random, and fold at the end."""
        for _ in range(steps):
            if self.random.random() < 0.6:
                self.load()
            else:
                self.fold(
                    buckets=self.random.choice([1, 1, 2, 8]),
                    crashes=self.random.random() < 0.3,
                    again=self.random.random() < 0.2,
                )
        self.fold()

    def check(self) -> None:
        """Assert that the state is that of a plain dictionary, and that the history has the state as of each window."""
        live, dead = expected(self.windows, self.state, self.collected)
        assert by_key(self.live) == live, self.seed
        assert by_key(self.dead) == dead, self.seed
        check_history(self.earlier, self.windows, self.state, self.seed)


def check_history(rows: pa.Table, windows: dict[str, list[Row]], state: StateDeclaration, seed: str = "") -> None:
    """Assert that the history as of each window is the state that a plain dictionary gives for the windows up to it."""
    found = rows.to_pylist()
    assert all(row["window"] == row["valid_from"] for row in found), seed
    assert len({place(row, StateDeclaration(state.key)) for row in found}) == len(found), f"{seed}: a row occurs twice"
    for window in sorted({*windows, *(row["window"] for row in found)}):
        standing = [r for r in found if r["valid_from"] <= window and (r["valid_to"] is None or r["valid_to"] > window)]
        live, dead = expected({name: each for name, each in windows.items() if name <= window}, state)
        for deleted, columns, wanted in ((False, LIVE, live), (True, DEAD, dead)):
            own = [{n: r.get(n) for n in columns.names} for r in standing if r["deleted"] == deleted]
            assert {row["id"]: row for row in own} == wanted, f"{seed}, as of {window}"
            assert len(own) == len(wanted), f"{seed}, as of {window}: a key has two rows"


def replace_values(row: Row, chance: random.Random) -> Row:
    """Return a row as another decoding may give it."""
    if row["deleted"] or chance.random() < 0.7:
        return row
    return {**row, "name": f"again {chance.randrange(1000)}"}


def by_key(rows: pa.Table) -> dict[Any, Row]:
    """Return rows by key. Fails if a key occurs twice."""
    found = {row["id"]: row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


STATES = (
    StateDeclaration(("id",)),
    StateDeclaration(("id",), order="rev", deletes="none"),
    StateDeclaration(("id",), deletes="none", keep="first"),
    StateDeclaration(("id",), order="rev", deletes="none", keep="first"),
    StateDeclaration(("id",), deletes="debezium"),
    StateDeclaration(("id",), deletes="debezium", snapshots="whole"),
)


def history(seed: str) -> History:
    """Return the history of a seed."""
    return History(seed, random.Random(f"state {seed}").choices(STATES, [6, 2, 1, 1, 4, 6])[0])
