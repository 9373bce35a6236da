"""Decisions: what operators have decided, when, who, and why; a small Delta table beside the two ledgers.

A decision is written before it takes effect, so what takes effect can always be read here. What a table or the ledgers hold
counts for itself: an acceptance of a loss is in `commits`, a new generation in `cuts`: a decision whose cut was refused has no effect.
That a window is parked is here alone.
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
from platform_assets.ledger import appending
from platform_assets.ledger.entries import arrow_type
from platform_assets.model.offsets import OffsetRange, merge_named, subtract
from platform_assets.model.tables import TableRef
from platform_assets.model.topics import checked_topic

DecisionKind = Literal["loss", "generation", "cluster", "park", "unpark", "erase", "erased"]
"""loss: offsets that will not be loaded; generation: a topic's log that goes on as another one; cluster: a
log that goes on on another cluster with its offsets; park, unpark: a window that the
sensor does not ask for, and does again; erase: records that have to go; erased: that they are gone."""

TABLE: Final = "table"
"""Detail of a decision on windows of a table that is not the raw one: the table's name."""

_NAME_LENGTH: Final = 200

DECISION_COLUMNS: Final = {
    "topic": ("string", "Kafka topic"),
    "kind": (
        "string",
        "loss, generation, cluster, park, unpark, erase (records that have to go) or erased (they are gone)",
    ),
    "windows": ("string", "JSON: keys of the windows that it is about, ascending"),
    "decided_by": (
        "string",
        "who decided: a name, marked as claimed if it was given, and in brackets the uid of the process or the Dagster run",
    ),
    "reason": ("string", "why, in the words of whoever decided"),
    "details": ("string", "JSON: what was known when it was decided"),
    "decided_at": ("timestamp", "when"),
}


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision on `windows` (keys, ascending) of `topic`. `details` are plain JSON values."""

    topic: str
    kind: DecisionKind
    windows: tuple[str, ...]
    decided_by: str
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)
    decided_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Author:
    """Who decides, and why."""

    name: str
    reason: str

    @classmethod
    def of(cls, name: str | None, reason: str | None, run: str | None = None) -> Author:
        """Name who decides: what was claimed, and in brackets at the end what the platform knows by itself.

        Args:
            name: as given, which nobody has checked. By default the account of this process.
            reason: as given.
            run: id of the Dagster run that decides; its process's account is that of every run.

        Raises:
            ConfigurationError: there is no reason.
        """
        if not (reason or "").strip():
            raise ConfigurationError("a decision needs a reason, which the ledger keeps: say why with --reason")
        known = f"Dagster run {run}" if run is not None else f"uid {os.getuid()}"
        claimed = " ".join((name or "").replace("[", "(").replace("]", ")").split())[:_NAME_LENGTH]
        own = known if run is not None else f"{_account()} [{known}]"
        return cls(f"{claimed} [claimed; {known}]" if claimed else own, (reason or "").strip())


def _account() -> str:
    """The name of the account of this process by the system, and not by variables that its user may set."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "an account without a name"


def record(lake: Lake, decision: Decision) -> None:
    """Write a decision down. Raises LakeNotWritableError."""
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
        appending.append(folder, folder.delta(), pa.Table.from_pylist([row], schema=schema), [decision.topic])


def decisions(lake: Lake, topic: str | None, kinds: Sequence[DecisionKind] = ()) -> list[Decision]:
    """All decisions on `topic`, or on every topic, or those of `kinds`, the oldest first."""
    if not delta_log.exists(lake.decisions):
        return []
    handle = lake.decisions.delta()
    dataset = datasets.of(handle) if topic is None else datasets.of(handle, "topic", topic)
    condition = pc.scalar(True) if topic is None else pc.field("topic") == topic
    if kinds:
        condition &= pc.field("kind").isin(list(kinds))
    # Some clocks count whole seconds: of one second, what was asked for comes before its end.
    order = [("decided_at", "ascending"), ("kind", "ascending")]
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
    """The version of the table of decisions, which each decision raises; None where nothing was ever decided.

    Cheap where the version `at_least` is known: a file is looked for.
    """
    return delta_log.newest_version(lake.decisions, at_least)


@dataclass(frozen=True, slots=True)
class UnfinishedErasure:
    """Offsets of one window, by partition, that have to go and are not known to be gone; `decision` is the newest one on them."""

    ranges: Mapping[int, tuple[OffsetRange, ...]]
    decision: Decision


def unfinished_erasures(lake: Lake, topic: str) -> dict[str, UnfinishedErasure]:
    """The windows in which records have to go and are not known to be gone, by key.

    That is the difference of offsets: what `erase` names and no `erased` does, whichever was written last.
    """
    wanted, done, newest = dict[str, list[list[int]]](), dict[str, list[list[int]]](), dict[str, Decision]()
    for decision in decisions(lake, topic, ("erase", "erased")):
        if decision.kind == "erase":
            _add(wanted, decision)
            newest |= dict.fromkeys(decision.windows, decision)
        elif "offsets" in decision.details:
            _add(done, decision)
        else:
            # An earlier release has finished all that was decided on these windows until then.
            for key in decision.windows:
                wanted.pop(key, None)
    left = dict[str, UnfinishedErasure]()
    for key, named in sorted(wanted.items()):
        gone = merge_named(done.get(key, ()))
        ranges = {p: subtract(parts, gone.get(p, ())) for p, parts in merge_named(named).items()}
        if any(ranges.values()):
            left[key] = UnfinishedErasure({p: parts for p, parts in ranges.items() if parts}, newest[key])
    return left


def _add(named: dict[str, list[list[int]]], decision: Decision) -> None:
    for key, triples in decision.details["offsets"].items():
        named.setdefault(key, []).extend(triples)


@dataclass(frozen=True, slots=True)
class Parking:
    """Which windows of a table are parked, by the decision that parked them, and when others were last unparked, by key."""

    parked: Mapping[str, Decision] = field(default_factory=dict)
    unparked: Mapping[str, datetime] = field(default_factory=dict)


def parking(lake: Lake, table: TableRef) -> Parking:
    """Of each window the newest decision counts. A window that was loaded since is parked no more than any other."""
    return _parking(decisions(lake, table.topic, ("park", "unpark")), table)


def parking_of_many(lake: Lake, tables: Iterable[TableRef]) -> dict[TableRef, Parking]:
    """The same of several tables, by one look at the decisions."""
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
