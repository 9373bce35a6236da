"""The leg from Kafka to Kafka: programs that consume, transform and produce, killed at the same points.

A program is one entry of `PROGRAMS`: its text for the table, and a function that makes one attempt. To compare another
program, add an entry; its outputs must have the source position as their key, `partition:offset`, and the value that
`copier.transformed` returns.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from platform_assets_tests.support.semantics import copier
from platform_assets_tests.support.semantics.copier import POINTS, Mode, Point, Work
from platform_assets_tests.support.semantics.pages import Leg, Row, spans
from testbed.clients import client_settings, librdkafka
from testbed.loads import Record, TopicLake, committed

PARTITIONS: Final = 2
BATCH: Final = 10
"""Records of each partition in a batch."""

Place = tuple[int, int]
"""`(partition, offset)` in the source."""
Crash = tuple[int, Point]
"""The batch, counted from the start of the process, and the point at which the process kills itself."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one process did: the source offsets of its batches, and True if it was killed."""

    batches: tuple[tuple[Place, ...], ...]
    killed: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A program to compare. `due` returns the source offsets that a crash must lose and must double, given the offsets of
    the batch in which the program crashed."""

    told: str
    attempt: Callable[[Work], Attempt]
    due: Callable[[Point, Sequence[Place]], tuple[Sequence[Place], Sequence[Place]]]


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of one program. `crashes` has the batch's source offsets for each crash. `lost` and `doubled` are the
    differences between the outputs and the source; `due_lost` and `due_doubled` are those that the crashes must have
    caused. `wrong` has the source offsets whose output has another value than the transformation gives."""

    told: str
    crashes: tuple[tuple[Point, tuple[Place, ...]], ...]
    records: int
    outputs: Counter[Place]
    lost: frozenset[Place]
    doubled: frozenset[Place]
    due_lost: frozenset[Place]
    due_doubled: frozenset[Place]
    wrong: frozenset[Place]

    @property
    def as_due(self) -> bool:
        """True if the outputs differ from the source exactly as the crashes must have caused."""
        return not self.wrong and (self.lost, self.doubled) == (self.due_lost, self.due_doubled)


def run_copier(work: Work) -> Attempt:
    """Run the copier in a process of its own until it ends or kills itself."""
    command = [sys.executable, "-m", copier.__name__]
    done = subprocess.run(
        command, input=json.dumps(asdict(work)) + "\n", capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    batches = [tuple((p, o) for p, o in json.loads(line)) for line in done.stdout.splitlines()]
    return Attempt(tuple(batches), done.returncode != 0)


def _due(mode: Mode) -> Callable[[Point, Sequence[Place]], tuple[Sequence[Place], Sequence[Place]]]:
    def at(point: Point, batch: Sequence[Place]) -> tuple[Sequence[Place], Sequence[Place]]:
        sent = {"half sent": len(batch) // 2, "between the writes": len(batch)}.get(point)
        if mode == "at most once" and sent is not None:
            return batch[sent:] if point == "half sent" else batch, ()
        if mode == "at least once" and sent is not None:
            return (), batch[:sent]
        return (), ()

    return at


PROGRAMS: Final[Mapping[Mode, Program]] = {
    "at most once": Program("at most once: position committed, then outputs", run_copier, _due("at most once")),
    "at least once": Program("at least once: outputs, then position committed", run_copier, _due("at least once")),
    "transactional": Program(
        "transactional: both in one Kafka transaction, read with read_committed", run_copier, _due("transactional")
    ),
}


def schedule(rng: random.Random) -> list[Crash]:
    """Return crashes in which every point occurs. Each process crashes in one of its first two batches."""
    chosen: list[Point] = [*POINTS, "half sent", "between the writes", "between the writes"]
    rng.shuffle(chosen)
    return [(rng.randrange(2), point) for point in chosen]


def fill(bootstrap: str, topic: str, root: Path, rng: random.Random, rounds: int) -> None:
    """Fill `topic` with numbers: without a transaction, and in committed and aborted transactions, in random order."""
    lake = TopicLake(bootstrap, topic, root, _no_spark)
    number = 0

    def records(count: int) -> list[Record]:
        nonlocal number
        number += count
        return [Record(b"%d" % n, partition=n % PARTITIONS) for n in range(number - count, number)]

    for _ in range(rounds):
        for send in rng.sample((lake.send, lake.commit, lake.abort), 3):
            send(records(20 + rng.randrange(10)))


def _no_spark() -> object:
    raise AssertionError("this leg needs no Spark")


def run(
    bootstrap: str,
    source: str,
    target: Callable[[], str],
    root: Path,
    seed: int,
    crashes: Sequence[Crash] | None = None,
    rounds: int = 6,
) -> tuple[Copied, ...]:
    """Fill `source`, which is empty and has two partitions. Then copy it with each program to a topic that `target`
    makes, with the same crashes for every program."""
    rng = random.Random(seed)
    fill(bootstrap, source, root, rng, rounds)
    chosen = schedule(rng) if crashes is None else crashes
    return tuple(
        _run(name, Work(librdkafka(bootstrap), source, target(), "at most once", BATCH), chosen) for name in PROGRAMS
    )


def _run(name: Mode, work: Work, crashes: Sequence[Crash]) -> Copied:
    program = PROGRAMS[name]
    met: list[tuple[Point, tuple[Place, ...]]] = []
    lost: set[Place] = set()
    doubled: set[Place] = set()
    for number, point in crashes:
        attempt = program.attempt(replace(work, mode=name, crash_batch=number, crash_point=point))
        assert attempt.killed, "the source ended before the crash: fill it with more records"
        batch = attempt.batches[-1]
        met.append((point, batch))
        missing, twice = program.due(point, batch)
        lost.update(missing)
        doubled.update(twice)
    assert not program.attempt(replace(work, mode=name)).killed
    settings = client_settings(work.settings["bootstrap.servers"])
    expected = {(r.partition, r.offset): copier.transformed(r.value or b"") for r in committed(settings, work.source)}
    outputs: Counter[Place] = Counter()
    wrong: set[Place] = set()
    for r in committed(settings, work.target):
        partition, _, offset = (r.key or b"").decode().partition(":")
        place = int(partition), int(offset)
        outputs[place] += 1
        if expected.get(place) != r.value:
            wrong.add(place)
    return Copied(
        program.told,
        tuple(met),
        len(expected),
        outputs,
        lost=frozenset(expected.keys() - outputs.keys()),
        doubled=frozenset(place for place, times in outputs.items() if times > 1),
        due_lost=frozenset(lost),
        due_doubled=frozenset(doubled),
        wrong=frozenset(wrong),
    )


def leg(results: Sequence[Copied]) -> Leg:
    """Return the results as rows of the table and a section of the document."""
    rows = [Row(r.told, len(r.crashes), r.records, r.outputs.total(), len(r.lost), len(r.doubled)) for r in results]
    lines = [
        "## Kafka to Kafka",
        "",
        f"A topic with {PARTITIONS} partitions has plain records and committed and aborted transactions. Three programs copy it:",
        f"each reads up to {BATCH} records of each partition with read_committed, transforms them, produces the outputs with",
        "an idempotent producer and acks=all, and commits its position to its consumer group. The programs differ only in the",
        "order of the two writes (`platform_assets_tests/support/semantics/copier.py`). Each process kills itself with SIGKILL",
        "at the scheduled point, and is started again. Each output carries its source position; a read_committed consumer",
        "reads the outputs. Lost and duplicate outputs equal those that the crashes must have caused.",
    ]
    for r in results:
        lines += [
            "",
            f"### {r.told[0].upper()}{r.told[1:]}",
            "",
            "| crash | source offsets of the batch | lost | more than once |",
            "|---|---|---|---|",
        ]
        for point, batch in r.crashes:
            lost, doubled = (spans(set(batch) & places) or "none" for places in (r.lost, r.doubled))
            lines.append(f"| {point} | {spans(batch)} | {lost} | {doubled} |")
    return Leg(tuple(rows), "", "\n".join(lines))
