"""Random interleavings of loads, operators' decisions, erasures, damage and crashes, on real Delta tables and a log in memory.

The reference is the list of produced records: in the end each is in the table once, or erased, or its loss is accepted.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from platform_assets.errors import (
    ConcurrentLoadError,
    ErasureUnfinishedError,
    LostForGoodError,
    OffsetsExpiredError,
    UnprovedRowsError,
)
from platform_assets.lake import holdings
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.location import Folder
from platform_assets.ledger import decisions, erasure_rules
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.windows.decide import acceptance, carrying_out, generations
from platform_assets.windows.decide.acceptance import Loss
from platform_assets.windows.decide.generations import NewGeneration
from platform_assets.windows.recover import accept_partial
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in
from platform_assets_tests.support.kept_cluster import KeptCluster, loader_of
from platform_assets_tests.support.local_engine import Kept, LocalEngine
from testbed import samples

TOPIC = "people"
PEOPLE = [b"person-%d" % n for n in range(3)]
IDS = [letter * 22 for letter in "ABCDEFGH"]


class Crashed(BaseException):
    """The process died here."""


STEPS: dict[str, tuple[Any, str]] = {
    "decision": (decisions, "record"),
    "cut": (Ledger, "record_cuts"),
    "acceptance": (Ledger, "record_acceptances"),
    "commit": (WindowCommit, "_commit"),
    "receipt": (Ledger, "record_receipts"),
    "files": (Folder, "erase"),
}


@contextmanager
def crash(step: str | None, after: bool) -> Iterator[None]:
    """Let the process die before or after the first such step; without such a step, nothing happens."""
    if step is None:
        yield
        return
    owner, name = STEPS[step]
    real = getattr(owner, name)

    def die(*args: Any, **more: Any) -> Any:
        if after:
            real(*args, **more)
        raise Crashed

    with mock.patch.object(owner, name, die), suppress(Crashed):
        yield


CRASHES = st.tuples(st.sampled_from([None, None, *STEPS]), st.booleans())


class InterruptedEngine(LocalEngine):
    """Lets another process act once this one has read a window."""

    meanwhile: Callable[[], None] | None = None

    def write(self, *args: Any) -> Any:
        written = super().write(*args)
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
        return written


class Decisions(RuleBasedStateMachine):
    """One topic of one partition."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.topic = MadeTopic(self.root / "lake", TOPIC)
        self.engine = InterruptedEngine(self.topic.lake, self.topic.records)
        self.topic.engine = self.engine
        self.topic.ledger.create()
        self.cluster = KeptCluster(TOPIC, {0: 0}, topic_id=IDS[0])
        self.edges = self.number = 0
        self.generation = 1
        self.produced: list[tuple[int, Kept]] = []
        """Every record, with its generation."""
        self.erased: list[tuple[bytes, int, int]] = []
        """Keys, with the generation and the sealed end at that time."""
        self.to_erase: set[bytes] = set()
        """Keys whose erasure was interrupted or refused, and will be run again."""
        self._cut()

    def _cut(self) -> None:
        made = samples.cut(TOPIC, samples.edge(self.edges), self.cluster.ends, topic_id=self.cluster.topic_id)
        newest = self.topic.ledger.newest_cut(TOPIC)
        cut = replace(made, generation=self.generation)
        assert self.topic.ledger.record_cuts([cut], None if newest is None else newest.edge)
        self.edges += 1

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule(people=st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=4), seals=st.booleans())
    def produce(self, people: list[bytes], seals: bool) -> None:
        for key in people:
            self.number += 1
            at = self.cluster.ends[0]
            record = Kept(0, at, key, b"value-%d." % self.number, samples.edge(0))
            self.topic.records.append(record)
            self.produced.append((self.generation, record))
            self.cluster.ends[0] += 1
        if seals:
            self._cut()

    @rule(number=st.integers(0, 5), at=CRASHES)
    def load(self, number: int, at: tuple[str | None, bool]) -> None:
        self._load(number, at)

    def _load(self, number: int, at: tuple[str | None, bool] = (None, False)) -> None:
        windows = self.topic.ledger.windows(TOPIC)
        if not windows:
            return
        # It may wait for a decision, or for its turn.
        with crash(*at), suppress(OffsetsExpiredError, LostForGoodError, ConcurrentLoadError):
            loader_of(self.topic, self.cluster).load(windows[number % len(windows)].key)

    @rule(number=st.integers(0, 5), key=st.sampled_from(PEOPLE), how=st.sampled_from(["erase", "accept", "damage"]))
    def load_while_another_decides(self, number: int, key: bytes, how: str) -> None:
        acts = {"erase": lambda: self._erase(key), "accept": lambda: self._accept(number), "damage": self._damage}
        self.engine.meanwhile = acts[how]
        self._load(number)
        self.engine.meanwhile = None

    @rule(key=st.sampled_from(PEOPLE), at=CRASHES)
    def erase(self, key: bytes, at: tuple[str | None, bool]) -> None:
        self._erase(key, at)

    def _erase(self, key: bytes, at: tuple[str | None, bool] = (None, False)) -> None:
        newest = self.topic.ledger.newest_cut(TOPIC)
        assert newest is not None
        self.to_erase.add(key)
        done = False
        with crash(*at):
            erasure, unreadable = self.topic.erasure, set[str]()
            found = erasure.of_keys([key], unreadable)
            damaged = erasure.damaged(unreadable)
            erasure.record(found, AUTHOR, [key])
            try:
                erasure.run(AUTHOR)
                done = not damaged
            except (ErasureUnfinishedError, ConcurrentLoadError):
                pass
        if done:
            self.to_erase.discard(key)
            self.erased.append((key, newest.generation, newest.cut.at(0)))
            assert not self.topic.erasure.unfinished()

    @rule(number=st.integers(0, 5), at=CRASHES)
    def accept(self, number: int, at: tuple[str | None, bool]) -> None:
        with crash(*at):
            self._accept(number)

    def _accept(self, number: int) -> None:
        windows = self.topic.ledger.windows(TOPIC)
        if not windows:
            return
        window, ledger = windows[number % len(windows)], self.topic.ledger
        known = acceptance._known(window, ledger)
        if known is None:
            return
        start = self.cluster.starts.get(0, 0)
        lost = list(acceptance._losses(window, generations.beyond_log(ledger, window), known, "of a former log"))
        inside = generations.within_log(ledger, window)
        expired = {p: (r.before(start),) for p, r in inside.items() if start > r.start}
        lost += acceptance._losses(window, expired, known, "below the log start")
        losses: list[Loss] = lost
        if losses:
            acceptance.accept(window, losses, AUTHOR, ledger)

    @rule()
    def damage(self) -> None:
        self._damage()

    def _damage(self) -> None:
        folder = self.topic.lake.table(self.topic.declaration.raw_table)
        files = holdings.window_files(holdings.actions(folder))
        for each in list(files.values())[:1]:
            for path in each.paths:
                (folder.path / path.replace("%25", "%")).unlink(missing_ok=True)

    @rule(number=st.integers(1, 6))
    def expire(self, number: int) -> None:
        """Let retention delete some of the oldest offsets."""
        start = min(self.cluster.starts.get(0, 0) + number, self.cluster.ends[0])
        self.cluster.starts = {0: start}
        self.topic.records[:] = [r for r in self.topic.records if r.offset >= start]

    @rule()
    def tick(self) -> None:
        carrying_out.carry_out(Ledger(self.topic.lake), TOPIC)

    @precondition(lambda self: self.generation < 3)
    @rule(copied=st.booleans(), at=CRASHES)
    def recreate(self, copied: bool, at: tuple[str | None, bool]) -> None:
        """Create the topic again, with or without a copy of its records, and let an operator accept that."""
        newest = self.topic.ledger.newest_cut(TOPIC)
        assert newest is not None
        old = list(self.topic.records)
        # Records of the former log after its newest cut were in no window.
        self.produced = [(g, r) for g, r in self.produced if g != self.generation or r.offset < newest.cut.at(0)]
        self.cluster.topic_id = IDS[self.generation]
        copies = (replace(r, value=b"copy-%d-of-%s" % (self.generation, r.value or b"")) for r in old)
        self.topic.records[:] = copies if copied else ()
        for number, record in enumerate(self.topic.records):
            self.topic.records[number] = replace(record, offset=number)
        self.cluster.starts, self.cluster.ends = {}, {0: len(self.topic.records)}
        first = samples.cut(TOPIC, newest.edge, {0: 0}, topic_id=self.cluster.topic_id)
        first = replace(first, generation=self.generation + 1, taken={0: "accepted"})

        def decide() -> None:
            lost = generations._lost(self.topic.ledger, newest, first)
            generations.accept(NewGeneration("re-created", newest, first, lost), AUTHOR, self.topic.ledger)

        with crash(*at):
            decide()
        now = self.topic.ledger.newest_cut(TOPIC)
        assert now is not None
        if now.generation == self.generation:
            decide()  # the command is run again
        self.generation += 1
        self.produced += [(self.generation, record) for record in self.topic.records]

    # --- in the end --------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "root"):
            return
        try:
            self._follow_messages()
            self._judge()
        finally:
            shutil.rmtree(self.root)

    def _follow_messages(self) -> None:
        """Act as a daemon and an operator who follow the messages; afterwards nothing is left to do."""
        ledger, loader = self.topic.ledger, loader_of(self.topic, self.cluster)
        self._cut()
        carrying_out.carry_out(ledger, TOPIC)
        for number, window in enumerate(ledger.windows(TOPIC)):
            for _ in range(4):
                try:
                    loader.load(window.key)
                except OffsetsExpiredError:
                    self._accept(number)
                except (LostForGoodError, UnprovedRowsError):
                    left = accept_partial.find(loader, window)
                    if left is not None:
                        left.accept(AUTHOR)
                else:
                    break
            else:
                raise AssertionError(f"a dead end: {window.key}")
        for key in sorted(self.to_erase):
            self._erase(key)
        assert not self.to_erase, "an erasure that does not come to its end"
        self.topic.erasure.run(AUTHOR)
        assert not self.topic.erasure.unfinished()

    def _judge(self) -> None:
        ledger, table = self.topic.ledger, self.topic.declaration.raw_table
        held = Counter(self.topic.values())
        assert not [value for value, times in held.items() if times > 1], "rows are there twice"
        accepted = ledger.accepted_losses_of(table, [w.key for w in ledger.windows(TOPIC)])
        lost = {
            (w.generation, o)
            for w in ledger.windows(TOPIC)
            for r in accepted.get(w.key, {}).get(0, ())
            for o in range(r.start, r.end)
        }
        for generation, record in self.produced:
            must_go = any(
                key == record.key and (generation > of or (generation == of and record.offset < end))
                for key, of, end in self.erased
            )
            if must_go:
                assert not held[record.value], "an erased record is in the table"
                assert record.value is not None
                assert not (places := found_in(self.topic.root, record.value)), places
            elif not held[record.value]:
                assert (generation, record.offset) in lost, f"{record} was lost, and nobody accepted that"
        known = erased_of(ledger, TOPIC)
        for generation, record in self.produced:
            named = [
                w.key
                for w in ledger.windows(TOPIC)
                if w.generation == generation and record.offset in w.ranges.by_partition[0]
            ]
            if any(record.offset in r for key in named for r in known.get(key, {}).get(0, ())):
                assert record.key in {key for key, _, _ in self.erased}, "nobody had that record erased"


def _run(examples: int, steps: int) -> None:
    erasure_rules.forget()
    run_state_machine_as_test(
        Decisions,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            phases=[Phase.generate],
        ),
    )


def test_random_decisions_loads_and_crashes_lose_and_double_nothing() -> None:
    _run(3, 12)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_many_random_decisions_loads_and_crashes_lose_and_double_nothing() -> None:
    _run(400, 30)
