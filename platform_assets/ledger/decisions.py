"""Operators' decisions: what was decided, when, by whom and why. They are in a small Delta table next to the two
ledgers.

A decision is recorded before it takes effect, so the reason for every effect can be looked up here. The effects
themselves are in the tables and ledgers: an accepted loss is in `commits`, and a new generation is in `cuts`; a
decision whose cut was refused has no effect. Only parked windows are not recorded anywhere else.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Field, Schema
from deltalake.schema import PrimitiveType

from platform_assets.errors import ConfigurationError
from platform_assets.lake import datasets, delta_log
from platform_assets.lake.location import Lake
from platform_assets.ledger import appending, folding
from platform_assets.ledger.entries import arrow_type
from platform_assets.model.names import checked_topic
from platform_assets.model.offsets import OffsetRange, merge_named, subtract
from platform_assets.model.tables import TableRef

DecisionKind = Literal["loss", "generation", "cluster", "park", "unpark", "erase", "erased", "keep", "expire"]
"""loss: offsets that will not be loaded; generation: a topic continues with another log; cluster: a log continues on
another cluster with its offsets; park, unpark: the sensor stops or resumes requesting a window; erase: records are to
be erased; erased: they have been erased; keep: upkeep has seen a new or changed `keep` in the YAML; expire: rows of
windows past it, from the first to the last named window, will be removed."""

TABLE: Final = "table"
"""Key in a decision's details: the name of the table, if it is not the raw table."""
REPLAYS: Final = "replays"
"""Key in the details of an erasure: the names of replays that may hold records to erase."""
REPLAYS_DONE: Final = "replays_done"
"""Key in the details of an erasure: by replay, the time up to which all decided erasures are complete in the replay."""

_NAME_LENGTH: Final = 200

DECISION_COLUMNS: Final = {
    "topic": ("string", "Kafka topic"),
    "kind": (
        "string",
        "loss, generation, cluster, park, unpark, erase (records must be erased), erased (the erasure is complete), keep (of the "
        "YAML) or expire (rows past it)",
    ),
    "windows": ("string", "JSON: keys of the affected windows, ascending"),
    "decided_by": (
        "string",
        "author: a name, marked as claimed if it was given on the command line, followed in brackets by the process's "
        "uid or the Dagster run",
    ),
    "reason": ("string", "reason, in the author's words"),
    "details": ("string", "JSON: facts known at the time of the decision"),
    "decided_at": ("timestamp", "time of the decision"),
}


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision on `windows` (keys, in ascending order) of `topic`. `details` has plain JSON values."""

    topic: str
    kind: DecisionKind
    windows: tuple[str, ...]
    decided_by: str
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)
    decided_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Author:
    """The person who decides, and the person's reason."""

    name: str
    reason: str

    @classmethod
    def of(cls, name: str | None, reason: str | None, run: str | None = None) -> Author:
        """Return the author: the given name, followed in brackets by what the platform itself knows about the author.

        Args:
            name: the given name, unchecked. By default the account of this process.
            reason: the given reason.
            run: id of the deciding Dagster run, since all runs share one process account.

        Raises:
            ConfigurationError: there is no reason.
        """
        if not (reason or "").strip():
            raise ConfigurationError("a decision needs a reason, which the ledger keeps: add --reason")
        known = f"Dagster run {run}" if run is not None else f"uid {os.getuid()}"
        claimed = " ".join((name or "").replace("[", "(").replace("]", ")").split())[:_NAME_LENGTH]
        own = known if run is not None else f"{_account()} [{known}]"
        return cls(f"{claimed} [claimed; {known}]" if claimed else own, (reason or "").strip())


def _account() -> str:
    """Return the account name of this process. It comes from the system, not from variables that the process's user may
    set."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "an account without a name"


def record(lake: Lake, decision: Decision) -> None:
    """Record a decision. Raises LakeNotWritableError."""
    folder = lake.decisions
    if not delta_log.exists(folder):
        columns = [Field(n, PrimitiveType(t), metadata={"comment": c}) for n, (t, c) in DECISION_COLUMNS.items()]
        folder.create_delta(
            Schema(columns),
            partition_by="topic",
            name=folder.name,
            description=(__doc__ or "").splitlines()[0],
            configuration={"delta.enableDeletionVectors": "false"},
        )
    row = {
        "topic": checked_topic(decision.topic),
        "kind": decision.kind,
        "windows": json.dumps(sorted(decision.windows)),
        "decided_by": decision.decided_by,
        "reason": decision.reason,
        "details": json.dumps(decision.details, sort_keys=True),
        "decided_at": decision.decided_at or datetime.now(UTC),
    }
    schema = pa.schema([(name, arrow_type(kind)) for name, (kind, _) in DECISION_COLUMNS.items()])
    with folder.writing():
        handle = appending.append(folder, folder.delta(), pa.Table.from_pylist([row], schema=schema), [decision.topic])
        folding.fold(folder, handle, "topic", [decision.topic])


def decisions(lake: Lake, topic: str | None, kinds: Sequence[DecisionKind] = ()) -> list[Decision]:
    """Return decisions on `topic`, or on every topic, oldest first. If `kinds` are given, return only decisions of
    these kinds."""
    if not delta_log.exists(lake.decisions):
        return []
    handle = lake.decisions.delta()
    dataset = datasets.of(handle) if topic is None else datasets.of(handle, "topic", topic)
    condition = pc.scalar(True) if topic is None else pc.field("topic") == topic
    if kinds:
        condition &= pc.field("kind").isin(list(kinds))
    # Some clocks count whole seconds: within one second, a request comes before its completion.
    order = [("decided_at", "ascending"), ("kind", "ascending")]
    with lake.decisions.reading():
        rows = dataset.to_table(filter=condition).sort_by(order).to_pylist()
    return [
        Decision(
            row["topic"],
            row["kind"],
            tuple(json.loads(row["windows"])),
            row["decided_by"],
            row["reason"],
            json.loads(row["details"]),
            row["decided_at"].astimezone(UTC),
        )
        for row in rows
    ]


def version(lake: Lake, at_least: int | None = None) -> int | None:
    """Return the version of the table of decisions, which increases with each decision; None if nothing was ever
    decided.

    The call is cheap if the version `at_least` is known, because it then only looks for a file.
    """
    return delta_log.newest_version(lake.decisions, at_least)


@dataclass(frozen=True, slots=True)
class UnfinishedErasure:
    """Offsets of one window, by partition, whose erasure was requested but is not confirmed. `decision` is the newest
    decision on these offsets."""

    ranges: Mapping[int, tuple[OffsetRange, ...]]
    decision: Decision


def unfinished_erasures(lake: Lake, topic: str) -> dict[str, UnfinishedErasure]:
    """Return, by key, the windows with records whose erasure was requested but is not confirmed.

    These are the records at offsets that an `erase` decision lists and no `erased` decision lists, whatever the order
    of the decisions.
    """
    wanted, done, newest = dict[str, list[list[int]]](), dict[str, list[list[int]]](), dict[str, Decision]()
    for decision in decisions(lake, topic, ("erase", "erased")):
        if decision.kind == "erase":
            _add(wanted, decision)
            newest |= dict.fromkeys(decision.windows, decision)
        elif "offsets" in decision.details:
            _add(done, decision)
        else:
            # When it recorded this, an earlier release had finished everything decided on these windows until then.
            for key in decision.windows:
                wanted.pop(key, None)
    left = dict[str, UnfinishedErasure]()
    for key, named in sorted(wanted.items()):
        gone = merge_named(done.get(key, ()))
        ranges = {p: subtract(parts, gone.get(p, ())) for p, parts in merge_named(named).items()}
        if any(ranges.values()):
            left[key] = UnfinishedErasure({p: parts for p, parts in ranges.items() if parts}, newest[key])
    return left


def unerased_replays(lake: Lake, topic: str) -> dict[str, Decision]:
    """Return the names of replays in which an erasure was requested but is not confirmed, each with the newest decision
    that lists the replay. Some of the replays may no longer exist.

    An erasure that found a replay first lists it. It then confirms everything that was decided before it began to erase
    records in the replay.
    """
    named, done = dict[str, Decision](), dict[str, datetime]()
    for decision in decisions(lake, topic, ("erase", "erased")):
        named |= dict.fromkeys(decision.details.get(REPLAYS, ()), decision)
        for name, text in decision.details.get(REPLAYS_DONE, {}).items():
            until = datetime.fromisoformat(text)
            done[name] = max(until, done.get(name, until))
    return {n: d for n, d in named.items() if n not in done or d.decided_at is None or d.decided_at > done[n]}


def _add(named: dict[str, list[list[int]]], decision: Decision) -> None:
    for key, triples in decision.details["offsets"].items():
        named.setdefault(key, []).extend(triples)


@dataclass(frozen=True, slots=True)
class Parking:
    """A table's parked windows, with the decisions that parked them; and by key, the times at which other windows were
    last unparked."""

    parked: Mapping[str, Decision] = field(default_factory=dict)
    unparked: Mapping[str, datetime] = field(default_factory=dict)


def parking(lake: Lake, table: TableRef) -> Parking:
    """Return the parked windows. The newest decision on a window counts. A window that was loaded since is not parked."""
    return _parking(decisions(lake, table.topic, ("park", "unpark")), table)


def parking_of_many(lake: Lake, tables: Iterable[TableRef]) -> dict[TableRef, Parking]:
    """Return the parked windows of several tables. The decisions are read only once."""
    found = decisions(lake, None, ("park", "unpark"))
    return {table: _parking(found, table) for table in tables}


def _parking(found: Iterable[Decision], table: TableRef) -> Parking:
    newest: dict[str, Decision] = {}
    for decision in found:
        named = decision.details.get(TABLE, TableRef.raw(decision.topic).name)
        if named == table.name:
            newest |= dict.fromkeys(decision.windows, decision)
    parked = {key: d for key, d in sorted(newest.items()) if d.kind == "park"}
    unparked = {key: d.decided_at for key, d in newest.items() if d.kind == "unpark" and d.decided_at is not None}
    return Parking(parked, unparked)
