"""Publishing a table's windows to a Kafka topic, exactly once.

A record is identified by (table, window, load, ordinal), where the ordinal is the row's place in the load, sorted by
partition and offset. Windows are published in order. If a window was loaded or decoded again, its new rows are compared
with the published rows, by position and content, and only what differs is published. A load that has begun is finished
before a later load of the same window is considered, so the result does not depend on when a publisher was killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.errors import ConfigurationError, PublishingInterruptedError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.publisher import Headers, Record, Session, Target
from platform_assets.lake import decoded_table
from platform_assets.ledger import unloaded
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.logs import logger
from platform_assets.model.publishing import HEADER, PublishDeclaration
from platform_assets.windows.publish import loads
from platform_assets.windows.publish.encoding import Encoded, Encoder
from platform_assets.windows.publish.loads import Load

_log = logger(__name__)

_VERSION: Final = 1
_ATTEMPTS: Final = 5
"""Sessions in a row without progress after which the error is raised."""

Kind = Literal["row", "added", "changed", "removed"]
Content = tuple[bytes | None, bytes | None, Headers]
"""Key, value and declared headers."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a window is published: `sent` of `total` records that publish `load`. With a `base`, these records are the
    differences to that earlier load. `digest` is the encoder's, and empty in records of earlier versions."""

    load: Load
    base: Load | None
    sent: int
    total: int
    digest: str = ""

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
        }
        return json.dumps({"version": _VERSION, **fields}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Progress:
        """Parse the value of a progress record."""
        fields = json.loads(value)
        base = fields["base"]
        return cls(
            Load(*fields["load"]),
            None if base is None else Load(*base),
            fields["sent"],
            fields["total"],
            fields.get("digest", ""),
        )


def _fields(load: Load) -> list[Any]:
    return [load.load_id, load.version, load.rows]


@dataclass(frozen=True, slots=True)
class Plan:
    """Windows to publish: `begun` are windows whose load is partly sent, `new` were never published, `again` were
    loaded again since. `held` would be in `again`, but corrections are held. `waiting` is the first window that is not
    loaded yet, and for which later ones wait."""

    begun: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    published: int = 0
    rows: int = 0
    waiting: str | None = None

    @property
    def behind(self) -> int:
        """Number of windows that are not completely published, without held ones."""
        return len({*self.begun, *self.new, *self.again})


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of one call: numbers of windows, records and transactions, and of deleted rows that no record
    announces. `held` and `waiting` are as in `Plan`."""

    windows: int = 0
    records: int = 0
    corrections: int = 0
    unannounced: int = 0
    transactions: int = 0
    held: tuple[str, ...] = ()
    waiting: str | None = None


@dataclass
class _Count:
    windows: int = 0
    records: int = 0
    corrections: int = 0
    unannounced: int = 0
    transactions: int = 0


@dataclass(frozen=True)
class Publisher:
    """Publishes the windows of `declaration`'s table. `before_step` is as in `Target`, and `on_progress` is called after
    each transaction with the window and the number of records that were sent so far."""

    declaration: PublishDeclaration
    ledger: Ledger
    cluster: Cluster
    before_step: Callable[[str], None] = lambda step: None
    on_progress: Callable[[str, int], None] = lambda window, records: None
    parked: frozenset[str] = field(default_factory=frozenset)

    @property
    def target(self) -> Target:
        """The topic, as the publisher sees it."""
        seconds = self.declaration.transaction_timeout.total_seconds()
        return Target(self.cluster, self.declaration.topic, seconds, self.before_step)

    def plan(self) -> Plan:
        """Return what `run` would publish now. Raises the errors of Cluster and Ledger."""
        topic_id = self.cluster.topic(self.declaration.topic).topic_id
        return self._plan(self.known(topic_id), self._receipts())

    def run(self) -> Published:
        """Publish everything that is not published yet, and return what was sent.

        Raises PublishingInterruptedError (retryable; what was committed counts), PublishingRefusedError,
        PublishedRowsLostError, UnpublishableRowError, TopicMissingError and ConfigurationError.
        """
        target, count = self.target, _Count()
        topic_id = target.prepare().topic_id
        failures, before = 0, -1
        while True:
            try:
                return self._session(target.session(), topic_id, count)
            except PublishingInterruptedError as e:
                failures = failures + 1 if count.transactions == before else 1
                before = count.transactions
                if e.fenced or failures >= _ATTEMPTS:
                    raise
                _log.warning("%s Continuing with a new producer.", e)

    def _session(self, session: Session, topic_id: str, count: _Count) -> Published:
        known, receipts = self._known(session.progress, topic_id), self._receipts()
        plan = self._plan(known, receipts)
        encoder = self._encoder() if plan.behind else None
        # Before anything is sent: until it is compared with a later load, VACUUM must keep what is published.
        if plan.behind:
            pins = {key: [p.load] if p.base is None or p.is_complete else [p.base, p.load] for key, p in known.items()}
            for key in (*plan.new, *plan.again):
                pins.setdefault(key, []).append(_load_of(receipts[key]))
            self._pin(pins)
        if encoder is not None:
            self._send_all(session, encoder, plan, known, receipts, topic_id, count)
        done = fingerprint(self.declaration, self.ledger, receipts)
        self._pin({key: [p.load] for key, p in known.items()}, done)
        return Published(
            count.windows,
            count.records,
            count.corrections,
            count.unannounced,
            count.transactions,
            plan.held,
            plan.waiting,
        )

    def _send_all(
        self,
        session: Session,
        encoder: Encoder,
        plan: Plan,
        known: dict[str, Progress],
        receipts: Mapping[str, Receipt],
        topic_id: str,
        count: _Count,
    ) -> None:
        """Send all records of a plan. Small windows share a transaction; `known` is kept up to date."""
        # Records are made as they are sent: Python's garbage collector takes seconds for a few 100,000 kept ones.
        batch: list[Iterable[Record]] = []
        states: dict[str, Progress] = {}
        number = corrections = lacking = 0

        def commit() -> None:
            nonlocal batch, states, number, corrections, lacking
            session.send(
                chain.from_iterable(batch),
                {_key(topic_id, self.declaration, key): p.to_bytes() for key, p in states.items()},
            )
            known.update(states)
            count.transactions += 1
            count.records += number
            count.corrections += corrections
            count.windows += sum(p.is_complete for p in states.values())
            count.unannounced += lacking
            self.on_progress(max(states), count.records)
            batch, states, number, corrections, lacking = [], {}, 0, 0, 0

        for key in sorted({*plan.begun, *plan.new, *plan.again}):
            while True:
                before = states.get(key, known.get(key))
                if before is None or before.is_complete:
                    load = _load_of(receipts[key])
                    if before is not None and (before.load.load_id == load.load_id or key not in plan.again):
                        break
                    state = Progress(load, None if before is None else before.load, 0, 0, encoder.digest)
                else:
                    state = before
                    self._check_form(key, state, encoder)
                records, total, silent = self._records(encoder, key, state)
                if state is before and state.total != total:
                    raise self._refusal(key, state, f"it has {total:,} records now")
                lacking += silent if state is not before else 0
                state = replace(state, total=total)
                if not total:
                    states[key] = state
                    if len(states) >= self.declaration.transaction_rows:
                        commit()
                while state.sent < total:
                    end = min(total, state.sent + self.declaration.transaction_rows - number)
                    batch.append(records(state.sent, end))
                    number += end - state.sent
                    corrections += 0 if state.base is None else end - state.sent
                    state = states[key] = replace(state, sent=end)
                    if number >= self.declaration.transaction_rows:
                        commit()
        if states:
            commit()

    def _check_form(self, key: str, state: Progress, encoder: Encoder) -> None:
        """Refuse to finish a load in another form than it was begun in: its ordinals would name other records."""
        if state.digest not in ("", encoder.digest):
            cause = (
                "the declaration, the types of the published columns or the version of the platform has changed since"
            )
            raise self._refusal(key, state, cause)

    def _refusal(self, key: str, state: Progress, cause: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.declaration.name}: load {state.load.load_id} of window {key} is published in part, {state.sent:,} of "
            f"{state.total:,} records, and cannot be finished: {cause}. Restore the declaration and the table's columns, "
            "publish, and change them after that; or publish to a new topic."
        )

    def _records(
        self, encoder: Encoder, key: str, state: Progress
    ) -> tuple[Callable[[int, int], Iterable[Record]], int, int]:
        """Return a function that makes the records of an ordinal range of a window, the number of records, and the
        number of deleted rows that no record announces."""
        d, columns = self.declaration, encoder.columns
        new = loads.read(self.ledger, d.table, key, state.load, columns, d.topic)
        prefix, load_id = f"{d.table.name} {key} ", state.load.load_id
        if state.base is None:

            def of_rows(start: int, end: int) -> Iterator[Record]:
                part = new.slice(start, end - start)
                return _as_records(encoder.encode(part), identities(prefix, load_id, start, part))

            return of_rows, new.num_rows, 0
        old = loads.read(self.ledger, d.table, key, state.base, columns, d.topic)
        changes, silent = self._changes(encoder, old, new)

        def of_changes(start: int, end: int) -> Iterator[Record]:
            for ordinal, (kind, (partition, offset), record_key, value, declared) in enumerate(
                changes[start:end], start
            ):
                identity = f"{prefix}{ordinal} {kind} {partition} {offset} {load_id}".encode()
                yield record_key, value, [*declared, (HEADER, identity)]

        return of_changes, len(changes), silent

    def _changes(
        self, encoder: Encoder, old: pa.Table, new: pa.Table
    ) -> tuple[list[tuple[Kind, tuple[int, int], bytes | None, bytes | None, Headers]], int]:
        """Return the differences between two loads of a window, in order of position, and the number of deleted rows
        that have no key or that the declaration does not announce."""
        before, after = _by_position(encoder, old), _by_position(encoder, new)
        found: list[tuple[Kind, tuple[int, int], bytes | None, bytes | None, Headers]] = []
        silent = 0
        for position in sorted({*before, *after}):
            was, now = before.get(position), after.get(position)
            if was == now:
                continue
            if was is not None and (now is None or was[0] != now[0]):
                if self.declaration.tombstones and was[0] is not None:
                    found.append(("removed", position, was[0], None, []))
                else:
                    silent += 1
            if now is not None:
                found.append(("added" if was is None else "changed", position, *now))
        return found, silent

    def _encoder(self) -> Encoder:
        return Encoder(self.declaration, decoded_table.held(self.ledger.lake.table(self.declaration.table)))

    def _pin(self, pins: Mapping[str, Sequence[Load]], done: str = "") -> None:
        loads.pin(self.ledger.lake, self.declaration.topic, self.declaration.table, pins, done)

    def known(self, topic_id: str) -> dict[str, Progress]:
        """Return how far each window is published to the topic with this id, without fencing a publisher."""
        return self._known(self.target.committed(), topic_id)

    def rows(self, key: str, load: Load) -> dict[tuple[int, int], Content]:
        """Return key, value and declared headers of each row of a load, by partition and offset."""
        encoder = self._encoder()
        d = self.declaration
        return _by_position(encoder, loads.read(self.ledger, d.table, key, load, encoder.columns, d.topic))

    def _known(self, progress: Mapping[bytes, bytes], topic_id: str) -> dict[str, Progress]:
        found: dict[str, Progress] = {}
        for name, value in progress.items():
            target, table, key = json.loads(name)
            if (target, table) == (topic_id, self.declaration.table.name):
                found[key] = Progress.from_bytes(value)
        return found

    def _receipts(self) -> dict[str, Receipt]:
        """Return the receipts of the windows from `start` on."""
        start = self.declaration.start
        found = self.ledger.receipts(self.declaration.table)
        return {key: r for key, r in sorted(found.items()) if start is None or key >= start}

    def _plan(self, known: Mapping[str, Progress], receipts: Mapping[str, Receipt]) -> Plan:
        waiting = self._waiting(receipts)
        begun, new, again, held, published, rows = list[str](), list[str](), list[str](), list[str](), 0, 0
        for key, receipt in receipts.items():
            state = known.get(key)
            if state is not None and not state.is_complete:
                begun.append(key)
                rows += state.total - state.sent
            if receipt.is_expired or receipt.load_id == (state.load.load_id if state else None):
                published += state is not None and state.is_complete
                continue
            if state is None:
                if receipt.rows and (waiting is None or key < waiting):
                    new.append(key)
                    rows += receipt.rows
            elif self.declaration.corrections == "hold":
                held.append(key)
            else:
                again.append(key)
        return Plan(tuple(begun), tuple(new), tuple(again), tuple(held), published, rows, waiting)

    def _waiting(self, receipts: Mapping[str, Receipt]) -> str | None:
        """Return the first sealed window that is not in the table yet, unless it is parked; None if there is none."""
        newest = self.ledger.newest_cut(self.declaration.table.topic)
        if newest is None:
            return None
        found = unloaded.find(self.ledger, self.declaration.table, newest.edge).windows
        start = self.declaration.start
        open_windows = (key for key in found if key not in self.parked and (start is None or key >= start))
        return min(open_windows, default=None)


def identities(prefix: str, load_id: str, first: int, rows: pa.Table) -> list[bytes]:
    """Return the identity of each row of a load, the first of which has the ordinal `first`."""
    ordinals = pa.array(range(first, first + rows.num_rows), pa.int64()).cast(pa.string())
    partition, offset = (rows[name].cast(pa.string()) for name in loads.POSITION)
    texts = pc.binary_join_element_wise(prefix, ordinals, " row ", partition, " ", offset, f" {load_id}", "")
    found: list[bytes] = texts.cast(pa.binary()).to_pylist()
    return found


def _as_records(encoded: Encoded, names: list[bytes]) -> Iterator[Record]:
    if encoded.headers is None:
        for k, v, n in zip(encoded.keys, encoded.values, names, strict=True):
            yield k, v, [(HEADER, n)]
        return
    for k, v, h, n in zip(encoded.keys, encoded.values, encoded.headers, names, strict=True):
        yield k, v, [*h, (HEADER, n)]


def _by_position(encoder: Encoder, rows: pa.Table) -> dict[tuple[int, int], Content]:
    encoded = encoder.encode(rows)
    headers: list[Headers] = encoded.headers if encoded.headers is not None else [[]] * len(encoded)
    positions = zip(*(rows[name].to_pylist() for name in loads.POSITION), strict=True)
    return dict(zip(positions, zip(encoded.keys, encoded.values, headers, strict=True), strict=True))


def _load_of(receipt: Receipt) -> Load:
    return Load(receipt.load_id, receipt.table_version or 0, receipt.rows)


def _key(topic_id: str, declaration: PublishDeclaration, key: str) -> bytes:
    return json.dumps([topic_id, declaration.table.name, key], separators=(",", ":")).encode()


def fingerprint(declaration: PublishDeclaration, ledger: Ledger, receipts: Mapping[str, Receipt] | None = None) -> str:
    """Return a digest of the loads of all windows: it changes if there is something to publish."""
    if receipts is None:
        entries = ledger.commit_rows(declaration.table, columns=["load_id"])
        named = set(zip(entries["window"].to_pylist(), entries["load_id"].to_pylist(), strict=True))
    else:
        named = {(key, r.load_id) for key, r in receipts.items()}
    start = declaration.start or ""
    text = "\n".join(f"{key} {load_id}" for key, load_id in sorted(named) if key >= start)
    return sha256(text.encode()).hexdigest()[:32]
