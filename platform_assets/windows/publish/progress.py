"""Values of publishing: how far windows are published, plans, and outcomes."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from platform_assets.kafka.publisher import Headers, Placed, Span
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish.loads import Load

_VERSION: Final = 1
_REMOVED_FIRST: Final = 2
"""The version of a correction that is sent in part, and whose deleted keys are sent first: earlier releases, which would
continue in another order, refuse it."""

Kind = Literal["row", "added", "changed", "removed"]
Position = tuple[int, int]
"""Kafka partition and offset of a row."""
Content = tuple[bytes | None, bytes | None, Headers]
"""Key, value and declared headers."""
Change = tuple[Kind, Position, bytes | None, bytes | None, Headers]
"""A difference between two loads of a window: what happened to the row at a position, and the record's content."""


EVERY: Final[Position] = (-1, -1)
"""A position before every row."""


def key_of(topic_id: str, table: TableRef, window: str) -> bytes:
    """Return the key of the progress record of a window."""
    return json.dumps([topic_id, table.name, window], separators=(",", ":")).encode()


def parsed_key(name: bytes) -> tuple[str, str, str] | None:
    """Return target topic id, table and window of the key of a progress record; None if it is not the platform's."""
    try:
        target, table, window = json.loads(name)
    except (ValueError, TypeError, RecursionError):
        return None
    return (target, table, window) if all(isinstance(each, str) for each in (target, table, window)) else None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a window is published: `sent` of `total` records that publish `load`. With a `base`, these records are the
    differences to that earlier load. `digest` is the encoder's, and empty in records of earlier versions.

    `at` is the position of the last row that was sent, if rows were sent and not differences. `partial` is true if the
    rows of an earlier load were erased or expired before they were all sent or compared: then only the rows after the
    position `after` are sent, or nothing if there is none. After `EVERY`, all rows of the load are sent as changed
    ones, because the earlier ones may have other values: these are the last records of `total`. `mixed` is true if
    records of earlier loads have another form.

    `spans` are the offsets of the records that have no header with an identity: rows of the window's first load. `dealt`
    are numbers of partitions among which such rows were dealt, each with the first ordinal for which it holds.

    `removed_first` is true if the differences begin with the keys that they delete, and are not all sent yet. Earlier
    releases sent them in order of position.
    """

    load: Load
    base: Load | None
    sent: int
    total: int
    digest: str = ""
    at: Position | None = None
    partial: bool = False
    after: Position | None = None
    mixed: bool = False
    spans: tuple[Span, ...] = ()
    dealt: tuple[tuple[int, int], ...] = ()
    removed_first: bool = False

    def with_spans(self, known: Progress | None, sent: Sequence[Placed], first: int) -> Progress:
        """Return this progress with the spans of what is `known`, and of records that were sent since, the first of
        which has the ordinal `first`."""
        spans, dealt = ([], []) if known is None else (list(known.spans), list(known.dealt))
        for each in sent:
            if not dealt or dealt[-1][1] != each.number:
                dealt.append((first, each.number))
            first += len(each)
            spans += each.spans
        return replace(self, spans=_merged(spans), dealt=tuple(dealt))

    @property
    def is_complete(self) -> bool:
        """True if everything was sent."""
        return self.sent == self.total

    def to_bytes(self) -> bytes:
        """Return the value of the progress record."""
        fields = {
            "load": _fields(self.load),
            "base": self.base and _fields(self.base),
            "sent": self.sent,
            "total": self.total,
            "digest": self.digest,
            **({} if self.at is None else {"at": self.at}),
            **({"partial": True} if self.partial else {}),
            **({} if self.after is None else {"after": self.after}),
            **({"mixed": True} if self.mixed else {}),
            **({"spans": self.spans, "dealt": self.dealt} if self.dealt else {}),
        }
        version = _REMOVED_FIRST if self.removed_first and not self.is_complete else _VERSION
        return json.dumps({"version": version, **fields}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Progress:
        """Parse the value of a progress record."""
        fields = json.loads(value)
        if fields["version"] not in (_VERSION, _REMOVED_FIRST):
            raise ValueError(f"version {fields['version']} instead of {_REMOVED_FIRST}: upgrade platform-assets")
        base = fields["base"]
        return cls(
            Load(*fields["load"]),
            None if base is None else Load(*base),
            fields["sent"],
            fields["total"],
            fields.get("digest", ""),
            _position(fields.get("at")),
            fields.get("partial") is True,
            _position(fields.get("after")),
            fields.get("mixed") is True,
            tuple(Span(*each) for each in fields.get("spans", ())),
            tuple((first, number) for first, number in fields.get("dealt", ())),
            fields["version"] == _REMOVED_FIRST,
        )

    def is_mixed(self, digests: Collection[str]) -> bool:
        """Return True if not all records of the window are in the form with these digests."""
        return self.mixed or self.digest not in digests


def _merged(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return spans in which those of a partition are one if only a commit marker is between them."""
    found: dict[int, list[Span]] = {}
    for span in spans:
        held = found.setdefault(span.partition, [])
        if held and held[-1].end in (span.start, span.start - 1):
            span = Span(span.partition, held[-1].start, span.end, held.pop().records + span.records)
        held.append(span)
    return tuple(span for _, held in sorted(found.items()) for span in held)


def _position(value: Sequence[int] | None) -> Position | None:
    return None if value is None else (value[0], value[1])


def _fields(load: Load) -> list[Any]:
    return [load.load_id, load.version, load.rows]


@dataclass(frozen=True, slots=True)
class Plan:
    """Windows to publish: `begun` are windows whose load is partly sent, `new` were never published, `again` were
    loaded again since. `held` would be in `again`, but corrections are held. `waiting` is the first window that is not
    loaded yet, and `blocked` are later windows that are loaded and wait for it, or for a window in `unchecked`: the run that
    loaded these has not finished, so their checks may not have run yet."""

    begun: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    published: int = 0
    rows: int = 0
    waiting: str | None = None
    blocked: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def behind(self) -> int:
        """Number of windows that can be published now."""
        return len({*self.begun, *self.new, *self.again})


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of one call: numbers of windows, records and transactions, and of deleted rows that no record
    announces. `held`, `waiting` and `unchecked` are as in `Plan`. `removed` are windows whose rows were erased or expired before they
    were all sent, or before they could be compared with a later load."""

    windows: int = 0
    records: int = 0
    corrections: int = 0
    unannounced: int = 0
    transactions: int = 0
    held: tuple[str, ...] = ()
    waiting: str | None = None
    removed: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
