"""Publishing a table's windows to a Kafka topic, exactly once.

A record is identified by (table, window, load, ordinal), where the ordinal is the row's place in the load, sorted by
partition and offset. Windows are published in order. If a window was loaded or decoded again, its new rows are compared
with the published rows, by position and content, and only what differs is published. A load that has begun is finished
before a later load of the same window is considered, so the result does not depend on when a publisher was killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.errors import (
    ConfigurationError,
    PlatformError,
    PublishedLoadUnknownError,
    PublishedRowsLostError,
    PublishingInterruptedError,
    PublishingProgressLostError,
    UnpublishableRowError,
)
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.publisher import Committed, Headers, Placed, Record, Session, Target, Topics, require_topic
from platform_assets.lake import decoded_table
from platform_assets.lake.failures import VersionGoneError
from platform_assets.ledger import unloaded
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.logs import logger
from platform_assets.model.publishing import POSITION, PublishDeclaration, Side
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish import loads
from platform_assets.windows.publish.encoding import Encoded, Encoder, fitting, partitions
from platform_assets.windows.publish.loads import Late, Load, Pins
from platform_assets.windows.publish.progress import (
    EVERY,
    Change,
    Content,
    Kind,
    Plan,
    Position,
    Progress,
    Published,
    key_of,
    parsed_key,
)
from platform_assets.windows.publish.transactions import (
    Count,
    Records,
    Transaction,
    ahead,
    changes_as_records,
    identities,
)

if TYPE_CHECKING:
    from platform_assets.decoding.registry.cache import Registered

_log = logger(__name__)

_ATTEMPTS: Final = 5
"""Sessions in a row without progress after which the error is raised."""
_SETTLED_WITHIN: Final = 30.0
_PAUSE: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The receipts of loaded windows, the first sealed window that has none and is not `parked`, or None, and the parked
    windows without a receipt."""

    receipts: Mapping[str, Receipt]
    waiting: str | None
    parked: frozenset[str]


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
    unfinished_runs: Callable[[], Collection[str]] = tuple
    """Dagster runs whose loads wait, because their checks may not have run yet. Called after the receipts are read."""
    most_bytes: int = 64 << 20
    """A transaction ends with the record that brings its keys and values to this size."""

    @property
    def target(self) -> Target:
        """The topic, as the publisher sees it."""
        seconds = self.declaration.transaction_timeout.total_seconds()
        return Target(self.cluster, self.declaration.topic, seconds, self.before_step)

    def plan(self) -> Plan:
        """Return what `run` would publish now. Raises the errors of Cluster and Ledger."""
        topic_id = self.cluster.topic(self.declaration.topic).topic_id
        return self._plan(self.known(topic_id), self._loaded())

    def run(self) -> Published:
        """Publish everything that is not published yet, and return what was sent.

        Raises PublishingInterruptedError (retryable; what was committed counts), PublishingRefusedError,
        PublishedRowsLostError, UnpublishableRowError, TopicMissingError and ConfigurationError.
        """
        target, count = self.target, Count()
        topics = target.prepare(self._pinned().topics)
        failures, before = 0, -1
        while True:
            # Before the session: what the lake records then is committed by the time that the session reads the progress.
            pins = self._pinned()
            try:
                return self._session(target.session(), topics, pins, count)
            except PublishingInterruptedError as e:
                failures = failures + 1 if count.transactions == before else 1
                before = count.transactions
                if e.fenced or not e.again or failures >= _ATTEMPTS:
                    raise
                _log.warning("%s Continuing with a new producer.", e)

    def _session(self, session: Session, topics: Topics, recorded: Pins, count: Count) -> Published:
        # Each of the topics may have been deleted since they were prepared.
        require_topic(self.cluster, self.declaration.topic, topics.target)
        self.target.require_same(Topics(topics.target, session.progress.topic_id), topics)
        known, loaded = self._known(session.progress, topics.target, recorded), self._loaded()
        plan, receipts, late = self._plan(known, loaded), loaded.receipts, self._late(recorded, topics, known, loaded)
        self._require_known(known)
        encoder = None
        if plan.behind:
            encoder = self._encoder().naming_schemas(self.ledger.lake, self.cluster, send=True, topic_id=topics.target)
            # Before anything is sent: until it is compared with a later load, VACUUM must keep what is published.
            pins = {key: [p.load] if p.base is None or p.is_complete else [p.base, p.load] for key, p in known.items()}
            for key in (*plan.new, *plan.again):
                pins.setdefault(key, []).append(_load_of(receipts[key]))
            self._pin(pins, topics, known, late)
        if encoder is not None:
            self._send_all(session, encoder, plan, known, receipts, topics.target, count)
        done = fingerprint(
            self.declaration, self.ledger, {k: r for k, r in receipts.items() if k not in plan.unchecked}
        )
        self._pin({key: [p.load] for key, p in known.items()}, topics, known, late, done)
        return Published(
            count.windows,
            count.records,
            count.corrections,
            count.unannounced,
            count.transactions,
            plan.held,
            plan.waiting,
            tuple(count.removed),
            plan.unchecked,
        )

    def _require_known(self, known: Mapping[str, Progress]) -> None:
        """Raise PublishedLoadUnknownError if the lake does not have a published window, or its load: windows that were
        sealed after a restore may have other boundaries, so their records may be on the topic already."""
        d = self.declaration
        held, expired = self.ledger.all_loads(d.windowed)
        windows = {key for key, _ in held}
        for key, state in sorted(known.items()):
            if (key, state.load.load_id) in held or (key in expired and state.is_complete):
                continue
            if key not in windows or loads.is_unknown(self.ledger, d.windowed, key, state.load, d.topic):
                raise PublishedLoadUnknownError(d.topic, key, state.load.load_id)

    def _send_all(
        self,
        session: Session,
        encoder: Encoder,
        plan: Plan,
        known: dict[str, Progress],
        receipts: Mapping[str, Receipt],
        topic_id: str,
        count: Count,
    ) -> None:
        """Send all records of a plan; `known` is kept up to date. The next transaction is made while one is sent."""
        number = len(self.cluster.topic(self.declaration.topic).partitions)
        made = self._transactions(encoder, plan, dict(known), receipts, number)
        with closing(ahead(made)) as transactions:
            for each in transactions:
                reached: dict[str, Progress] = {}

                def progress(each: Transaction = each, reached: dict[str, Progress] = reached) -> dict[bytes, bytes]:
                    require_topic(self.cluster, self.declaration.topic, topic_id)
                    reached.update(each.progress(known))
                    return {key_of(topic_id, self.declaration.windowed, k): p.to_bytes() for k, p in reached.items()}

                session.send_batches((batch for _, _, batch in each.batches), progress)
                known.update(reached)
                count.transactions += 1
                count.records += each.number
                count.corrections += each.corrections
                count.windows += sum(p.is_complete for p in reached.values())
                count.removed += [key for key, p in reached.items() if p.partial and p.is_complete]
                count.unannounced += each.lacking
                self.on_progress(max(reached), count.records)

    def _transactions(
        self,
        encoder: Encoder,
        plan: Plan,
        known: dict[str, Progress],
        receipts: Mapping[str, Receipt],
        among: int,
    ) -> Iterator[Transaction]:
        """Make the transactions of a plan. Small windows share one. `known` is changed.

        If the rows of a window were lost by accident, PublishedRowsLostError is raised after the other windows.
        """
        made = Transaction()
        lost: list[PublishedRowsLostError] = []
        most_rows = self.declaration.transaction_rows
        for key in sorted({*plan.begun, *plan.new, *plan.again}):
            while True:
                before = known.get(key)
                if before is None or before.is_complete:
                    load = _load_of(receipts[key])
                    if before is not None and (before.load.load_id == load.load_id or key not in plan.again):
                        break
                    base, mixed = (None, False) if before is None else (before.load, before.is_mixed(encoder.digests))
                    state = Progress(load, base, 0, 0, encoder.digest, mixed=mixed, removed_first=base is not None)
                else:
                    state = before
                    self._check_form(key, state, encoder)
                try:
                    state, records = self._opened(encoder, key, state, receipts[key], among)
                except PublishedRowsLostError as e:
                    lost.append(e)
                    self._pass_over(key)
                    break
                except UnpublishableRowError:
                    if made.states:
                        # Earlier windows do not depend on this one.
                        yield made
                    raise
                if state is before and state.total != records.total:
                    raise self._refusal(key, state, f"it has {records.total:,} records now")
                made.lacking += records.silent if state is not before else 0
                state = known[key] = replace(state, total=records.total)
                if state.is_complete:
                    made.states[key] = state
                    if len(made.states) >= most_rows:
                        yield made
                        made = Transaction()
                while not state.is_complete:
                    end = min(state.total, state.sent + most_rows - made.number)
                    try:
                        batch, number, size = records.make(state.sent, end, self.most_bytes - made.size)
                    except PlatformError:
                        if made.states:
                            yield made
                        raise
                    made.batches.append((key, state.sent, batch))
                    made.number += number
                    made.size += size
                    made.corrections += 0 if state.base is None else number
                    sent = state.sent + number
                    state = known[key] = made.states[key] = replace(state, sent=sent, at=records.at(sent - 1))
                    if made.number >= most_rows or made.size >= self.most_bytes:
                        yield made
                        made = Transaction()
        if made.states:
            yield made
        if lost:
            raise lost[0]

    def _opened(
        self, encoder: Encoder, key: str, state: Progress, receipt: Receipt, among: int
    ) -> tuple[Progress, Records]:
        """Return the records of a window, and the state to which they belong: `state`, or if its rows were erased or
        expired on purpose, the state in which what remains is published. Raises PublishedRowsLostError."""
        try:
            if receipt.is_expired and not state.partial:
                raise PublishedRowsLostError(
                    self.declaration.topic, receipt.table.name, key, state.load.load_id, "it has expired"
                )
            return state, self._records(encoder, key, state, receipt, among)
        except PublishedRowsLostError:
            remaining = self._remaining(key, state, receipt, encoder)
            if remaining is None:
                raise
            _log.warning(
                "%s: rows of window %s were erased or expired before they were published, or compared with a later load",
                self.declaration.name, key,
            )  # fmt: skip
            return self._opened(encoder, key, remaining, receipt, among)

    def _remaining(self, key: str, state: Progress, receipt: Receipt, encoder: Encoder) -> Progress | None:
        if receipt.is_expired:
            return replace(state, partial=True, after=None, total=state.sent)
        if not self.ledger.accepted_losses(TableRef.raw(self.declaration.windowed.topic), key):
            return None
        sends_rows = state.base is None or state.partial
        load = _load_of(receipt)
        is_begun = load.load_id == state.load.load_id
        if is_begun and sends_rows:
            return None  # Rows of the newest load cannot have been erased by a later one.
        if sends_rows and state.sent and state.at is None:
            return None  # An earlier version did not record which rows it had sent.
        base, after = (state.load, state.at or state.after) if sends_rows else (state.base, None)
        mixed, sent = state.is_mixed(encoder.digests), state.sent if is_begun else 0
        new = Progress(load, base, sent, sent, encoder.digest, partial=True, after=after, mixed=mixed)
        is_sent = state.sent or state.after is not None if sends_rows else True
        has_differences = not sends_rows and state.sent
        if has_differences or (
            is_sent
            and base is not None
            and not loads.only_lacks(self.ledger, self.declaration.windowed, key, base, load)
        ):
            # The last of them, because differences may have been sent of this load: earlier releases refuse to go on then.
            return replace(new, total=sent + load.rows, after=EVERY, removed_first=sent > 0)
        return new

    def _check_form(self, key: str, state: Progress, encoder: Encoder) -> None:
        """Refuse to finish a load in another form than it was begun in: its ordinals would name other records."""
        if not state.digest or state.digest in encoder.digests:
            return
        earlier = self._earlier(state)
        if earlier is None:
            cause = (
                "the declaration, the types of the published columns or the version of the platform has changed since"
            )
            raise self._refusal(key, state, cause)
        parts = [f"`{side}: {{…, columns: [{', '.join(earlier.columns_of(side))}]}}`" for side in self.declaration.sides
                 if earlier.columns_of(side) != encoder.columns_of(side)]  # fmt: skip
        cause = "the table has other columns now"
        remedy = (
            f"To publish the columns of that time, declare {' and '.join(parts)}, publish, and change them after that"
        )
        raise self._refusal(key, state, cause, remedy)

    def _earlier(self, state: Progress) -> Encoder | None:
        """Return the encoder of a load that was begun when the table had other columns; None if something else differs, or the
        log no longer has these columns."""
        folder = self.ledger.lake.table(self.declaration.windowed)
        try:
            earlier = Encoder(self.declaration, decoded_table.held(folder, state.load.version))
        except (VersionGoneError, ConfigurationError):
            return None
        return earlier if state.digest in earlier.digests else None

    def _refusal(self, key: str, state: Progress, cause: str, remedy: str = "") -> ConfigurationError:
        remedy = remedy or "Restore the declaration and the table's columns, publish, and change them after that"
        return ConfigurationError(
            f"{self.declaration.name}: load {state.load.load_id} of window {key} is published in part, {state.sent:,} of "
            f"{state.total:,} records, and cannot be finished: {cause}. {remedy}; or publish to a new topic."
        )

    def _records(self, encoder: Encoder, key: str, state: Progress, receipt: Receipt, among: int) -> Records:
        """Return the records that publish a window. Raises PublishedRowsLostError."""
        d, columns = self.declaration, encoder.wanted
        if state.partial and state.after is None:
            return Records(lambda start, end, room: ([], 0, 0), state.sent)
        try:
            new = loads.read(self.ledger, d.windowed, key, state.load, columns, d.topic)
        except PublishedRowsLostError:
            # They may have been loaded again. The records keep the name of the load in which they were begun.
            newest = _load_of(receipt)
            if not loads.are_same(self.ledger, d.windowed, key, state.load, newest):
                raise
            new = loads.read(self.ledger, d.windowed, key, newest, columns, d.topic)
        # Before the first record: a load that is sent in part could not be finished in another form.
        encoder.check(new)
        prefix, load_id = f"{d.windowed.name} {key} ", state.load.load_id
        if state.base is None or state.partial:
            is_every = state.after == EVERY
            kind: Kind = "changed" if is_every else "added" if state.partial else "row"
            before = state.total - new.num_rows if is_every else 0
            if state.after is not None:
                partition, offset = (new[name] for name in POSITION)
                same = pc.and_(pc.equal(partition, state.after[0]), pc.greater(offset, state.after[1]))
                new = new.filter(pc.or_(pc.greater(partition, state.after[0]), same))

            # A window is finished as it was begun.
            is_placed = not state.partial and (bool(state.dealt) if state.sent else d.identity == "progress")

            def of_rows(start: int, end: int, room: int) -> tuple[Iterable[Record] | Placed, int, int]:
                part = new.slice(start - before, end - start)
                while part.num_rows > 1 and part.nbytes > room:
                    part = part.slice(0, part.num_rows // 2)
                encoded = encoder.encode(part)
                fit = fitting(encoded.sizes, room)
                if is_placed:
                    return encoded.placed(part, among, fit), fit, int(encoded.sizes[:fit].sum())
                names = identities(prefix, load_id, start, part, kind)
                return islice(encoded.records(names), fit), fit, int(encoded.sizes[:fit].sum())

            def at(ordinal: int) -> Position:
                partition, offset = (new[name][ordinal - before].as_py() for name in POSITION)
                return partition, offset

            return Records(of_rows, before + new.num_rows, at=at)
        try:
            old = loads.read(self.ledger, d.windowed, key, state.base, columns, d.topic)
        except PublishedRowsLostError:
            # A window whose files were lost may have been loaded again with the same rows.
            if state.sent or state.mixed or not loads.are_same(self.ledger, d.windowed, key, state.base, state.load):
                raise
            return Records(lambda start, end, room: ([], 0, 0), 0)
        changes, silent = self._changes(encoder, old, new, removed_first=state.removed_first)

        def of_changes(start: int, end: int, room: int) -> tuple[Iterable[Record], int, int]:
            sizes = np.array([len(k or b"") + len(v or b"") for _, _, k, v, _ in changes[start:end]], np.int64)
            fit = fitting(sizes, room)
            made = changes_as_records(changes[start : start + fit], start, prefix, load_id)
            return made, fit, int(sizes[:fit].sum())

        return Records(of_changes, len(changes), silent)

    def _changes(
        self, encoder: Encoder, old: pa.Table, new: pa.Table, *, removed_first: bool
    ) -> tuple[list[Change], int]:
        """Return the differences between two loads of a window, and the number of deleted rows that have no key or that
        the declaration does not announce.

        They are in order of position. With `removed_first`, those that delete a key precede all others, because the key
        may be that of another row now.
        """
        before = _by_position(replace(encoder, past=True).encode(old), old)
        after = _by_position(encoder.encode(new), new)
        found: list[Change] = []
        removed: list[Change] = [] if removed_first else found
        silent = 0
        for position in sorted({*before, *after}):
            was, now = before.get(position), after.get(position)
            if was == now:
                continue
            if was is not None and (now is None or was[0] != now[0]):
                if self.declaration.tombstones and was[0] is not None:
                    removed.append(("removed", position, was[0], None, []))
                else:
                    silent += 1
            if now is not None:
                found.append(("added" if was is None else "changed", position, *now))
        return [*removed, *found] if removed_first else found, silent

    @property
    def schemas(self) -> dict[Side, Registered]:
        """The schemas of keys and values whose format has one."""
        return self._encoder().schemas

    def _encoder(self) -> Encoder:
        return Encoder(self.declaration, decoded_table.held(self.ledger.lake.table(self.declaration.windowed)))

    def _pinned(self) -> Pins:
        return loads.pinned(self.ledger.lake, self.declaration.topic)

    def _pin(
        self,
        pins: Mapping[str, Sequence[Load]],
        topics: Topics,
        known: Mapping[str, Progress],
        late: Late,
        done: str = "",
    ) -> None:
        sent = {key: (p.load.load_id, p.sent) for key, p in known.items()}
        pinned = Pins(self.declaration.windowed, pins, done, topics, sent, late)
        loads.pin(self.ledger.lake, self.declaration.topic, pinned)

    def _late(self, recorded: Pins, topics: Topics, known: Mapping[str, Progress], loaded: _Loaded) -> Late:
        """Return the windows that may be sent after later ones, from now on."""
        d, before = self.declaration, Late(max(known, default=""))
        if recorded.topics is not None and (recorded.topics.target, recorded.table) == (topics.target, d.windowed):
            # Windows that the lake does not know to be sent were sent by a killed run, or before the lake was restored.
            unrecorded = max(known.keys() - recorded.sent.keys(), default="")
            late = recorded.late or before
            before = replace(late, before=max(late.before, unrecorded))
        return Late(max(before.before, d.start or ""), before.windows | loaded.parked)

    def _pass_over(self, key: str) -> None:
        """Record that later windows are sent before a window whose rows cannot be read."""
        pins = self._pinned()
        late = pins.late or Late()
        if not late.has(key):
            late = replace(late, windows=late.windows | {key})
            loads.pin(self.ledger.lake, self.declaration.topic, replace(pins, late=late))

    def may_be_late(self, key: str, load_id: str) -> bool:
        """Return True if there is a reason why this load of a window was sent after later windows: it was parked, its rows
        were lost, an earlier load had no rows, `start` was declared, or an earlier release sent it."""
        late = self._pinned().late
        if late is None or late.has(key):
            return True
        first = self.ledger.first_load(self.declaration.windowed, key)
        return first is not None and first != load_id

    def known(self, topic_id: str) -> dict[str, Progress]:
        """Return how far each window is published to the topic with this id, without fencing a publisher. Raises
        PublishingProgressLostError, and PublishingInterruptedError if a transaction does not end for readers."""
        # First: a publisher records in the lake only progress that is committed.
        pins, deadline = self._pinned(), time.monotonic() + _SETTLED_WITHIN
        while True:
            committed = self.target.committed()
            try:
                return self._known(committed, topic_id, pins)
            except PublishingProgressLostError as e:
                if not committed.is_open:
                    raise
                if time.monotonic() > deadline:
                    reason = "the last transaction has not ended for readers"
                    raise PublishingInterruptedError(
                        self.declaration.topic, "reading what was published", reason
                    ) from e
            time.sleep(_PAUSE)

    @property
    def forms(self) -> frozenset[str]:
        """The digests of the form in which records are published now."""
        return self._encoder().digests

    def rows(self, key: str, load: Load) -> dict[Position, Content]:
        """Return key, value and declared headers of each row of a load, by partition and offset."""
        return self.dealt_rows(key, load, ())[0]

    def dealt_rows(
        self, key: str, load: Load, numbers: Iterable[int]
    ) -> tuple[dict[Position, Content], dict[int, npt.NDArray[np.int32]]]:
        """Return the rows of a load, and the partition of each out of each of these numbers of partitions."""
        d = self.declaration
        encoder = self._encoder().naming_schemas(self.ledger.lake, self.cluster, send=False)
        rows = loads.read(self.ledger, d.windowed, key, load, encoder.wanted, d.topic)
        encoded = replace(encoder, past=True).encode(rows)
        choices = {number: partitions(encoded.key_column, rows, number) for number in {*numbers}}
        return _by_position(encoded, rows), choices

    def _known(self, committed: Committed, topic_id: str, pins: Pins) -> dict[str, Progress]:
        """Parse the progress of the topic with this id, and compare it with `pins`, which were read before it."""
        d, found, foreign = self.declaration, dict[str, Progress](), list[bytes]()
        target = self.target
        target.require_same(Topics(topic_id, committed.topic_id), pins.topics)
        for name, value in committed.records.items():
            parts = parsed_key(name)
            if parts is None:
                foreign.append(name)
            elif parts[:2] == (topic_id, d.windowed.name):
                try:
                    found[parts[2]] = Progress.from_bytes(value)
                except (ValueError, TypeError, KeyError, AttributeError) as e:
                    cause = f"its record of window {parts[2]} is not the platform's ({e})"
                    raise PublishingProgressLostError(d.topic, target.progress_topic, cause) from e
        if foreign:
            _log.warning(
                "topic %s has %d records of other programs, which do not count, such as %.100r",
                target.progress_topic, len(foreign), foreign[0],
            )  # fmt: skip
        if any((parsed_key(name) or ())[:2] == (topic_id, d.windowed.name) for _, name in committed.elsewhere):
            cause = "it has such records in several partitions, so their order is unknown"
            raise PublishingProgressLostError(d.topic, target.progress_topic, cause)
        if pins.topics is not None and pins.topics.target == topic_id and pins.table == d.windowed:
            for key, (load_id, sent) in sorted(pins.sent.items()):
                state = found.get(key)
                if state is None or (state.load.load_id == load_id and state.sent < sent):
                    cause = f"its records of window {key} were deleted"
                    raise PublishingProgressLostError(d.topic, target.progress_topic, cause)
                if state.load.load_id != load_id and pins.is_earlier(key, state.load):
                    cause = f"its record of window {key} names load {state.load.load_id}, an earlier one than {load_id}"
                    raise PublishingProgressLostError(d.topic, target.progress_topic, cause)
        return found

    def _loaded(self) -> _Loaded:
        """Return what the ledger says of the windows from `start` on that are sealed."""
        d = self.declaration
        # First: a window that is loaded between the two reads has a receipt. Windows that are sealed after this count later.
        newest = self.ledger.newest_cut(d.windowed.topic)
        if newest is None:
            return _Loaded({}, None, frozenset())
        lacking = unloaded.find(self.ledger, d.windowed, newest.edge).windows
        found, start = self.ledger.receipts(d.windowed), d.start or ""
        receipts = {key: r for key, r in sorted(found.items()) if key >= start and r.window.end <= newest.edge}
        left = {key for key in lacking if key not in found and key >= start}
        return _Loaded(receipts, min(left - self.parked, default=None), frozenset(left & self.parked))

    def _plan(self, known: Mapping[str, Progress], loaded: _Loaded) -> Plan:
        receipts, waiting, unfinished = loaded.receipts, loaded.waiting, frozenset(self.unfinished_runs())
        begun, new, again, held, blocked = list[str](), list[str](), list[str](), list[str](), list[str]()
        unchecked, is_new_unchecked = list[str](), False
        published = rows = 0
        for key, receipt in receipts.items():
            state = known.get(key)
            if state is not None and not state.is_complete:
                begun.append(key)
                rows += state.total - state.sent
            if receipt.is_expired or receipt.load_id == (state.load.load_id if state else None):
                published += state is not None and state.is_complete
                continue
            if receipt.run_id in unfinished:
                unchecked.append(key)
                is_new_unchecked |= state is None and receipt.rows > 0
            elif state is None:
                if receipt.rows and (is_new_unchecked or (waiting is not None and key > waiting)):
                    blocked.append(key)
                elif receipt.rows:
                    new.append(key)
                    rows += receipt.rows
            elif self.declaration.corrections == "hold":
                held.append(key)
            else:
                again.append(key)
        return Plan(
            tuple(begun),
            tuple(new),
            tuple(again),
            tuple(held),
            published,
            rows,
            waiting,
            tuple(blocked),
            tuple(unchecked),
        )


def _by_position(encoded: Encoded, rows: pa.Table) -> dict[Position, Content]:
    headers: list[Headers] = encoded.headers if encoded.headers is not None else [[]] * len(encoded)
    positions = zip(*(rows[name].to_pylist() for name in POSITION), strict=True)
    return dict(zip(positions, zip(encoded.keys, encoded.values, headers, strict=True), strict=True))


def _load_of(receipt: Receipt) -> Load:
    return Load(receipt.load_id, receipt.table_version or 0, receipt.rows)


def fingerprint(
    declaration: PublishDeclaration,
    ledger: Ledger,
    receipts: Mapping[str, Receipt] | None = None,
    unfinished_runs: Callable[[], Collection[str]] = tuple,
) -> str:
    """Return a digest of the loads of all windows, without those of unfinished runs: it changes if there is something to
    publish. `unfinished_runs` is called after the loads are read: a run that begins in between has none of them."""
    if receipts is None:
        entries = ledger.commit_rows(declaration.windowed, columns=["load_id", "run_id"])
        entries = entries.filter(pc.invert(pc.is_in(entries["run_id"], pa.array([*unfinished_runs()], pa.string()))))
        named = set(zip(entries["window"].to_pylist(), entries["load_id"].to_pylist(), strict=True))
    else:
        named = {(key, r.load_id) for key, r in receipts.items()}
    start = declaration.start or ""
    text = "\n".join(f"{key} {load_id}" for key, load_id in sorted(named) if key >= start)
    return sha256(text.encode()).hexdigest()[:32]
