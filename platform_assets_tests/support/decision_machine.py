"""A rule-based machine over operators' decisions: random interleavings of loads, decisions, maintenance, damage and crashes.

Each history has its own lake, with real Delta tables and a log in memory. A command can crash before or after any of its
writes; a dead process writes nothing more. At the end, a daemon and an operator follow the messages, and the producer's own
list determines what the tables must contain. Tables are read with polars and plain Parquet, never with this project's code.

Each rule takes only small numbers. A failing history can therefore be shortened, because any part of a history is a history.

Each decision of an operator is one commit, or a sequence of writes that can end after any step:

| decision | writes, in order | after a crash |
|---|---|---|
| accept-loss, not loaded | decision; one acceptance per cause | the load reports the remaining causes |
| accept-loss, lost for good | decision; the window's commit; acceptance; receipt | accept-loss again |
| accept-generation | decision with all effects; cut, unless another came first; acceptances | after the cut: the tick |
| accept-cluster | decision with all effects; cut; acceptances; moved windows' commits; receipts | as for accept-generation |
| park, unpark | one row | nothing, or done |
| erase | decisions; acceptances; fences; commits; receipts; replays; logs; `erased` | loads apply it; erase again |
| restore | `_restoring`; files; decisions; then as for erase | the next restore or tick |
| replay | cuts; erasures; acceptances; loads, all in the replay's own lake | the same replay again |
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from platform_assets.errors import (
    ClusterChangedError,
    ConfigurationError,
    LoadError,
    PlatformError,
    TopicRecreatedError,
    TruncationError,
)
from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Folder
from platform_assets.lake.vacuum import vacuum
from platform_assets.ledger import appending, decisions, erasure_rules, recording, unloaded
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.decide import acceptance, carrying_out
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.erase import reapplying
from platform_assets.windows.load import sealing, truncation
from platform_assets.windows.load.clocks import OtherClock
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets.windows.recover.rebuild import rebuild
from platform_assets.windows.replay import replaying
from platform_assets.windows.replay.replaying import Replay
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic
from platform_assets_tests.support.local_engine import Kept, LocalEngine
from testbed import samples
from testbed.layouts import new_tables_are

TOPIC: Final = "people"
PEOPLE: Final = [b"person-%d" % n for n in range(3)]
PARTITIONS: Final = (0, 1)
IDS: Final = [letter * 22 for letter in "ABCDEFGHIJKLMNOP"]
LATER: Final = datetime(2100, 1, 1, tzinfo=UTC)
"""Timestamp of records that are sent after all decisions in a history."""
Place = tuple[int, int]
"""Partition and offset."""
Step = tuple[str, tuple[int, ...]]
"""A rule, and the numbers passed to it."""


class Crashed(BaseException):
    """Raised at the point at which the simulated process dies."""


class Wrong(AssertionError):
    """Raised if the lake is not in the required state."""


# --- the log ------------------------------------------------------------------------------------------------------------


@dataclass
class Log(Cluster):
    """The log of the topic in a cluster without brokers. `epoch_ends` contains the offset at which each leader epoch
    ended in each partition."""

    starts: dict[int, int]
    ends: dict[int, int]
    topic_id: str = IDS[0]
    cluster_id: str | None = "cluster-0"
    epoch: int = 1
    epoch_ends: list[tuple[int, int, int]] = field(default_factory=list)
    """Epoch, partition and end."""

    @property
    def timeout(self) -> float:
        """See `Cluster`."""
        return 1.0

    @property
    def deadline(self) -> float | None:
        """See `Cluster`."""
        return None

    @property
    def settings(self) -> ClientSettings:
        """See `Cluster`."""
        return ClientSettings("no broker is asked")

    def with_deadline(self, deadline: float) -> Cluster:
        """See `Cluster`."""
        return self

    def topic(self, name: str) -> TopicState:
        """See `Cluster`."""
        return TopicState(name, self.topic_id, PARTITIONS, self.cluster_id)

    def log_starts(self, topic: TopicState) -> dict[int, FoundOffset]:
        """See `Cluster`."""
        return {p: FoundOffset(start, None, -1) for p, start in self.starts.items()}

    def last_stable_offsets(self, topic: TopicState) -> dict[int, FoundOffset]:
        """See `Cluster`."""
        return {p: FoundOffset(end, self.epoch, -1) for p, end in self.ends.items()}

    def is_compacted(self, name: str) -> bool:
        """See `Cluster`."""
        return False

    def ends_of_epochs(self, epochs: Mapping[int, int]) -> dict[int, int | None]:
        """Return the end offset of each leader epoch, by partition."""
        return {
            p: min((end for e, of, end in self.epoch_ends if of == p and e >= epoch), default=None)
            for p, epoch in epochs.items()
        }


class Record(NamedTuple):
    """A record in the producer's list."""

    number: int
    key: bytes
    is_late: bool

    @property
    def value(self) -> bytes:
        """The value of the record, which no other record has."""
        return b"value-%d." % self.number


@dataclass(frozen=True)
class Erased:
    """A finished erasure, either of one record or of a key. The erasure of a key covers the records that were sealed at
    that time, and older records in generations after `generation`."""

    key: bytes | None
    sealed: frozenset[int]
    generation: int


@contextmanager
def log_in_memory(log: Callable[[], Log]) -> Iterator[None]:
    """Answer the broker requests that do not go through a `Cluster`."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(truncation, "_PAUSE", 0.0))
        patches.enter_context(
            mock.patch.object(truncation, "_epoch_ends", lambda cluster, state, epochs: log().ends_of_epochs(epochs))
        )
        patches.enter_context(mock.patch.object(acceptance, "_refused", return_value=[]))
        patches.enter_context(mock.patch.object(acceptance, "_unexplained", return_value={}))
        yield


# --- crashes ------------------------------------------------------------------------------------------------------------

WRITES: Final[tuple[tuple[Any, str], ...]] = (
    (DeltaTable, "create_write_transaction"),
    (appending, "write_deltalake"),
    (recording, "write_deltalake"),
    (Folder, "write"),
    (Folder, "write_new"),
    (Folder, "copy"),
    (Folder, "erase"),
    (Folder, "delete"),
)
"""Calls through which a command writes. Only new data files, which no commit refers to yet, are written in other ways.
"""


@contextmanager
def dying(after: int) -> Iterator[None]:
    """Let the process die before or after a write. `after` counts half writes, so if it is odd, the process dies after
    a write has taken effect. If it is 0, the process does not die."""
    if after == 0:
        yield
        return
    number, is_after = divmod(after - 1, 2)
    left, is_dead = number, False

    def wrapped(real: Any) -> Any:
        def write(*args: Any, **more: Any) -> Any:
            nonlocal left, is_dead
            if is_dead:
                raise Crashed
            left -= 1
            if left >= 0:
                return real(*args, **more)
            is_dead = True
            if is_after:
                real(*args, **more)
            raise Crashed

        return write

    with ExitStack() as patches:
        for owner, name in WRITES:
            patches.enter_context(mock.patch.object(owner, name, wrapped(getattr(owner, name))))
        with suppress(Crashed):
            yield


class InterruptedEngine(LocalEngine):
    """An engine that lets another process act after it has read a window."""

    meanwhile: Callable[[], None] | None = None

    def write(self, *args: Any) -> Any:
        """See `LoadEngine`."""
        written = super().write(*args)
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
        return written


# --- the machine --------------------------------------------------------------------------------------------------------

_N: Final = 1 << 16
_CRASH: Final = -1
"""Bound of a rule's number that decides at which write the process dies. The number is 0 in half of the cases."""


def rule(*numbers: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a method as a rule of the machine. `numbers` are the bounds of the numbers that the rule takes."""

    def mark(method: Callable[..., None]) -> Callable[..., None]:
        method.numbers = numbers  # type: ignore[attr-defined]
        return method

    return mark


class Machine:
    """One topic with two partitions, its lake below `root`, and everything that the producer, the operators and the log
    know about the topic."""

    def __init__(self, root: Path, *, flat: bool) -> None:
        self.root = root
        self._patches = ExitStack()
        self._patches.enter_context(new_tables_are("flat" if flat else "partitioned"))
        self._patches.enter_context(log_in_memory(lambda: self.log))
        erasure_rules.forget()
        made = MadeTopic(root / "lake", TOPIC)
        made.declaration = replace(made.declaration, records_per_file=3)
        self.made, self.ledger, self.lake = made, made.ledger, made.lake
        self.engine = InterruptedEngine(made.lake, made.records)
        made.engine = self.engine
        self.ledger.create()
        self.log = Log(dict.fromkeys(PARTITIONS, 0), dict.fromkeys(PARTITIONS, 0))
        self.number = 0
        self.logs: list[dict[Place, Record]] = [{}]
        """The records of each log that the topic has ever had."""
        self.log_of: dict[int, int] = {1: 0}
        """The log of each generation, as an index into `logs`."""
        self.erased: list[Erased] = []
        self.to_erase: set[bytes | int] = set()
        """Keys and records whose erasure has begun but is not known to be complete."""
        self.parked: set[str] = set()
        self.may_be_parked: set[str] = set()
        self.continued: set[int] = set()
        """Generations that continue the offsets of the previous generation on another cluster."""
        self._deciding_on = ""
        self.steps = 0
        self.met: Counter[str] = Counter()
        self._tick()

    def close(self) -> None:
        """Undo the patches of this machine."""
        self._patches.close()

    # --- processes

    @property
    def _now(self) -> datetime:
        newest = self.ledger.newest_cut(TOPIC)
        return samples.START if newest is None else newest.edge

    def _loader(self) -> Loader:
        return Loader(
            self.made.declaration,
            self.log,
            self.ledger,
            self.engine,
            run_id="run",
            now=lambda: self._now + samples.HOUR / 2,
        )

    def _deciding(self) -> Deciding:
        return Deciding(
            self.made.declaration,
            self.ledger,
            lambda: self.log,
            lambda: self.log.settings,
            lambda: self.engine,
            AUTHOR,
            lambda line: None,
            lambda question: None,
        )

    @contextmanager
    def _tried(self, what: str) -> Iterator[None]:
        """Allow the command in the block to fail with an error of the platform. Any other error is a defect."""
        try:
            yield
        except PlatformError as e:
            self.met[f"{what}: {type(e).__name__}"] += 1
        else:
            self.met[what] += 1
        finally:
            self._notice_generation()

    def _notice_generation(self) -> None:
        newest = self.ledger.newest_cut(TOPIC)
        if newest is not None and newest.generation not in self.log_of:
            self.log_of[newest.generation] = len(self.logs) - 1
            if self._deciding_on == "cluster":
                self.continued.add(newest.generation)

    def _windows(self) -> list[SealedWindow]:
        return self.ledger.windows(TOPIC)

    def _window(self, number: int) -> SealedWindow | None:
        windows = self._windows()
        return windows[number % len(windows)] if windows else None

    def _tick(self) -> None:
        now = self._now + (samples.HOUR if self.ledger.newest_cut(TOPIC) else timedelta()) + timedelta(seconds=1)
        carrying_out.carry_out(self.ledger, TOPIC)
        reapplying.finish(self.ledger, self.made.declaration)
        sealing.seal(
            self.made.declaration, self.log, self.ledger, now,
            deadline=time.monotonic() + 60, clock=lambda cluster, lake, at: OtherClock("another", at),
        )  # fmt: skip

    # --- the topic

    @rule(_N, 2)
    def produce(self, seed: int, seals: int) -> None:
        """Send some records."""
        rng = random.Random(seed)
        for _ in range(rng.randrange(1, 6)):
            self.number += 1
            self._append(rng.choice(PARTITIONS), Record(self.number, rng.choice(PEOPLE), rng.random() < 0.3))
        if seals:
            with self._tried("tick"):
                self._tick()

    def _append(self, partition: int, record: Record) -> None:
        at = self.log.ends[partition]
        self.logs[-1][partition, at] = record
        self.log.ends[partition] += 1
        self._fill_kafka()

    def _fill_kafka(self) -> None:
        """Give the brokers the records of the newest log that retention has not deleted."""
        self.made.records[:] = [
            Kept(p, o, r.key, r.value, LATER if r.is_late else samples.START)
            for (p, o), r in sorted(self.logs[-1].items())
            if o >= self.log.starts[p]
        ]

    @rule(2, 5)
    def expire(self, partition: int, number: int) -> None:
        """Let retention delete the oldest offsets of a partition."""
        self.log.starts[partition] = min(self.log.starts[partition] + 1 + number, self.log.ends[partition])
        self._fill_kafka()

    @rule(2)
    def recreate(self, copied: int) -> None:
        """Create the topic again, with or without new records."""
        old = sorted(self.logs[-1].items())
        self._drop_unsealed()
        self.logs.append({})
        self.log = Log(
            dict.fromkeys(PARTITIONS, 0),
            dict.fromkeys(PARTITIONS, 0),
            IDS[len(self.logs) % len(IDS)],
            self.log.cluster_id,
        )
        for (partition, _), record in old if copied else ():
            self.number += 1
            self._append(partition, replace_number(record, self.number))
        self._fill_kafka()

    @rule(2, 4)
    def truncate(self, partition: int, number: int) -> None:
        """Let an unclean leader election remove the end of a partition's log."""
        if self._is_undecided():
            # On another cluster, nothing tells such a log from one that never had these records.
            return
        end = max(self.log.ends[partition] - 1 - number, self.log.starts[partition])
        newest = self.ledger.newest_cut(TOPIC)
        is_sealed = newest is not None and self.log_of.get(newest.generation) == len(self.logs) - 1
        cut = newest.cut.at(partition) if newest is not None and is_sealed else 0
        left = {place: r for place, r in self.logs[-1].items() if place[0] != partition or place[1] < end}
        if end < cut or not is_sealed:
            self.logs.append(left)
        else:
            # No window has these records, so nothing shows that they ever were.
            self.logs[-1] = left
        self.log.epoch_ends.append((self.log.epoch, partition, end))
        self.log.epoch += 1
        self.log.ends[partition] = end
        self._fill_kafka()

    @rule(2)
    def move(self, has_other_id: int) -> None:
        """Move the topic to another cluster with its offsets."""
        newest = self.ledger.newest_cut(TOPIC)
        if newest is None or self.log_of.get(newest.generation) != len(self.logs) - 1:
            # Nobody could tell how much of such a log is the former one.
            return
        self.log = replace(self.log, cluster_id=f"cluster-{self.steps}", epoch=1, epoch_ends=[])
        if has_other_id:
            self.log.topic_id = samples.TOPIC_ID[:-4] + f"{self.steps % 10_000:04}"

    def _is_undecided(self) -> bool:
        """Return True if the topic's id or cluster differs from the id or cluster in the ledger."""
        newest = self.ledger.newest_cut(TOPIC)
        assert newest is not None
        return (newest.topic_id, newest.cluster_id) != (self.log.topic_id, self.log.cluster_id)

    def _drop_unsealed(self) -> None:
        """Forget the records of the newest log that are in no window, because no load can know about these records."""
        newest = self.ledger.newest_cut(TOPIC)
        if newest is not None and self.log_of.get(newest.generation) == len(self.logs) - 1:
            log = self.logs[-1]
            self.logs[-1] = {(p, o): r for (p, o), r in log.items() if o < newest.cut.at(p)}

    # --- daemons

    @rule(_N, _CRASH)
    def tick(self, _: int, at: int) -> None:
        """Evaluate a tick of the sensor."""
        with dying(at), self._tried("tick"):
            self._tick()

    @rule(_N, _CRASH)
    def load(self, number: int, at: int) -> None:
        """Load a window."""
        window = self._window(number)
        if window is not None:
            with dying(at), self._tried("load"):
                self._loader().load(window.key)

    @rule(_N, _CRASH)
    def decode(self, number: int, at: int) -> None:
        """Decode a window."""
        window = self._window(number)
        if window is not None and window.key in self.made.receipts():
            with dying(at), self._tried("decode"):
                self.made.decoder().decode(window.key)

    @rule(_N, _N, 5)
    def load_while_another_acts(self, number: int, other: int, how: int) -> None:
        """Load a window, and let another process act after the window is read."""
        acts: list[Callable[[], None]] = [
            lambda: self.erase_key(other, 0),
            lambda: self.erase_record(other, 0),
            lambda: self.accept_loss(other, 0),
            lambda: self.upkeep(other, 0),
            lambda: self.load(number, 0),
        ]
        self.engine.meanwhile = acts[how]
        self.load(number, 0)
        self.engine.meanwhile = None

    # --- operators

    @rule(_N, _CRASH)
    def accept_loss(self, number: int, at: int) -> None:
        """Accept the losses of a window."""
        window = self._window(number)
        if window is not None:
            with dying(at), self._tried("accept-loss"):
                self._accept_loss(window)

    def _accept_loss(self, window: SealedWindow) -> None:
        before = self._accepted(window)
        self._deciding().loss(window.key)
        new = self._accepted(window) - before
        newest = self.ledger.newest_cut(TOPIC)
        if newest is None or newest.generation != window.generation:
            # The records of a later log, if it has them, come with its own windows.
            return
        here = self.logs[self.log_of[window.generation]]
        in_kafka = {r.value for r in self.made.records}
        held = self._values_if_readable()
        for place in sorted(new & set(here)):
            is_held = held is not None and held[here[place].value]
            if here[place].value in in_kafka or is_held:
                raise Wrong(f"{place} of {window.key} was called lost, and is not")

    def _accepted(self, window: SealedWindow) -> set[Place]:
        erased = erasure_rules.erased_of(self.ledger, TOPIC, [window.key]).get(window.key, {})
        accepted = self.ledger.accepted_losses(self.made.declaration.raw_table, window.key)
        return _places(accepted) - _places(erased)

    @rule(_N, _CRASH)
    def accept_log(self, _: int, at: int) -> None:
        """Accept the log that the topic's name currently refers to."""
        with dying(at), self._tried("accept-log"):
            self._accept_log()

    def _accept_log(self) -> None:
        newest = self.ledger.newest_cut(TOPIC)
        assert newest is not None
        deciding, self._deciding_on = self._deciding(), "generation"
        if newest.cluster_id == self.log.cluster_id or self.log_of.get(newest.generation) != len(self.logs) - 1:
            deciding.generation()
            return
        self._deciding_on = "cluster"
        try:
            deciding.continuation()
        except ConfigurationError:
            # Windows that wait would have to be loaded from the former cluster, which is gone: the new one's records count as new.
            self.recreate(1)
            self._deciding_on = "generation"
            deciding.generation()

    @rule(3, _CRASH)
    def erase_key(self, number: int, at: int) -> None:
        """Erase the records with a key."""
        self._erase(PEOPLE[number % len(PEOPLE)], at)

    @rule(_N, _CRASH)
    def erase_record(self, number: int, at: int) -> None:
        """Erase one record that is sealed."""
        found = sorted(r.number for r in self._sealed())
        if found:
            self._erase(found[number % len(found)], at)

    def _erase(self, what: bytes | int, at: int) -> None:
        newest = self.ledger.newest_cut(TOPIC)
        assert newest is not None
        done = False
        self.to_erase.add(what)
        sealed = self._sealed()
        with dying(at), self._tried("erase"):
            if isinstance(what, bytes):
                self._deciding().erasure({}, [what])
            else:
                for generation, (p, o) in self._coordinates(what):
                    self._deciding().erasure({p: (OffsetRange(o, o + 1),)}, [], generation)
            done = True
        if done:
            self.to_erase.discard(what)
            if isinstance(what, bytes):
                gone = frozenset(r.number for r in sealed if r.key == what)
                self.erased.append(Erased(what, gone, newest.generation))
            else:
                self.erased.append(Erased(None, frozenset([what]), newest.generation))
            self._check_no_bytes()

    def _coordinates(self, number: int) -> list[tuple[int, Place]]:
        """Return the generation, partition and offset of a record, once for each generation that has a window with this
        record."""
        return [
            (generation, place)
            for generation, log in sorted(self.log_of.items())
            for place, record in self.logs[log].items()
            if record.number == number
            and any(w.generation == generation and _covers(w, place) for w in self._windows())
        ]

    def _sealed(self) -> set[Record]:
        return {record for _, record in self._sealed_places()}

    def _sealed_places(self) -> Iterator[tuple[tuple[str, Place], Record]]:
        for window in self._windows():
            log = self.logs[self.log_of[window.generation]]
            for p, r in window.ranges.items():
                for o in range(r.start, r.end):
                    if (p, o) in log:
                        yield (window.key, (p, o)), log[p, o]

    @rule(_N, _CRASH)
    def park(self, number: int, at: int) -> None:
        """Park or unpark a window."""
        window = self._window(number)
        if window is None:
            return
        self.may_be_parked.add(window.key)
        with dying(at), self._tried("park"):
            if window.key in self._parking():
                self._deciding().unpark([window.key])
                assert window.key not in self._parking(), "unparked, and still parked"
            else:
                self._deciding().park([window.key])
                assert window.key in self._parking(), "parked, and not parked"

    def _parking(self) -> Sequence[str]:
        return list(decisions.parking(self.lake, self.made.declaration.raw_table).parked)

    @rule(2, _CRASH)
    def replay(self, number: int, at: int) -> None:
        """Replay all windows into a separate table."""
        with dying(at), self._tried("replay"):
            self._replay(f"replay-{number}")

    def _replay(self, name: str) -> None:
        live = self._loader()
        windows = [w for w in self._windows() if w.ranges.size]
        if not windows:
            return
        fresh = replaying.fresh_loader(live, name, lambda lake: LocalEngine(lake, self.made.records))
        found = Replay.begin(live, fresh, replaying.plan(live, windows))
        held = self._values_if_readable()
        for key, outcome in found.load(windows, lambda: None):
            (window,) = (w for w in windows if w.key == key)
            if isinstance(outcome, PlatformError):
                self.met[f"replay: {type(outcome).__name__}"] += 1
            found.compare(window, outcome)
        folder = self.root / "lake" / "replays" / name / "raw" / TOPIC
        again = Counter(_read(folder)["value"].to_list())
        if any(times > 1 for times in again.values()):
            raise Wrong("a replay has rows twice")
        del held

    # --- maintenance

    @rule(_N, _CRASH)
    def upkeep(self, seed: int, at: int) -> None:
        """Merge small files of all tables."""
        declaration = self.made.declaration
        tables = [declaration.raw_table, declaration.decoded_table, declaration.dead_letter_table]
        with dying(at), self._tried("upkeep"):
            for table in tables[: 1 + seed % 3]:
                if self.lake.table(table).has_delta_log():
                    list(Upkeep(table, self.ledger, target=(4_000, 1 << 20)[seed % 2]).run("9999"))

    @rule(6)
    def maintain(self, how: int) -> None:
        """Let another writer maintain the raw table."""
        delta = DeltaTable(self._raw)
        with suppress(DeltaError):
            if how in (0, 1):
                delta.optimize.compact()
            elif how == 2:
                delta.optimize.z_order(["kafka_offset"])
            elif how == 3:
                delta.create_checkpoint()
            else:
                delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)

    @rule(_N)
    def damage(self, seed: int) -> None:
        """Let another writer delete rows or a file, or go back to an old version."""
        rng, delta = random.Random(seed), DeltaTable(self._raw)
        with suppress(DeltaError):
            match rng.randrange(5):
                case 0:
                    delta.delete(
                        f"kafka_partition = {rng.choice(PARTITIONS)} AND kafka_offset % 3 = {rng.randrange(3)}"
                    )
                case 1:
                    delta.restore(rng.randrange(delta.version() + 1))
                case _:
                    paths = sorted(pa.table(delta.get_add_actions(flatten=True))["path"].to_pylist())
                    if paths:
                        (self._raw / unquote(rng.choice(paths))).unlink(missing_ok=True)

    @rule(_N, _CRASH)
    def vacuum(self, _: int, at: int) -> None:
        """Delete old files, as the platform does."""
        with dying(at), self._tried("vacuum"):
            vacuum(self.made.declaration.raw_table, self.lake.table(self.made.declaration.raw_table))

    @rule(_N, _CRASH)
    def rebuild(self, _: int, at: int) -> None:
        """Rebuild a ledger that was not lost."""
        before = [(c.edge, c.generation, dict(c.cut.offsets)) for c in self.ledger.cuts(TOPIC)]
        with dying(at), self._tried("rebuild-ledger"):
            rebuild(self.made.declaration, self.ledger, self.engine)
        after = [(c.edge, c.generation, dict(c.cut.offsets)) for c in self.ledger.cuts(TOPIC)]
        if after[: len(before)] != before:
            raise Wrong("rebuild-ledger changed cuts")

    # --- judges

    @property
    def _raw(self) -> Path:
        return self.root / "lake" / "raw" / TOPIC

    def _values_if_readable(self) -> Counter[bytes] | None:
        """Count the occurrences of each value in the raw table. Return None if a file is lost."""
        try:
            return Counter(_read(self._raw)["value"].to_list())
        except OSError:
            return None

    def check(self) -> None:
        """Check the conditions that hold after every step: each row occurs once, and comes from the producer."""
        try:
            rows = _read(self._raw)
        except OSError:
            return
        windows = {w.key: w for w in self._windows()}
        seen = set[bytes]()
        for key, p, o, value in rows.select("window", "kafka_partition", "kafka_offset", "value").iter_rows():
            if value in seen:
                raise Wrong(f"{value!r} is there twice")
            seen.add(value)
            window = windows.get(key)
            if window is None or not _covers(window, (p, o)):
                raise Wrong(f"{(p, o)} is in window {key}, which does not have it")
            record = self.logs[self.log_of[window.generation]].get((p, o))
            if record is None or record.value != value:
                raise Wrong(f"{(p, o)} of {key} is {value!r}, and the producer sent {record}")

    def _check_no_bytes(self) -> None:
        """Check that no file in the lake contains a value of an erased record."""
        gone = {r.value for r in self._must_be_gone()}
        if gone and (found := _places_of(self.root / "lake", gone)):
            raise Wrong(f"an erasure is done, and {found} are still there")

    def _must_be_gone(self) -> set[Record]:
        found = set[Record]()
        sealed: dict[Record, set[int]] = {}
        generations = {w.key: w.generation for w in self._windows()}
        for (key, _), record in self._sealed_places():
            sealed.setdefault(record, set()).add(generations[key])
        for record in {r for log in self.logs for r in log.values()}:
            for erased in self.erased:
                by_rule = (
                    erased.key == record.key
                    and not record.is_late
                    and any(
                        g > erased.generation and not self._is_same_log(erased.generation, g)
                        for g in sealed.get(record, ())
                    )
                )
                if record.number in erased.sealed or by_rule:
                    found.add(record)
        return found

    def _is_same_log(self, generation: int, later: int) -> bool:
        """Return True if all generations after `generation`, up to `later`, continue the log of their previous
        generation on another cluster."""
        return all(g in self.continued for g in range(generation + 1, later + 1))

    def ends_well(self) -> None:
        """Act as a daemon and an operator who follow the messages. Then check that everything agrees with the
        producer's list."""
        self.engine.meanwhile = None
        self._log_settles()
        self._no_window_waits()
        for what in sorted(self.to_erase, key=str):
            for _ in range(3):
                self._erase(what, 0)
                if what not in self.to_erase:
                    break
                self._no_window_waits()
            else:
                raise Wrong(f"the erasure of {what!r} does not come to its end")
        self._no_window_waits(expected=("unchanged", "kept", "empty"))
        self._decoded()
        self._judge()

    def _log_settles(self) -> None:
        for _ in range(6):
            try:
                self._tick()
            except (TopicRecreatedError, TruncationError, ClusterChangedError):
                self._accept_log()
                self._notice_generation()
            else:
                return
        raise Wrong("the log of the topic does not settle")

    def _no_window_waits(self, expected: Sequence[str] = ()) -> None:
        deciding = self._deciding()
        for window in self._windows():
            for _ in range(6):
                try:
                    loaded = self._loader().load(window.key)
                except LoadError as e:
                    self.met[f"in the end: {type(e).__name__}"] += 1
                    if "accept-loss" not in str(e):
                        raise Wrong(f"{window.key}: no way on is named: {e}") from e
                    self._accept_loss(window)
                else:
                    self.met[f"in the end: {loaded.outcome}"] += 1
                    if expected and loaded.outcome not in expected:
                        raise Wrong(f"{window.key} is {loaded.outcome} again")
                    break
            else:
                raise Wrong(f"a dead end: {window.key}")
        parked = set(self._parking())
        if not parked <= self.may_be_parked:
            raise Wrong(f"{parked} is parked without a decision to park it")
        if parked:
            deciding.unpark(sorted(parked))
        newest = self.ledger.newest_cut(TOPIC)
        assert newest is not None
        if waiting := list(unloaded.find(self.ledger, self.made.declaration.raw_table, newest.edge).windows):
            raise Wrong(f"{waiting} still wait")

    def _decoded(self) -> None:
        for window in self._windows():
            self.made.decoder().decode(window.key)

    def _judge(self) -> None:
        self.check()
        raw, decoded = _read(self._raw), _read(self.root / "lake" / "decoded" / TOPIC)
        held = Counter(raw["value"].to_list())
        if Counter(text.encode() for text in decoded["value"].to_list()) != held:
            raise Wrong("decoded rows are not the raw ones")
        gone = self._must_be_gone()
        may_go = {r.number for r in gone}
        lost = {(w.key, place) for w in self._windows() for place in self._accepted(w)}
        sealed = dict(self._sealed_places())
        for (key, place), record in sealed.items():
            if record in gone:
                if held[record.value]:
                    raise Wrong(f"{record} is erased, and in the table")
            elif not held[record.value] and (key, place) not in lost:
                raise Wrong(f"{record} at {place} of {key} was lost, and no decision accepts the loss")
        self._check_no_bytes()
        covered = set(sealed.values())
        for kept in self.made.records:
            record = self.logs[-1][kept.partition, kept.offset]
            if record not in covered:
                raise Wrong(f"{record} at {kept.partition}, {kept.offset} is in no window")
        for window in self._windows():
            here = self.logs[self.log_of[window.generation]]
            named = erasure_rules.erased_of(self.ledger, TOPIC, [window.key]).get(window.key, {})
            for place in _places(named) & set(here):
                if here[place].number not in may_go:
                    raise Wrong(f"{here[place]} counts as erased, but no erasure covers it")
        # Windows that were loaded from a log with another id cannot be loaded from a copy of it, as accept-cluster says.
        of_log = {w.key for w in self._windows() if w.topic_id == self.log.topic_id}
        in_kafka = {r.value for r in self.made.records}
        for (key, place), record in sealed.items():
            is_there = key in of_log and record.value in in_kafka
            if (key, place) in lost and record not in gone and is_there and not held[record.value]:
                raise Wrong(f"{record} at {place} of {key} is in Kafka, and its loss was accepted")


def replace_number(record: Record, number: int) -> Record:
    """Return a copy of the record with another number. The key stays the same."""
    return Record(number, record.key, record.is_late)


def _places(ranges: Mapping[int, Sequence[OffsetRange]]) -> set[Place]:
    return {(p, o) for p, parts in ranges.items() for r in parts for o in range(r.start, r.end)}


def _covers(window: SealedWindow, place: Place) -> bool:
    r = window.ranges.by_partition.get(place[0])
    return r is not None and place[1] in r


def _read(folder: Path) -> pl.DataFrame:
    """Return the rows of a table. Raises OSError if a file is lost."""
    delta = DeltaTable(folder)
    found: list[pl.DataFrame] = []
    by_window = "window" in delta.metadata().partition_columns
    for file in pa.table(delta.get_add_actions(flatten=True)).to_pylist():
        rows = pl.read_parquet((folder / unquote(file["path"])).read_bytes(), hive_partitioning=False)
        if by_window:
            rows = rows.with_columns(window=pl.lit(file["partition.window"]))
        found.append(rows.select("window", "kafka_partition", "kafka_offset", "value"))
    schema = {"window": pl.String, "kafka_partition": pl.Int32, "kafka_offset": pl.Int64, "value": pl.Binary}
    return pl.concat(found) if found else pl.DataFrame(schema=schema)


def _places_of(root: Path, needles: set[bytes]) -> list[str]:
    """Return the files below `root` that contain one of these values, either in their raw bytes or in an unpacked
    column."""
    found = []
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        content = path.read_bytes()
        if content[:4] == b"PAR1":
            table = pq.ParquetFile(pa.BufferReader(content)).read()
            content += b"\0".join(
                buffer.to_pybytes()
                for column in table.columns
                for chunk in column.chunks
                for buffer in chunk.buffers()
                if buffer is not None
            )
        found += [f"{path.relative_to(root)}: {needle!r}" for needle in needles if needle in content]
    return found


# --- histories ----------------------------------------------------------------------------------------------------------

RULES: Final[dict[str, int]] = {
    "produce": 5, "load": 5, "tick": 2, "decode": 2, "load_while_another_acts": 2, "accept_loss": 3, "accept_log": 3,
    "erase_key": 2, "erase_record": 2, "park": 1, "replay": 1, "expire": 2, "recreate": 1, "truncate": 1, "move": 1, "upkeep": 3,
    "maintain": 2, "damage": 2, "vacuum": 1, "rebuild": 1,
}  # fmt: skip
"""Rules of the machine, each with its relative frequency."""


def steps(rng: random.Random, number: int) -> list[Step]:
    """Draw a random history."""
    names = rng.choices(list(RULES), list(RULES.values()), k=number)
    drawn = [(name, tuple(_drawn(rng, bound) for bound in getattr(Machine, name).numbers)) for name in names]
    begin: list[Step] = [
        (name, (rng.randrange(_N), how)) for name, how in (("produce", 1), ("load", 0), ("decode", 0)) * 3
    ]
    return [step for step in begin if rng.random() < 0.8] + drawn


def _drawn(rng: random.Random, bound: int) -> int:
    if bound == _CRASH:
        return rng.choice((0, rng.randrange(1, 24)))
    return rng.randrange(bound)


def run(root: Path, history: Sequence[Step], *, flat: bool) -> Counter[str]:
    """Run a history in a new lake below `root`. Return the outcomes that occurred. Raises the fault that was found."""
    root.mkdir(parents=True, exist_ok=True)
    # Never the same lake twice: processes remember what they have read of one.
    folder = Path(tempfile.mkdtemp(dir=root))
    machine = Machine(folder, flat=flat)
    try:
        for name, numbers in history:
            machine.steps += 1
            getattr(machine, name)(*numbers)
            machine.check()
        machine.ends_well()
        return machine.met
    finally:
        machine.close()
        shutil.rmtree(folder, ignore_errors=True)


def shortened(root: Path, history: Sequence[Step], *, flat: bool, seconds: float = 120) -> list[Step]:
    """Return a part of a failing history. The part fails with the same kind of error as the history."""

    def fails(some: Sequence[Step]) -> str | None:
        try:
            run(root, some, flat=flat)
        except Exception as e:  # noqa: BLE001 - any defect
            return type(e).__name__ + re.sub(r"\d+|[\[(]?[Rb]['e].*", "", str(e)[:60])
        return None

    left, kind, until = list(history), fails(history), time.monotonic() + seconds
    size = max(len(left) // 2, 1)
    while kind is not None:
        at = 0
        while at < len(left) and time.monotonic() < until:
            less = left[:at] + left[at + size :]
            if fails(less) == kind:
                left = less
            else:
                at += size
        if size == 1 or time.monotonic() >= until:
            break
        size = max(size // 2, 1)
    return left
