"""Publishers that are killed, overtaken, delayed or cut off from the broker, in rounds, while windows are loaded and
loaded again.

The judge is a plain read_committed consumer of the topic, which looks at keys and values only: the rows' notes say which
values each key had, in order. Rows have different values in each load that changes them, so a record that was sent twice
is a value that comes twice.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from confluent_kafka import Producer

from platform_assets.checks.published import gather
from platform_assets.checks.published_records import hanging
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.publishing import Identity
from platform_assets.windows.publish.publishing import Publisher
from platform_assets_tests.soak.embedded import Embedded
from platform_assets_tests.soak.live import create
from platform_assets_tests.support.broker_proxy import END_TRANSACTION, PRODUCE, Fault, proxied
from platform_assets_tests.support.doomed_publisher import INTERRUPTED, declared
from testbed import samples
from testbed.clients import client_settings, librdkafka
from testbed.loads import committed, wait_until

Disturbance = Literal["kill", "takeover", "timeout", "broker", "lost answer", "frozen broker", "hanging"]
"""What happens while a publisher runs. kill: SIGKILL; takeover: a second publisher starts; timeout: the publisher pauses
until the broker aborts its transaction; broker: the broker is killed and started again; lost answer: the connection loses
a request or its answer; frozen broker: the broker is suspended for a few seconds; hanging: another program leaves a
transaction open on the topic."""
DISTURBANCES: Final[tuple[Disturbance, ...]] = get_args(Disturbance)
STEPS: Final = ("first", "flush", "commit", "next")
WINDOWS: Final = 12
EACH: Final = 10
SOURCE: Final = "orders"
TABLE: Final = f"raw/{SOURCE}"
PARTITIONS: Final = 2
TIMEOUT: Final = 10.0
"""Seconds after which the broker ends a publisher's transaction; the smallest number that may be declared."""
_INIT_PRODUCER_ID: Final = 22
_ADD_PARTITIONS: Final = 24
_APIS: Final = (PRODUCE, _INIT_PRODUCER_ID, _ADD_PARTITIONS, END_TRANSACTION)
_FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
_PROPERTIES: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
_ROUNDS_OF_A_TOPIC: Final = 10

Place = tuple[int, int]
"""Partition and offset of a row in the source topic."""

HEADER: Final = (
    "| seed | rounds | faults | ends of the disturbed publisher | loads | records on the topics | findings |\n"
    "|--:|--:|---|---|--:|--:|---|"
)


@dataclass
class SeedResult:
    """Rounds of one seed. Each of the `anomalies` names its round."""

    seed: int
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    loads: int = 0
    records: int = 0
    anomalies: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return a Markdown table row."""
        faults, ends = (", ".join(f"{n} × {w}" for w, n in sorted(c.items())) for c in (self.faults, self.ends))
        found = "; ".join(self.anomalies) or "none"
        return f"| {self.seed} | {self.rounds} | {faults} | {ends} | {self.loads} | {self.records:,} | {found} |"


def run(seed: int, rounds: int, root: Path, chosen: Sequence[Disturbance] = DISTURBANCES) -> SeedResult:
    """Run the rounds with a broker and lakes below `root`. Lakes and topics with anomalies are kept."""
    found = SeedResult(seed)
    services = Embedded(root / "services", root / "unused", properties=_PROPERTIES)
    with services.running(["kafka"]):
        for number in range(0, rounds, _ROUNDS_OF_A_TOPIC):
            rng = random.Random(f"{seed}:{number}")
            made = _Topic(rng, services, root / f"lake-{seed}-{number}", f"published-{seed}-{number}", found)
            for each in range(number, min(number + _ROUNDS_OF_A_TOPIC, rounds)):
                what = chosen[each % len(chosen)]
                try:
                    made.round(what)
                except Exception as error:  # noqa: BLE001 - any error that a publisher does not document is a finding
                    found.anomalies.append(f"round {each}, {what}: {type(error).__name__}: {ascii(str(error))[:1500]}")
                    break
            else:
                shutil.rmtree(made.root)
            found.records += made.records
    return found


# --- a publisher in a separate process ------------------------------------------------------------------------------


class Child:
    """A publisher in a separate process. It waits for permission before each step."""

    def __init__(self, work: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "platform_assets_tests.support.doomed_publisher"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()
        self._tell(json.dumps(work))

    @contextmanager
    def ended(self) -> Iterator[Child]:
        """End the process after the block, whatever its state."""
        try:
            yield self
        finally:
            self._process.kill()
            self._reader.join()
            self._process.communicate()

    def next_step(self) -> str | None:
        """Return the step before which the publisher waits, or None if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        return line if line in STEPS else None

    def go_on(self) -> None:
        """Let the publisher take the step before which it waits."""
        self._tell("")

    def go_to(self, step: str, times: int) -> bool:
        """Let the publisher go on until it waits before `step` for the given time. Return False if it ended before."""
        while (found := self.next_step()) is not None:
            times -= found == step
            if not times:
                return True
            self.go_on()
        return False

    def finish(self) -> str:
        """Let the publisher go on to its end. Return "done" or "interrupted". Raises AssertionError for any other end."""
        while self.next_step() is not None:
            self.go_on()
        code = self._process.wait()
        self._reader.join()
        assert code in (0, INTERRUPTED), f"the publisher ended with {code}: {''.join(self._errors)[-1000:]}"
        return "interrupted" if code else "done"

    def kill(self) -> None:
        """Kill the process."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _tell(self, text: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # It has ended; its exit code says why.
            print(text, file=self._process.stdin, flush=True)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors += self._process.stderr


# --- a topic and its rounds -----------------------------------------------------------------------------------------


class _Topic:
    """A raw table whose windows are loaded by hand, and the topic to which it is published."""

    def __init__(self, rng: random.Random, services: Embedded, root: Path, target: str, found: SeedResult) -> None:
        self.rng, self.services, self.root, self.target, self.found = rng, services, root, target, found
        self.records = 0
        self._identity = rng.choice(get_args(Identity))
        self._states: dict[Place, list[bytes | None]] = {}
        self._loaded: list[str] = []
        self._names = itertools.count()
        self._windows = samples.recorded(root, SOURCE, [dict.fromkeys(range(2), n * EACH) for n in range(WINDOWS + 1)])
        create(self.bootstrap, target, PARTITIONS)

    @property
    def bootstrap(self) -> str:
        return self.services.bootstrap

    @property
    def publisher(self) -> Publisher:
        cluster = Cluster.connect(client_settings(self.bootstrap))
        return Publisher(declared(self._work()), Ledger(Lake.at(self.root)), cluster)

    def round(self, what: Disturbance) -> None:
        """Load some windows, disturb a publisher, publish what is left, and judge the topic."""
        for _ in range(self.rng.randint(1, 3)):
            self._load()
        by_name = {
            "kill": self._kill,
            "takeover": self._take_over,
            "timeout": self._time_out,
            "broker": self._kill_broker,
            "lost answer": self._lose_answer,
            "frozen broker": self._freeze_broker,
            "hanging": self._hang,
        }
        self.found.faults[what] += 1
        self.found.rounds += 1
        self.found.ends[by_name[what]()] += 1
        if self.rng.random() < 0.5:
            self._load()
        publisher = self.publisher
        publisher.run()
        self._judge(publisher)

    def _load(self) -> None:
        """Load the next window, or load a window again. Some rows have other values than before, some are gone."""
        if len(self._loaded) < WINDOWS and (not self._loaded or self.rng.random() < 0.5):
            window = self._windows[len(self._loaded)]
            self._loaded.append(window.key)
        else:
            window = self._windows[self.rng.randrange(len(self._loaded))]
        places = [(p, o) for p, span in sorted(window.ranges.items()) for o in range(span.start, span.end)]
        for place in places:
            before = self._states.setdefault(place, [None])
            number = sum(value is not None for value in before)
            if (now := self.rng.random()) < 0.15:
                changed: bytes | None = None
            elif now < 0.5 or before[-1] is None:
                changed = b"%d/%d/%d" % (*place, number)
            else:
                changed = before[-1]
            if changed != before[-1]:
                before.append(changed)
        held = {
            place: samples.Keyed(b"%d/%d" % place, value)
            for place in places
            if (value := self._states[place][-1]) is not None
        }
        kept = {p: [o for q, o in held if q == p] for p, _ in window.ranges.items()}
        holes = {"compacted": len(places) - len(held)}
        samples.loaded(self.root, window, kept, load_id=f"load{next(self._names)}", values=held, holes=holes)
        self.found.loads += 1

    def _work(self) -> Mapping[str, Any]:
        return {
            "target": self.target, "table": TABLE, "key": "key", "rows": self.rng.choice([3, 10, 1000]),
            "seconds": TIMEOUT, "identity": self._identity,
        }  # fmt: skip

    def _child(self, bootstrap: str = "") -> Child:
        return Child({**self._work(), "bootstrap": bootstrap or self.bootstrap, "lake": str(self.root)})

    # --- what happens to the publisher ------------------------------------------------------------------------

    def _paused(self, child: Child) -> bool:
        return child.go_to(self.rng.choice(STEPS), self.rng.randint(1, 2))

    def _kill(self) -> str:
        with self._child().ended() as child:
            if not self._paused(child):
                return child.finish()
            child.kill()
        return "killed"

    def _take_over(self) -> str:
        """Let two publishers take turns, step by step, in a random order."""
        with self._child().ended() as one, self._child().ended() as two:
            running = [one, two]
            while len(running) == 2:
                each = self.rng.choice(running)
                if each.next_step() is None:
                    running.remove(each)
                else:
                    each.go_on()
            ends = sorted(each.finish() for each in (one, two))
        return " and ".join(ends)

    def _time_out(self) -> str:
        with self._child().ended() as child:
            if not child.go_to(self.rng.choice(("first", "flush", "commit")), 1):
                return child.finish()
            # The broker ends the transaction.
            wait_until("no transaction is open", self._is_decided)
            child.go_on()
            return child.finish()

    def _kill_broker(self) -> str:
        with self._child().ended() as child:
            paused = self._paused(child)
            self.services.kill("kafka")
            if paused:
                child.go_on()
            self.services.start("kafka")
            return child.finish()

    def _freeze_broker(self) -> str:
        with self._child().ended() as child:
            paused = self._paused(child)
            with self.services.frozen("kafka"):
                if paused:
                    child.go_on()
                time.sleep(self.rng.uniform(0, 1.5 * TIMEOUT))
            return child.finish()

    def _lose_answer(self) -> str:
        with proxied(self.bootstrap) as proxy:
            proxy.arm(self.rng.choice(_APIS), self.rng.choice(_FAULTS))
            with self._child(proxy.bootstrap).ended() as child:
                return child.finish()

    def _hang(self) -> str:
        """Leave a transaction of another program open until it is named."""
        options = {"transactional.id": f"foreign-{self.target}", "transaction.timeout.ms": 300_000, "linger.ms": 0}
        producer = Producer({**librdkafka(self.bootstrap), **options})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(self.target, b"never committed", b"foreign", self.rng.randrange(PARTITIONS))
        producer.flush(60)
        publisher = self.publisher
        wait_until("the open transaction is named", lambda: hanging(publisher) is not None)
        producer.abort_transaction(60)
        wait_until("no transaction is open", self._is_decided)
        assert hanging(publisher) is None
        return "named"

    def _is_decided(self) -> bool:
        cluster = Cluster.connect(client_settings(self.bootstrap))
        state = cluster.topic(self.target)
        ends, stable = cluster.high_watermarks(state), cluster.last_stable_offsets(state)
        return len(ends) == PARTITIONS and {p: f.offset for p, f in ends.items()} == {
            p: f.offset for p, f in stable.items()
        }

    # --- the judge ------------------------------------------------------------------------------------------------

    def _judge(self, publisher: Publisher) -> None:
        """Compare what a consumer read with the notes, and ask for the evidence of the platform's own check."""
        wait_until("no transaction is open", self._is_decided)
        seen: dict[bytes, list[bytes | None]] = {}
        rows = committed(client_settings(self.bootstrap), self.target, headers=False)
        for row in rows:
            assert row.key is not None
            seen.setdefault(row.key, []).append(row.value)
        self.records = len(rows)
        for place, states in self._states.items():
            sent = seen.pop(b"%d/%d" % place, [])
            assert is_faithful(sent, states), f"the topic has {sent} for {place}, whose values were {states}"
        assert not seen, f"the topic has keys that no row has: {list(seen)[:5]}"
        evidence = gather(publisher)
        assert evidence.passed, evidence.problems
        assert not evidence.not_read, evidence.not_read
        assert evidence.records == len(rows)


def is_faithful(sent: Sequence[bytes | None], states: Sequence[bytes | None]) -> bool:
    """Return True if the records of a key are right: each is a change, they follow the key's states in order, and the last
    of them is the key's last state. Values that were replaced before they were published may be missing. `states` begins
    with None, and None is a deletion."""
    if any(before == after for before, after in itertools.pairwise([None, *sent])):
        return False
    left = iter(states)
    return all(any(state == each for state in left) for each in sent) and (sent[-1] if sent else None) == states[-1]
