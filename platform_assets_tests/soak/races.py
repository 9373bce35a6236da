"""Races between upkeep and a rival that works on the same windows: a load, a repair, an erasure, a decode, a replay or
another upkeep. They run in rounds.

Each round has a separate small lake. Both sides begin at the same time and take steps in a random order, which the seed
reproduces. A step begins at each call with which a side reads a table or changes it. The side that loses the race must
raise an error that allows another attempt, and that attempt must succeed. Afterwards, polars must find each sent record
once, all checks must pass, and there must be no file without a commit.

The records come from memory, and this process merges and decodes files with the code of Spark's workers. The plans,
commits and proofs are those of a real lake.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args
from unittest.mock import patch
from urllib.parse import unquote

import polars as pl
from deltalake import DeltaTable

from platform_assets.errors import PlatformError, Retryable
from platform_assets.lake import object_files
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableKind
from platform_assets.windows.maintain.merging import MergedFiles, Upkeep
from platform_assets.windows.replay import comparing
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved
from testbed import samples
from testbed.homes import home_at
from testbed.object_store import ObjectStore, object_store

Rival = Literal["load", "repair", "erasure", "decode", "replay", "upkeep"]
RIVALS: Final[tuple[Rival, ...]] = get_args(Rival)
WINDOWS: Final = 6
EACH: Final = 8
_KINDS: Final[tuple[TableKind, ...]] = ("raw", "decoded")
_LATER: Final = "2030-01-01-00:00"
_LARGE: Final = 1 << 20
_TRIES: Final = 5
Rows = dict[tuple[str, int, int], Any]


@dataclass
class RivalResult:
    """Rounds of upkeep against one rival. `first` counts which side committed first. `upkeep` counts how the work of
    upkeep ended, and `outcomes` counts how the rival's work ended."""

    seed: int
    place: str
    rival: Rival
    rounds: int = 0
    first: Counter[str] = field(default_factory=Counter)
    upkeep: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return a Markdown table row."""
        first, upkeep, outcomes = (_counted(c) for c in (self.first, self.upkeep, self.outcomes))
        return (
            f"| {self.seed} | {self.place} | {self.rival} | {self.rounds} | {first} | {upkeep} | {outcomes} "
            f"| {'; '.join(self.anomalies) or 'none'} |"
        )


HEADER: Final = (
    "| seed | lake | rival of upkeep | rounds | first commit | upkeep's groups | rival's outcomes | anomalies |\n"
    "|--:|---|---|--:|---|---|---|---|"
)


def _counted(found: Counter[str]) -> str:
    return ", ".join(f"{number} × {what}" for what, number in sorted(found.items())) or "none"


def run_at(seed: int, rounds: int, root: Path, *, in_store: bool) -> Iterator[RivalResult]:
    """Run the rounds of all rivals below `root`, either in that folder itself or in an object store that is started
    there."""
    root.mkdir(parents=True)
    if not in_store:
        yield from run(seed, rounds, root)
        return
    with (
        object_store(home_at(root / "home"), root, "a-secret-of-races") as store,
        patch.dict(os.environ, store.environment()),
    ):
        object_files._bucket.cache_clear()
        yield from run(seed, rounds, root, store)


def run(
    seed: int, rounds: int, root: Path, store: ObjectStore | None = None, rivals: Sequence[Rival] = RIVALS
) -> Iterator[RivalResult]:
    """Run the rounds of each rival with lakes below `root`, or in `store` if it is given, and yield each rival's
    result. Lakes with anomalies are kept."""
    places = _Places(root, store)
    made = _templates(root / "templates")
    for rival in rivals:
        found = RivalResult(seed, "folder" if store is None else "s3", rival)
        for number in range(rounds):
            rng = random.Random(f"{seed}:{rival}:{number}")
            _Round(rng, places.copied(rng.choice(made), f"{rival}-{seed}-{number}"), found, number).run()
        yield found


@dataclass(frozen=True)
class _Template:
    """A lake that is copied for each round, and the records that the round's simulated Kafka contains."""

    root: Path
    records: tuple[Any, ...]


def _templates(root: Path) -> list[_Template]:
    """Make a lake whose last two windows are not loaded, and a copy of this lake with a file that two windows share."""
    made = MadeTopic(root / "plain")
    pairs = [{p: [(b"k%d" % n, _value(w, p, n)) for n in range(EACH)] for p in (0, 1)} for w in range(WINDOWS)]
    made.fill(made.seal(pairs)[: WINDOWS - 2])
    found = [_Template(root / "plain", tuple(made.records))]
    shutil.copytree(root / "plain", root / "shared")
    shared = MadeTopic(root / "shared", records=list(made.records))
    for kind in _KINDS:
        assert [
            m.version is not None for m in _upkeep(shared, kind, _LARGE, made.ledger.windows(made.topic)[2].key)
        ] == [True]
    return [*found, _Template(root / "shared", tuple(made.records))]


def _value(window: int, partition: int, number: int) -> bytes:
    return b"value-%d-%d-%d" % (window, partition, number)


@dataclass(frozen=True)
class _Places:
    """Location of the lakes that the rounds use."""

    root: Path
    store: ObjectStore | None

    def copied(self, template: _Template, name: str) -> MadeTopic:
        """Copy a template's lake, and return a topic with that copy."""
        if self.store is None:
            shutil.copytree(template.root, self.root / name)
            return MadeTopic(self.root / name, records=list(template.records))
        shutil.copytree(template.root, self.store.bucket / name)
        return MadeTopic(self.store.bucket / name, records=list(template.records), address=self.store.root(name))


def _upkeep(topic: MadeTopic, kind: TableKind, target: int, before: str = _LATER) -> Iterator[MergedFiles]:
    (table,) = (t for t in topic.declaration.tables if t.kind == kind)
    return Upkeep(table, topic.ledger, target=target).run(before)


@dataclass
class _Round:
    """One race, on a separate lake."""

    rng: random.Random
    topic: MadeTopic
    found: RivalResult
    number: int

    def __post_init__(self) -> None:
        self.windows = self.topic.ledger.windows(self.topic.topic)
        self.loaded = self.windows[: WINDOWS - 2]
        self.of = self.rng.choice(self.loaded)
        self.erased: list[tuple[SealedWindow, int, int]] = []
        self.decoded = list(self.loaded)
        size = max(p.stat().st_size for p in self._place("raw").rglob("*.parquet"))
        self.targets = [self.rng.choice((_LARGE, 2 * size + 1)) for _ in range(2)]

    def run(self) -> None:
        """Run the race, check the result, and delete the lake unless something was found."""
        rivals: Mapping[Rival, Callable[[], str]] = {
            "load": self._load,
            "repair": self._repair,
            "erasure": self._erase,
            "decode": self._decode,
            "replay": self._replay,
            "upkeep": lambda: self._upkeeps(self.found.outcomes, self.targets[1]),
        }
        self._prepare()
        versions = {kind: self._table(kind).version() for kind in _KINDS}
        try:
            self._race(rivals[self.found.rival])
            self._judge(versions)
        except (AssertionError, PlatformError, OSError) as e:
            self.found.anomalies.append(f"round {self.number}: {type(e).__name__}: {ascii(str(e))[:1500]}")
        else:
            shutil.rmtree(self.topic.root)
        self.found.rounds += 1

    def _race(self, rival: Callable[[], str]) -> None:
        turns = _Turns(random.Random(self.rng.random()))
        with turns.taken(), ThreadPoolExecutor(2) as pool:
            own = pool.submit(turns.of(0, lambda: self._upkeeps(self.found.upkeep, self.targets[0])))
            other = pool.submit(turns.of(1, lambda: self._tried(rival)))
            own.result()
            self.found.outcomes[other.result()] += 1

    def _tried(self, work: Callable[[], str]) -> str:
        for _ in range(_TRIES):
            try:
                return work()
            except Retryable as e:
                self.found.outcomes[f"{type(e).__name__}, tried again"] += 1
        raise AssertionError(f"lost {_TRIES} races in a row")

    # --- the rivals -------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Before the race begins, let another writer delete the rows that the race repairs."""
        if self.found.rival == "repair":
            for kind in _KINDS:
                self._table(kind).delete(f"\"window\" = '{self.of.key}' AND kafka_offset % 3 = 1")

    def _upkeeps(self, outcomes: Counter[str], target: int) -> str:
        kinds = list(_KINDS)
        if self.found.rival == "decode":
            kinds.reverse()
        for kind in kinds:
            for merged in _upkeep(self.topic, kind, target):
                outcome = "merged" if merged.version is not None else "damage reported" if merged.damaged else "lost"
                if merged.damaged:
                    assert self.found.rival == "repair", merged.damaged
                    assert merged.damaged == (self.of.key,)
                outcomes[outcome] += 1
        return "ended"

    def _load(self) -> str:
        """Load a new window, and load each of the other windows again."""
        (new, _) = self.windows[-2:]
        done = self.topic.load(new).outcome
        if new not in self.loaded:
            self.loaded.append(new)
        again = {self.topic.load(w).outcome for w in (self.of, *self.loaded)}
        assert again == {"unchanged"}, again
        return done

    def _repair(self) -> str:
        raw = self.topic.load(self.of).outcome
        return f"{raw}, decoded {self.topic.decoder().decode(self.of.key).outcome}"

    def _erase(self) -> str:
        erasure = self.topic.erasure
        if not self.erased:
            partition = self.rng.choice((0, 1))
            first = self.of.ranges.by_partition[partition].start + self.rng.randrange(EACH)
            erasure.record(erasure.at_offsets({partition: (OffsetRange(first, first + 1),)}), AUTHOR)
            self.erased.append((self.of, partition, first))
        erasure.run(AUTHOR)
        return "erased"

    def _decode(self) -> str:
        """Decode one window again with a different declaration, and decode another window for the first time."""
        new = self.windows[-2]
        self.topic.load(new)
        if new not in self.loaded:
            self.loaded.append(new)
            self.decoded.append(new)
        outcomes = [self.topic.decoder(revision=2).decode(w.key).outcome for w in (self.of, new)]
        return ", ".join(outcomes)

    def _replay(self) -> str:
        """Load the window into a separate table, compare both tables, and load the window in place."""
        root = self.topic.lake.replay("again").root
        fresh = MadeTopic(
            self.topic.root / "replays" / "again", records=self.topic.records,
            address=None if self.topic.address is None else str(root),
        )  # fmt: skip
        if not fresh.ledger.cuts(fresh.topic):
            ends = [dict.fromkeys((0, 1), EACH * n) for n in range(WINDOWS + 1)]
            samples.recorded(fresh.address or fresh.root, fresh.topic, ends)
        for w in self.loaded:
            fresh.load(w)
            compared = comparing.compare(w, self.topic.ledger, fresh.ledger)
            assert compared.equal, compared
            assert self.topic.load(w).outcome == "unchanged"
        return "equal"

    # --- the judges -------------------------------------------------------------------------------------------

    def _table(self, kind: TableKind) -> DeltaTable:
        return DeltaTable(self._place(kind))

    def _place(self, kind: TableKind) -> Path:
        return self.topic.root / kind / self.topic.topic

    def _judge(self, versions: Mapping[TableKind, int]) -> None:
        self.found.first[self._first("decoded" if self.found.rival == "decode" else "raw", versions)] += 1
        self._exact()
        for _, partition, offset in self.erased:
            (value,) = (r.value for r in self.topic.records if (r.partition, r.offset) == (partition, offset))
            for place in ("raw", "decoded"):
                left = found_in(self.topic.root / place, value or b"")
                assert not left, left
        for w in self.loaded:
            self.topic.decoder(revision=2 if self.found.rival == "decode" else 1).decode(w.key)
        self.decoded = self.loaded
        for kind in _KINDS:
            assert all(not each.damaged for each in _upkeep(self.topic, kind, _LARGE))
        self._exact()
        proved(self.topic)
        for kind in _KINDS:
            assert not (unnamed := self._unnamed(kind)), unnamed

    def _exact(self) -> None:
        """Compare all rows that polars finds with the records that were sent, without those that were erased."""
        gone = {(w.key, p, o) for w, p, o in self.erased}
        for kind, windows in (("raw", self.loaded), ("decoded", self.decoded)):
            wanted = {
                (w.key, r.partition, r.offset): r.value
                for w in windows
                for r in self.topic.records
                if r.offset in w.ranges.by_partition.get(r.partition, ())
            }
            columns = ["window", "kafka_partition", "kafka_offset", "value"]
            rows = pl.scan_delta(str(self.topic.root / kind / self.topic.topic)).select(columns).collect().rows()
            held: Rows = {(k, p, o): v.encode() if isinstance(v, str) else v for k, p, o, v in rows}
            assert len(held) == len(rows), f"{kind} has {len(rows) - len(held)} rows twice"
            expected = {place: v for place, v in wanted.items() if place not in gone}
            odd = {p for p in {*held, *expected} if held.get(p) != expected.get(p)}
            assert not odd, f"{kind} differs at {sorted(odd)[:5]}"

    def _first(self, kind: TableKind, versions: Mapping[TableKind, int]) -> str:
        """Return the side that made the first commit after the version in `versions`, according to the JSON files of
        the log."""
        for path in sorted((self._place(kind) / "_delta_log").glob("*.json")):
            if int(path.stem) <= versions[kind]:
                continue
            for line in path.read_text().splitlines():
                info = json.loads(line).get("commitInfo", {})
                note = str(info.get("userMetadata", ""))
                if note:
                    return "upkeep" if "platform_assets_upkeep" in note else "rival"
        return "none"

    def _unnamed(self, kind: TableKind) -> set[str]:
        """Return the data files on disk that no commit of the table has added."""
        place = self._place(kind)
        named = set[str]()
        for path in (place / "_delta_log").glob("*.json"):
            actions = map(json.loads, path.read_text().splitlines())
            named |= {unquote(action["add"]["path"]) for action in actions if "add" in action}
        found = {p.relative_to(place).as_posix() for p in place.rglob("*.parquet") if "_delta_log" not in p.parts}
        return found - named


class _Turns:
    """Two threads that take steps in turn. Only the random numbers decide the order, whatever the speed of the machine.

    A step begins at each call that reads a table or changes it.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._share = rng, rng.choice((0.1, 0.3, 0.5, 0.7, 0.9))
        self._changed = threading.Condition()
        self._number_of: dict[int, int] = {}
        self._working, self._waiting = {0, 1}, set[int]()
        self._next: int | None = None

    def of(self, number: int, work: Callable[[], str]) -> Callable[[], str]:
        """Return a function that does `work` in the turns of thread `number`, which is 0 or 1."""

        def taking_turns() -> str:
            self._number_of[threading.get_ident()] = number
            try:
                self._step()
                return work()
            finally:
                with self._changed:
                    self._working.discard(number)
                    self._choose()

        return taking_turns

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Turn the calls that are made while the block runs into steps."""
        with ExitStack() as stack:
            for owner, names in _STEPS.items():
                for name in names:
                    stack.enter_context(patch.object(owner, name, self._stepping(getattr(owner, name))))
            yield

    def _stepping(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def stepping(*arguments: Any, **options: Any) -> Any:
            self._step()
            return call(*arguments, **options)

        return stepping

    def _step(self) -> None:
        """Wait for the thread's next turn."""
        number = self._number_of.get(threading.get_ident())
        if number is None:
            return
        with self._changed:
            self._waiting.add(number)
            self._choose()
            # The other thread may wait for a lock that this one has.
            self._changed.wait_for(lambda: self._next == number, _PATIENCE)
            self._waiting.discard(number)
            self._next = None

    def _choose(self) -> None:
        if self._next is None and self._working and self._waiting >= self._working:
            both = len(self._working) == 2
            self._next = int(self._rng.random() >= self._share) if both else next(iter(self._working))
            self._changed.notify_all()


_PATIENCE: Final = 10.0
_STEPS: Final[Mapping[type, tuple[str, ...]]] = {
    Folder: ("delta", "write", "erase", "delete"),
    DeltaTable: ("create_write_transaction", "update_incremental"),
    Ledger: ("record_receipts", "receipts"),
}
