"""Evidence that a topic holds the rows of a table exactly once.

A plain read_committed consumer reads every committed record up to the last stable offsets. Its records are compared
with the progress, with the table's rows of the same loads, and with the order in which rows were sent. The publisher's
own encoder makes the expected rows; of a sample of each window, `published_values` judges keys, values and headers
without it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
from deltalake.exceptions import DeltaError

from platform_assets.checks.published_records import identity_of
from platform_assets.checks.published_spans import Spans, Unnamed, dealt_to, match
from platform_assets.checks.published_values import Sampled, disagreements, rows_of
from platform_assets.errors import (
    PlatformError,
    PublishingInterruptedError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from platform_assets.kafka.publisher import committed_records
from platform_assets.lake import load_log
from platform_assets.ledger.entries import Receipt
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.publishing import PublishDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish.encoding import OWN_COLUMNS
from platform_assets.windows.publish.progress import EVERY, Content, Plan, Position, Progress
from platform_assets.windows.publish.publishing import Publisher

if TYPE_CHECKING:
    from platform_assets.checks.published_schemas import SchemaReader

CHECK: Final = "published_once"
_NAMED: Final = 10
_KEPT: Final = 100
_JUDGED: Final = 10_000
_JUDGED_OF_A_WINDOW: Final = 64


@dataclass
class Evidence:
    """Contents of the topic: numbers of records, windows, records whose encoding was judged, and deleted offsets, and
    everything that is wrong.

    `problems` names records that were sent twice, are missing, foreign, different or out of order: the first of them, and
    `wrong` is how many there are. `not_read` are reasons why something could not be compared.
    `notes` name what cannot be compared by its nature, such as erased rows.
    """

    records: int = 0
    windows: int = 0
    judged: int = 0
    deleted: int = 0
    problems: list[str] = field(default_factory=list)
    wrong: int = 0
    not_read: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)
    unit: str = "windows"

    def object_to(self, problem: str) -> None:
        """Count a problem, and keep its text if there are not too many."""
        self.wrong += 1
        if len(self.problems) < _KEPT:
            self.problems.append(problem)

    @property
    def passed(self) -> bool:
        """True if nothing is wrong. What could not be read does not count as wrong."""
        return not self.wrong

    @property
    def headline(self) -> str:
        """The outcome in one sentence."""
        if self.problems:
            more = f" And {self.wrong - _NAMED:,} more." if self.wrong > _NAMED else ""
            return "; ".join(self.problems[:_NAMED]) + "." + more
        text = f"{self.records:,} records of {self.windows:,} {self.unit} are on the topic once, in order, and as in the table"
        if self.not_read:
            # First: the rest of the sentence is only true of what was compared.
            first = (
                f"Not everything was compared: {'; '.join(reason.rstrip('.') for reason in self.not_read[:_NAMED])}."
            )
            text = f"{first} Nothing wrong was found in the rest of {self.records:,} records of {self.windows:,} {self.unit}"
        if self.deleted:
            text += f"; Kafka has already deleted {self.deleted:,} older offsets"
        return text + ("." if not self.notes else f"; not compared: {'; '.join(self.notes[:_NAMED])}.")


Sent = tuple[int, int]
"""Rank of a load, and ordinal of a record in it."""
_Numbers = npt.NDArray[np.int64]


@dataclass
class _Window:
    """Records of one window: which ordinals of which loads were read, and some 40 bytes for each record: its row's place,
    the rank of its load, its ordinal, and a hash of key and value. `sizes` are the numbers of records of the loads for
    which they are known."""

    sizes: Mapping[str, int]
    ranks: Mapping[str, int]
    dense: dict[str, bytearray] = field(default_factory=dict)
    sparse: set[tuple[str, int]] = field(default_factory=set)
    _columns: tuple[array[int], ...] = field(default_factory=lambda: tuple(array(code) for code in "iqqqqb"))

    sample: dict[Position, tuple[int, int, Sampled | None]] = field(default_factory=dict)
    unnamed: Unnamed = field(default_factory=Unnamed)
    first: dict[Position, tuple[int, int, str]] = field(default_factory=dict)
    """The first correction of each corrected place: rank, ordinal and kind."""
    _chosen: list[tuple[int, Position]] = field(default_factory=list)

    def mark(self, load_id: str, ordinal: int) -> bool:
        """Note that a record was read. Return False if it was read before."""
        if (size := self.sizes.get(load_id)) is None:
            # The memory depends on the number of records that were read, not on the ordinals that they claim.
            known = (load_id, ordinal) in self.sparse
            self.sparse.add((load_id, ordinal))
            return not known
        seen = self.dense.setdefault(load_id, bytearray(size))
        known, seen[ordinal] = bool(seen[ordinal]), 1
        return not known

    def unread(self, load_id: str, start: int, end: int) -> int:
        """Return how many records of a load with ordinals in `[start, end)` were not read."""
        if load_id in self.sizes:
            return (end - start) - sum(self.dense.get(load_id, b"")[start:end])
        return sum((load_id, ordinal) not in self.sparse for ordinal in range(start, end))

    def keep(self, at: Position, load_id: str, ordinal: int, kind: str, value: int) -> None:
        """Keep a record."""
        # Only the first load of a window sends rows.
        rank = -1 if kind == "row" else self.ranks.get(load_id, 0)
        for column, each in zip(self._columns, (*at, rank, ordinal, value, kind == "removed"), strict=True):
            column.append(each)
        if kind != "row":
            self.first[at] = min(self.first.get(at, (rank, ordinal, kind)), (rank, ordinal, kind))

    def choose(self, at: Position, load_id: str, ordinal: int, kind: str, record: Sampled, most: int) -> None:
        """Keep the newest record of each place that is in the sample: the `most` places with the lowest checksums."""
        rank = -1 if kind == "row" else self.ranks.get(load_id, 0)
        held = self.sample.get(at)
        if held is None:
            order = crc32(b"%d/%d" % at)
            if len(self._chosen) < most:
                heappush(self._chosen, (-order, at))
            elif order < -self._chosen[0][0]:
                del self.sample[heapreplace(self._chosen, (-order, at))[1]]
            else:
                return
        if held is None or held[:2] <= (rank, ordinal):
            self.sample[at] = (rank, ordinal, None if kind == "removed" else record)

    def newest(self) -> dict[Position, int]:
        """Return the hash of the newest record of each place, without removed rows."""
        places, values, _, _ = self._newest()
        return dict(zip(places, values.tolist(), strict=True))

    def last(self) -> dict[Position, Sent]:
        """Return load and ordinal of the newest record of each place, without removed rows."""
        places, _, ranks, ordinals = self._newest()
        return dict(zip(places, zip(ranks.tolist(), ordinals.tolist(), strict=True), strict=True))

    def _newest(self) -> tuple[Iterator[Position], _Numbers, _Numbers, _Numbers]:
        """Return place, hash, load and ordinal of the newest record of each place, without removed rows.

        Partitions are read one after the other, so the order of reading says nothing: a key may move between
        partitions, and records without a key are anywhere.
        """
        if not self._columns[0]:
            nothing = np.zeros(0, np.int64)
            return iter(()), nothing, nothing, nothing
        partitions, offsets, ranks, ordinals, values, removed = (np.frombuffer(c, c.typecode) for c in self._columns)
        order = np.lexsort((ordinals, ranks, offsets, partitions))
        p, o = partitions[order], offsets[order]
        is_last = np.ones(len(order), bool)
        is_last[:-1] = (p[1:] != p[:-1]) | (o[1:] != o[:-1])
        chosen = order[is_last & (removed[order] == 0)]
        places = zip(partitions[chosen].tolist(), offsets[chosen].tolist(), strict=True)
        return places, values[chosen], ranks[chosen], ordinals[chosen]


@dataclass
class _Order:
    """The order of the windows in the partition that is being read. `late` are windows whose first row follows rows of a
    later window: the load of that row, its place, and the later window."""

    late: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _last: str = ""
    _newest: str = ""

    def begin(self) -> None:
        """Begin with a new partition."""
        self._begun, self._last, self._newest = set(), "", ""

    def add(self, key: str, load_id: str, place: str) -> None:
        """Note the row of a window at a place."""
        if key == self._last:
            return
        self._last = key
        if key not in self._begun:
            self._begun.add(key)
            if key < self._newest:
                self.late.setdefault(key, (load_id, place, self._newest))
            self._newest = max(self._newest, key)


def gather(
    publisher: Publisher,
    progress: Callable[[str], None] = lambda text: None,
    since: Mapping[int, int] | None = None,
    before: Mapping[str, Progress] | None = None,
) -> Evidence:
    """Read the whole topic, and hold it against the table; with `since`, only the records from these offsets on, by
    partition. Then `before` is the progress of that time, and every record that was sent after it must be there. Raises
    the errors of Cluster and Ledger."""
    d, found = publisher.declaration, Evidence()
    found.plan = publisher.plan()
    state = publisher.cluster.topic(d.topic)
    known = publisher.known(state.topic_id)
    starts = {p: f.offset for p, f in publisher.cluster.log_starts(state).items()}
    try:
        # The progress may end for readers before records of the same transaction do.
        ends = publisher.target.settled_ends()
    except PublishingInterruptedError:
        ends = {p: f.offset for p, f in publisher.cluster.last_stable_offsets(state).items()}
    # A publisher may be at work: its records are known before the ends were read, or after.
    later = publisher.known(state.topic_id)
    sizes, spans = _sizes(later), Spans(later)
    found.deleted = sum(starts.values())
    is_cut = any(start > (since or {}).get(p, 0) for p, start in starts.items())
    if since is not None:
        starts = {p: max(start, since.get(p, start)) for p, start in starts.items()}
    compacted = "compact" in (publisher.cluster.topic_config(d.topic).get("cleanup.policy") or "")
    keys: set[int] | None = set() if compacted else None
    deleted: dict[bytes, tuple[str, Sent]] = {}
    windows: dict[str, _Window] = {}
    order = _Order()
    most = max(1, min(_JUDGED_OF_A_WINDOW, _JUDGED // max(len(known), 1)))
    for partition in state.partitions:
        progress(f"reading partition {partition} of topic {d.topic}")
        last: dict[str, int] = {}
        order.begin()
        for message in committed_records(
            publisher.cluster, d.topic, partition, starts.get(partition, 0), ends.get(partition, 0)
        ):
            found.records += 1
            if keys is not None:
                keys.add(hash(message.key()))
            identity = identity_of(message)
            place = f"partition {partition} offset {message.offset()}"
            record = (message.key(), message.value(), message.headers() or [])
            if deleted and record[1] is not None:
                deleted.pop(record[0], None)
            named = spans.window(partition, message.offset() or 0) if identity is None else None
            if named is not None:
                if (window := windows.get(named)) is None:
                    window = windows[named] = _Window(sizes[named], _ranks(publisher, named, known.get(named)))
                window.unnamed.add((partition, message.offset() or 0), _hash(*record[:2]), record, most)
                order.add(named, _first_load(later[named]), place)
                continue
            if identity is None or identity[0] != d.windowed.name:
                found.object_to(f"{place} has a record that {d.name} did not send")
                continue
            _, key, ordinal, kind, at, load_id = identity
            if key not in sizes:
                found.object_to(f"{place} has a record of window {key}, which the progress does not know")
                continue
            if (window := windows.get(key)) is None:
                window = windows[key] = _Window(sizes[key], _ranks(publisher, key, known.get(key)))
            if not 0 <= ordinal < window.sizes.get(load_id, 2**63):
                found.object_to(f"{place} has record {ordinal} of load {load_id} of window {key}, which was never sent")
                continue
            if kind == "row" and later[key].dealt:
                found.object_to(f"{place} has row {ordinal} of window {key} with a header, which {d.name} did not send")
                continue
            if kind == "row":
                # A window that was parked may be published after later ones.
                if ordinal <= (before_it := last.get(key, -1)):
                    found.object_to(f"{place}: row {ordinal} of window {key} follows row {before_it}")
                last[key] = ordinal
                order.add(key, load_id, place)
            if not window.mark(load_id, ordinal):
                what = "row" if kind == "row" else "change"
                found.object_to(f"{place}: {what} {ordinal} of load {load_id} of window {key} was sent twice")
            if kind == "removed" and record[0] is not None and record[1] is None:
                deleted[record[0]] = (key, (window.ranks.get(load_id, 0), ordinal))
            window.keep(at, load_id, ordinal, kind, _hash(message.key(), message.value()))
            window.choose(at, load_id, ordinal, kind, record, most)
    for key, (load_id, place, after) in sorted(order.late.items()):
        if publisher.may_be_late(key, load_id):
            found.notes.append(
                f"window {key}: its place in the order, because it was parked, had no readable rows, or was not to be published "
                "when later windows were sent"
            )
        else:
            found.object_to(
                f"{place}: the first row of window {key} follows rows of the later window {after}: publish to a new topic"
            )
    if since is not None and before is not None:
        _require(known, before, windows, found, is_cut=is_cut or compacted)
    _compare(publisher, known, windows, found, progress, keys, deleted, whole=since is None, is_cut=is_cut)
    found.windows = len(windows)
    return found


def _first_load(state: Progress) -> str:
    """Return the load of a window's rows, if it is known."""
    return state.load.load_id if state.base is None and not state.partial else ""


def _sizes(known: Mapping[str, Progress]) -> dict[str, dict[str, int]]:
    """Return the number of records of each window's newest load. For earlier loads, it is not known."""
    return {key: {p.load.load_id: p.total} for key, p in known.items()}


def _ranks(publisher: Publisher, key: str, state: Progress | None) -> dict[str, int]:
    """Return the table versions of the loads of a window, by id; empty if only one load was ever published."""
    if state is None or state.base is None:
        return {}
    past = publisher.ledger.past_loads(publisher.declaration.windowed, key)
    newest = {load.load_id: load.version for load in (state.base, state.load)}
    return {**{load_id: version for version, load_id in past}, **newest}


def _require(
    known: Mapping[str, Progress],
    before: Mapping[str, Progress],
    windows: Mapping[str, _Window],
    found: Evidence,
    *,
    is_cut: bool,
) -> None:
    """Require every record that was sent between two states of the progress."""
    for key, state in sorted(known.items()):
        old, sent = before.get(key), list[tuple[str, int, int]]()
        unnamed = len(windows[key].unnamed) if key in windows else 0
        if old is None or old.load.load_id != state.load.load_id:
            # Of rows that were erased before they were sent, only those that remain are sent, with the later load.
            if old is not None and not old.is_complete and not state.partial:
                sent.append((old.load.load_id, old.sent, old.total))
            sent.append((state.load.load_id, 0, state.sent))
        else:
            sent.append((state.load.load_id, old.sent, state.sent))
        for load_id, start, end in sent:
            window = windows.get(key)
            part = state if load_id == state.load.load_id else old
            if state.dealt and part is not None and part.base is None and not part.partial:
                unread = max(0, end - start - unnamed)
                unnamed -= end - start - unread
            else:
                unread = end - start if window is None else window.unread(load_id, start, end)
            if not unread:
                continue
            text = f"window {key}: {unread:,} of the records [{start}, {end}) of load {load_id} are missing"
            if is_cut:
                found.not_read.append(f"{text}: Kafka may have deleted them")
            else:
                found.object_to(text)


def _hash(key: bytes | None, value: bytes | None) -> int:
    return hash((key, value))


def _compare(
    publisher: Publisher,
    known: Mapping[str, Progress],
    windows: Mapping[str, _Window],
    found: Evidence,
    progress: Callable[[str], None],
    keys: set[int] | None,
    deleted: Mapping[bytes, tuple[str, Sent]],
    *,
    whole: bool,
    is_cut: bool,
) -> None:
    """Compare the state that a reader of the topic has in the end with the rows of the load that is published. Without
    `whole`, only records that were read are compared, and rows of windows that were read from their first row on. `keys`
    are hashes of all keys on the topic if it is compacted; None otherwise. `deleted` are keys whose newest record is a
    tombstone of a correction, with its window, the load and its ordinal."""
    d = publisher.declaration
    forms, bounds = publisher.forms if known else frozenset(), _Bounds()
    receipts = publisher.ledger.receipts(d.windowed) if known else {}
    # Compiled code, which definitions do not need.
    from platform_assets.checks.published_schemas import SchemaReader

    reader = SchemaReader(d, lambda: publisher.schemas)
    for key, state in sorted(known.items()):
        if not whole and key not in windows:
            continue
        progress(f"comparing window {key} with the topic")
        held = windows[key].newest() if key in windows else {}
        bounds.add(key, receipts.get(key), held)
        if not state.is_complete:
            found.not_read.append(f"window {key} is published in part")
            continue
        receipt = receipts.get(key)
        if receipt is not None and receipt.is_expired:
            found.notes.append(f"window {key} has expired, and its records stay on the topic")
            continue
        try:
            rows, choices = publisher.dealt_rows(key, state.load, [number for _, number in state.dealt])
        except PlatformError as e:
            found.not_read.append(str(e))
            continue
        if deleted:
            _find_deleted(d.topic, key, rows, windows.get(key), deleted, found)
        expected = {at: _hash(*content[:2]) for at, content in rows.items()}
        bounds.add(key, receipts.get(key), expected)
        if state.dealt:
            window = windows.get(key) or _Window({}, {})
            has_holes = is_cut or keys is not None
            if not _add_unnamed(d, key, state, window, expected, choices, forms, held, found, whole, has_holes):
                continue
        if not whole and (state.base is not None or _is_read_in_part(windows[key], state)):
            expected = {at: value for at, value in expected.items() if at in held}
        missing = expected.keys() - held.keys()
        if missing and keys is not None:
            unknown = {at for at in missing if hash(rows[at][0]) not in keys}
            found.notes.append(f"window {key}: compaction removed {len(missing) - len(unknown):,} records")
            if unknown:
                text = f"window {key}: the topic has no record of their key for {len(unknown):,} rows, such as {min(unknown)}"
                found.not_read.append(f"{text}: compaction also removes deleted keys")
        elif missing and is_cut:
            found.not_read.append(f"window {key}: Kafka may have deleted {len(missing):,} of its records")
        elif missing:
            found.object_to(f"window {key}: {len(missing):,} rows are missing, for example {min(missing)}")
        raw = TableRef.raw(d.windowed.topic)
        lost = publisher.ledger.accepted_losses(raw, key) if state.partial else {}
        if more := held.keys() - expected.keys():
            unannounced = "" if d.tombstones else " (rows that were deleted later, which `tombstones` would announce)"
            text = f"window {key}: {len(more):,} records have no row{unannounced}, for example {min(more)}"
            if state.partial and all(_is_in(lost, at) for at in more):
                found.notes.append(f"{text}: rows of the window were erased")
            elif d.tombstones and keys is None and not state.partial:
                found.object_to(text)
            else:
                found.not_read.append(text)
        different = [at for at in expected.keys() & held.keys() if expected[at] != held[at]]
        if state.is_mixed(forms):
            found.notes.append(f"window {key}: values of its records, which were published in another form")
        elif different and state.partial and state.after != EVERY:
            found.not_read.append(
                f"window {key}: {len(different):,} records, such as {min(different)}, differ from its rows, and the rows that were "
                "published cannot be read, because others were erased: publish to a new topic to replace them"
            )
        elif different:
            found.object_to(
                f"window {key}: {len(different):,} records differ from their rows, such as {min(different)}"
            )
        elif key in windows and receipt is not None and receipt.load_id == state.load.load_id:
            _judge(publisher, key, state, windows[key], found, reader)
    for overlap in bounds.overlaps():
        found.object_to(overlap)


@dataclass
class _Bounds:
    """The lowest and highest offset of each window's records, by generation and partition of the source topic."""

    by_window: dict[tuple[tuple[str, int], int], dict[str, tuple[int, int]]] = field(default_factory=dict)

    def add(self, key: str, receipt: Receipt | None, places: Collection[Position]) -> None:
        """Note the places of a window's records. Without a receipt, their generation is unknown."""
        generation = ("", 0) if receipt is None else (receipt.topic_id, receipt.generation)
        partitions, offsets = np.array(list(places), np.int64).reshape(-1, 2).T
        for partition in np.unique(partitions).tolist():
            own = offsets[partitions == partition]
            held = self.by_window.setdefault((generation, partition), {})
            low, high = held.get(key, (int(own[0]), int(own[0])))
            held[key] = min(low, int(own.min())), max(high, int(own.max()))

    def overlaps(self) -> Iterator[str]:
        """Yield a sentence for each two windows in a row that have records of the same offsets."""
        for (_, partition), held in sorted(self.by_window.items()):
            ordered = sorted((low, high, key) for key, (low, high) in held.items())
            for (_, high, one), (low, _, other) in pairwise(ordered):
                if low <= high:
                    yield (
                        f"windows {one} and {other} both have records of partition {partition} of the source from offset {low} to "
                        f"{high}, as after a restore of the lake: publish to a new topic"
                    )


def _find_deleted(
    topic: str,
    key: str,
    rows: Mapping[Position, Content],
    window: _Window | None,
    deleted: Mapping[bytes, tuple[str, Sent]],
    found: Evidence,
) -> None:
    """Object to rows whose key the same correction deleted after it had sent the row. Note other rows with a deleted key:
    if several rows have a key, a correction of one of them is no error."""
    keys = {at: name for at, (name, value, _) in rows.items() if name is not None and value is not None}
    gone = {at: deleted[name] for at, name in keys.items() if name in deleted}
    if not gone:
        return
    last = {} if window is None else window.last()
    wrong = []
    for at, (of, (rank, ordinal)) in sorted(gone.items()):
        sent = last.get(at, (-1, 0))
        # Loads that the ledger does not know have no rank.
        if of == key and sent[0] == rank > 0 and sent[1] < ordinal:
            wrong.append(at)
    if wrong:
        found.object_to(
            f"window {key}: a correction deleted the keys of {len(wrong):,} of its rows after it had sent them, such as {wrong[0]}; "
            f"publish to a new topic, or delete topic {topic}, create it again and publish"
        )
    if others := sorted(gone.keys() - set(wrong)):
        found.notes.append(
            f"window {key}: {len(others):,} rows with keys that a correction deleted, such as {others[0]}; readers lack them if a "
            "key identifies a row"
        )


def _is_in(ranges: Mapping[int, Sequence[OffsetRange]], at: Position) -> bool:
    return any(r.start <= at[1] < r.end for r in ranges.get(at[0], ()))


def _is_read_in_part(window: _Window, state: Progress) -> bool:
    """Return True if only later records of a window's rows were read."""
    if state.dealt:
        return len(window.unnamed) < state.total
    return window.unread(state.load.load_id, 0, state.total) > 0


def _add_unnamed(
    d: PublishDeclaration,
    key: str,
    state: Progress,
    window: _Window,
    expected: Mapping[Position, int],
    choices: Mapping[int, Any],
    forms: frozenset[str],
    held: dict[Position, int],
    found: Evidence,
    whole: bool,
    has_holes: bool,
) -> bool:
    """Add the records that no header identifies to `held`, by the position of their rows. Return False if they cannot
    be compared with rows."""
    sent, read = sum(span.records for span in state.spans), len(window.unnamed)
    if whole and read != sent and (read > sent or not has_holes):
        found.object_to(f"window {key}: the offsets of its rows have {read:,} records instead of {sent:,}")
    corrected = window.first
    is_corrected = state.base is not None or state.partial
    if state.is_mixed(forms) or (is_corrected and (has_holes or len(state.dealt) > 1)):
        if whole:
            reasons = found.notes if state.is_mixed(forms) and not has_holes else found.not_read
            reasons.append(f"window {key}: records of its first load, which no header identifies")
        return False
    positions = list(expected)
    partitions = dealt_to(state, choices)
    if corrected:
        kept = [n for n, at in enumerate(positions) if at not in corrected]
        positions, partitions = [positions[n] for n in kept], partitions[kept]
    matched = match(window.unnamed, state, positions, [expected[at] for at in positions], partitions)
    held.update(matched.held)
    window.sample.update({at: (0, 0, record) for at, record in matched.sample.items()})
    changed = sum(kind != "added" for _, _, kind in corrected.values())
    surplus = len(matched.surplus) - changed
    if not is_corrected and surplus:
        found.object_to(
            f"window {key}: {surplus:,} records are not its rows in their order, such as the one at partition "
            f"{matched.surplus[0][0]} offset {matched.surplus[0][1]}"
        )
    elif whole and surplus < 0 and not state.partial:
        found.object_to(f"window {key}: {-surplus:,} records of rows that changed later are missing")
    elif whole and surplus > 0:
        text = f"window {key}: {surplus:,} records have no row"
        if d.tombstones and not state.partial:
            found.object_to(text)
        elif state.partial:
            found.notes.append(f"{text}: rows of the window were erased")
        else:
            found.not_read.append(f"{text} (rows that were deleted later, which `tombstones` would announce)")
    return True


def _judge(
    publisher: Publisher, key: str, state: Progress, window: _Window, found: Evidence, reader: SchemaReader
) -> None:
    """Judge the encoding of a sample of a window's records, while its load is the newest one."""
    d, ledger = publisher.declaration, publisher.ledger
    folder = ledger.lake.table(d.windowed)
    records = {at: record for at, (_, _, record) in window.sample.items() if record is not None}
    version = load_log.version(folder)
    try:
        rows = rows_of(folder, version, key, list(records))
    except (OSError, DeltaError) as e:
        found.not_read.append(f"window {key}: its rows could not be read to judge their encoding ({e})")
        return
    if ledger.receipts(d.windowed, [key])[key].load_id != state.load.load_id:
        return
    try:
        problems = list(disagreements(d, rows, records, OWN_COLUMNS, reader))
    except (RegistryUnreachableError, RegistryRefusedError) as e:
        found.not_read.append(f"window {key}: its records could not be read by their schema ({e})")
        return
    found.judged += len(records)
    for problem in problems:
        found.object_to(f"window {key}: {problem}")
