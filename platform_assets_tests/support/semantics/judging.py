"""Configurations of a producer, faults, and the judgement of a producer's notes against the log."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, get_args

from confluent_kafka import KafkaException, Producer

from platform_assets_tests.support.semantics.pages import Leg, Row, spans
from testbed.clients import librdkafka

BATCH: Final = 10
VALUES: Final = 3 * BATCH

Fault = Literal[
    "request lost", "answer lost", "leader killed", "leader moved", "producer killed", "producer killed at the commit"
]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
_TOLD: Final[Mapping[Fault, str]] = {
    "request lost": "The connection breaks after the producer has written the request of the second batch, and before the "
    "broker reads it.",
    "answer lost": "The broker appends the second batch and answers. The connection breaks before the answer arrives.",
    "leader killed": "Both followers are frozen (SIGSTOP), and records are written to another topic of the leader until no "
    "fetch of a follower can be waiting. The leader appends the second batch, and is killed (SIGKILL). The followers go on "
    "(SIGCONT), one becomes leader, and the third batch is sent.",
    "leader moved": "The second and third batch are on the way together. The second one arrives while another broker leads, "
    "and the third one when the first broker leads again. The answers arrive after that. The idempotent producers had only "
    "the second batch on the way: this client sent the third one after the answer to the second.",
    "producer killed": "The broker appends the second batch and answers. The producer is killed (SIGKILL) before it reads the "
    "answer. A new process sends all values that the notes do not show as delivered.",
    "producer killed at the commit": "The coordinator commits the transaction of the second batch and answers. The producer "
    "is killed (SIGKILL) before it reads the answer. A new process sends all values that the notes do not show as committed.",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A configuration of the producer. All others settings are the same for all configurations."""

    acks: str
    idempotent: bool
    transactional: bool

    @property
    def told(self) -> str:
        """The configuration as text."""
        parts = [f"acks={self.acks}", "idempotent" if self.idempotent else ""]
        return ", ".join(filter(None, [*parts, "transactional" if self.transactional else ""]))

    def settings(self, bootstrap: str, topic: str) -> dict[str, str]:
        """Return the client's settings."""
        return {
            **librdkafka(bootstrap),
            "acks": self.acks,
            "enable.idempotence": str(self.idempotent).lower(),
            **(
                {"transactional.id": f"sender-of-{topic}", "transaction.timeout.ms": "300000"}
                if self.transactional
                else {}
            ),
            # A request has one batch, which is sent when it is complete, and five requests may be on the way.
            "batch.num.messages": str(BATCH),
            "linger.ms": "5000",
            "max.in.flight.requests.per.connection": "5",
            "message.timeout.ms": "300000",
            "log_level": "0",
        }


ALL_SETUPS: Final = tuple(
    Setup(acks, idempotent, transactional)
    for acks, idempotent, transactional in product(("0", "1", "all"), (False, True), (False, True))
)
"""Every combination, also those that the client refuses."""
SETUPS: Final = tuple(
    s for s in ALL_SETUPS if (s.acks == "all" or not s.idempotent) and s.idempotent >= s.transactional
)
"""The combinations that the client accepts."""


def refusal(setup: Setup) -> str | None:
    """Return the client's error for a combination, or None if the client accepts it."""
    try:
        Producer(setup.settings("127.0.0.1:1", "none"))
    except KafkaException as error:
        return str(error.args[0].str()).removeprefix("Failed to create producer: ")
    return None


@dataclass(frozen=True, slots=True)
class Notes:
    """What a producer's processes noted: values in the order in which they were first sent, and the values reported as
    delivered, with their offsets (None if the broker did not report one). In a transaction, a value counts as delivered
    when the commit has succeeded."""

    tried: tuple[int, ...]
    delivered: Mapping[int, int | None]


@dataclass(frozen=True, slots=True)
class Judged:
    """The notes of one producer, held against the log. `log` has `(offset, value)` as a read_committed consumer reads it;
    `uncommitted` counts the records that only a read_uncommitted consumer reads."""

    setup: Setup
    fault: Fault
    notes: Notes
    log: tuple[tuple[int, int], ...]
    uncommitted: int = 0

    @property
    def lost(self) -> frozenset[int]:
        """Values that were reported as delivered and are not in the log."""
        return frozenset(self.notes.delivered) - {value for _, value in self.log}

    @property
    def doubled(self) -> frozenset[int]:
        """Values that are in the log more than once."""
        return frozenset(v for v, times in Counter(value for _, value in self.log).items() if times > 1)

    @property
    def disordered(self) -> frozenset[int]:
        """Values whose first copy is after a value that was sent later."""
        place = {value: number for number, value in enumerate(self.notes.tried)}
        found, newest, seen = set(), -1, set()
        for value in (v for _, v in self.log if v in place):
            if value not in seen and place[value] < newest:
                found.add(value)
            seen.add(value)
            newest = max(newest, place[value])
        return frozenset(found)

    @property
    def foreign(self) -> frozenset[int]:
        """Values in the log that no process has noted as sent."""
        return frozenset(value for _, value in self.log) - set(self.notes.tried)

    @property
    def missing(self) -> frozenset[int]:
        """Values that are neither delivered nor in the log."""
        return frozenset(self.notes.tried) - set(self.notes.delivered) - {value for _, value in self.log}

    def offsets(self, values: frozenset[int]) -> list[int]:
        """Return the offsets of all copies of these values."""
        return [offset for offset, value in self.log if value in values]

    @property
    def as_due(self) -> bool:
        """True if the fault did exactly what it must do to this configuration."""
        found = (self.lost, self.doubled, self.disordered)
        return found == due(self.setup, self.fault) and not self.foreign and not self.missing


def applies(setup: Setup, fault: Fault) -> bool:
    """Return True if the fault can happen: without acknowledgements there is no answer, and only transactions commit."""
    if fault == "producer killed at the commit":
        return setup.transactional
    return setup.acks != "0" or fault not in ("answer lost", "producer killed")


def due(setup: Setup, fault: Fault) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    """Return the values that the fault must lose, double and put out of order."""
    second, both, none = frozenset(range(BATCH, 2 * BATCH)), frozenset(range(BATCH, VALUES)), frozenset[int]()
    match fault:
        case "request lost":
            return (second if setup.acks == "0" else none), none, none
        case "answer lost":
            return none, (none if setup.idempotent else second), none
        case "leader killed":
            return (none if setup.acks == "all" else second), none, none
        case "leader moved":
            # Without acknowledgements, a broker that does not lead closes the connection, and with it the third batch.
            return (
                (both if setup.acks == "0" else none),
                none,
                (second if setup.acks != "0" and not setup.idempotent else none),
            )
        case "producer killed":
            return none, (none if setup.transactional else second), none
        case _:
            return none, second, none


# --- telling it -----------------------------------------------------------------------------------------------------


def leg(results: Sequence[Judged]) -> Leg:
    """Return the results as rows of the table and a section of the document."""
    rows = []
    for setup in SETUPS:
        own = [j for j in results if j.setup == setup]
        rows.append(
            Row(
                f"{setup.told}",
                len(own),
                sum(len(j.notes.tried) for j in own),
                sum(len(j.log) for j in own),
                sum(len(j.lost) for j in own),
                sum(len(j.doubled) for j in own),
                sum(len(j.disordered) for j in own),
            )
        )
    lines = [
        "## Producer to Kafka",
        "",
        "Three brokers, replication factor 3, `min.insync.replicas=2`. For each configuration and each fault, a producer",
        f"(librdkafka, retries on) sends the values 0 to {VALUES - 1} to a new topic with one partition, in batches of {BATCH}. A",
        "transactional producer sends them in one transaction; if it is killed, the first batch has a transaction of its own.",
        "The producer notes each value before it sends it, and each delivery report. Then a read_committed consumer reads the",
        "log, after all replicas have it.",
        "",
        "*Lost*: reported as delivered (for a transaction: its commit has succeeded), and not in the log. *More than once*: in",
        "the log more than once. *Out of order*: the first copy is after a value that was sent later. A value that is neither",
        "reported as delivered nor in the log would be a failed send; there was none. Each count equals what the fault must",
        "cause.",
        "",
        "The client refuses the other combinations:",
        "",
        "| configuration | error |",
        "|---|---|",
    ]
    for setup in ALL_SETUPS:
        if setup not in SETUPS:
            lines.append(f"| {setup.told} | {refusal(setup)} |")
    for fault in FAULTS:
        lines += ["", f"### {fault[0].upper()}{fault[1:]}", "", *textwrap.wrap(_TOLD[fault], 118), ""]
        lines += ["| configuration | lost | more than once | out of order |", "|---|---|---|---|"]
        lines += [_line(j) for j in results if j.fault == fault]
        aborted = [j for j in results if j.fault == fault and j.uncommitted]
        for j in aborted:
            lines += [
                "",
                f"With {j.setup.told}, a read_uncommitted consumer reads {j.uncommitted} more records: those of the",
                "aborted transaction.",
            ]
        if fault in ("answer lost", "producer killed"):
            lines += ["", "With acks=0 there is no answer."]
    remark = "A producer that is killed before it learns that its commit succeeded sends the records again."
    return Leg(tuple(rows), remark, "\n".join(lines))


def _line(j: Judged) -> str:
    lost = values(j.lost)
    if offsets := [offset for v in j.lost if (offset := j.notes.delivered[v]) is not None]:
        lost += f", reported at offsets {spans((0, o) for o in offsets).removeprefix('partition 0 ')}"
    found = [lost]
    for each in (j.doubled, j.disordered):
        text = values(each)
        if each:
            text += f", at offsets {spans((0, o) for o in j.offsets(each)).removeprefix('partition 0 ')}"
        found.append(text)
    return f"| {j.setup.told} | {' | '.join(found)} |"


def values(found: frozenset[int]) -> str:
    """Return values as text."""
    return f"values {spans((0, v) for v in found).removeprefix('partition 0 ')}" if found else "none"
