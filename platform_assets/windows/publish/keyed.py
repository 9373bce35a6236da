"""Publishing a table without windows, such as a state or a derived table: an upsert for each key whose row was added or
changed, and a tombstone for each deleted key, exactly once.

What to send is the difference between the table's rows and what the topic holds: the newest committed record of each
key. It is read after `init_transactions`, when no earlier publisher can commit any more, and everything that is sent is
part of the next difference. So no version of the table has to be kept, and a publisher may be killed at any point.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from platform_assets.errors import ConfigurationError, PublishingInterruptedError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.publisher import Headers, Record, Session, Target, committed_records, require_topic
from platform_assets.lake import datasets, delta_log, derived_table, new_tables, state_table
from platform_assets.lake.failures import TableDamagedError
from platform_assets.lake.location import Folder
from platform_assets.ledger.store import Ledger
from platform_assets.model.logs import logger
from platform_assets.model.publishing import HEADER, PublishDeclaration, Side
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.windows.publish.encoding import Encoder, hidden_in
from platform_assets.windows.publish.progress import Kind, Plan, Published, parsed_key

if TYPE_CHECKING:
    from platform_assets.decoding.registry.cache import Registered

_log = logger(__name__)

_ATTEMPTS: Final = 5
_SLICE: Final = 50_000
_SLICE_BYTES: Final = 64 << 20
_COMMITS: Final = 100
_VERSION: Final = 1

Rank = tuple[int, int]
"""Number of a publication, and ordinal of a record in it: later records of a key have a higher rank."""
Change = tuple[Kind, bytes, bytes | None, Headers]
Rows = dict[bytes, tuple[bytes, Headers]]
"""Value and declared headers of each row, by key."""


@dataclass(frozen=True, slots=True)
class KeyedProgress:
    """The newest publication: its number, the version of the table, and how many records of it were sent. `form` is the
    encoder's digest."""

    number: int
    version: str
    sent: int
    is_complete: bool
    form: str = ""

    def to_bytes(self) -> bytes:
        """Return the value of the progress record."""
        fields = {"number": self.number, "table": self.version, "sent": self.sent, "complete": self.is_complete}
        return json.dumps({"version": _VERSION, **fields, "form": self.form}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> KeyedProgress:
        """Parse the value of a progress record. Raises ValueError, TypeError, KeyError or RecursionError if it is not
        one, and ConfigurationError if a later release has written it."""
        fields = json.loads(value)
        if fields["version"] > _VERSION:
            raise ConfigurationError(
                f"version {fields['version']} of the progress is newer than the supported version {_VERSION}. Upgrade "
                "platform-assets."
            )
        found = cls(
            int(fields["number"]),
            fields["table"],
            int(fields["sent"]),
            fields["complete"] is True,
            fields.get("form", ""),
        )
        if not isinstance(found.version, str):
            raise TypeError("the table's version is not a text")
        return found


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a record: the table, its version, and the rank of the record."""

    table: str
    version: str
    rank: Rank
    kind: str

    def to_bytes(self) -> bytes:
        """Return the value of the header."""
        number, ordinal = self.rank
        return f"{self.table} {self.version} {ordinal} {self.kind} -1 -1 {number}".encode()

    @classmethod
    def of(cls, headers: Sequence[tuple[str, bytes | None]] | None) -> Identity | None:
        """Return the identity in a record's headers; None if there is none."""
        try:
            text = (dict(headers or ())[HEADER] or b"").decode()
            table, version, ordinal, kind, _, _, number = text.split(" ")
            return cls(table, version, (int(number), int(ordinal)), kind)
        except (KeyError, ValueError):
            return None


def digest_of(value: bytes, headers: Sequence[tuple[str, bytes | None]] | None) -> bytes:
    """Return a digest of a record's value and declared headers."""
    declared = [(name, text) for name, text in headers or () if name != HEADER]
    return blake2b(value + repr(declared).encode() if declared else value, digest_size=16).digest()


@dataclass
class Held:
    """Contents of a topic: for each key, the rank and digest of its newest record. The digest is None after a tombstone,
    and empty if a record of another program follows."""

    newest: dict[bytes, tuple[Rank, bytes | None]]

    @property
    def number(self) -> int:
        """The number of the newest publication that the topic has a record of; 0 if there is none."""
        return max((rank[0] for rank, _ in self.newest.values()), default=0)

    def add(self, part: Mapping[bytes, tuple[Rank, bytes | None]]) -> None:
        """Add the newest records of another partition. A key may have moved there since."""
        for key, entry in part.items():
            if key not in self.newest or self.newest[key][0] <= entry[0]:
                self.newest[key] = entry

    def live(self) -> dict[bytes, bytes]:
        """Return the digests of the keys whose newest record is not a tombstone."""
        return {key: digest for key, (_, digest) in self.newest.items() if digest is not None}


class _UncheckedError(Exception):
    """This version of the table waits for its checks."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.version = version


@dataclass(frozen=True)
class KeyedPublisher:
    """Publishes the rows of `declaration`'s table. The other fields are as in `Publisher`."""

    declaration: PublishDeclaration
    ledger: Ledger
    cluster: Cluster
    before_step: Callable[[str], None] = lambda step: None
    on_progress: Callable[[str, int], None] = lambda version, records: None
    most_bytes: int = 64 << 20
    """As in `Publisher`."""
    is_checked: Callable[[str], bool] = lambda run: True
    """Returns False if a version waits for its checks. It is called after the version's rows are read, with `maker_of`."""

    @property
    def target(self) -> Target:
        """The topic, as the publisher sees it."""
        seconds = self.declaration.transaction_timeout.total_seconds()
        return Target(self.cluster, self.declaration.topic, seconds, self.before_step)

    def plan(self) -> Plan:
        """Return a plan with the table's version, if it is not published. Raises the errors of Cluster."""
        known = self.known(self.cluster.topic(self.declaration.topic).topic_id)
        version, rows = self.version(), 0
        if version is None or self._is_published(known, version):
            return Plan(published=1)
        folder = self.ledger.lake.table(self.declaration.table)
        with folder.reading():
            rows = datasets.of(folder.delta()).count_rows()
        begun = known is not None and not known.is_complete
        return Plan((version,) if begun else (), () if begun else (version,), rows=rows)

    def run(self) -> Published:
        """Publish the newest version of the table, and return what was sent. Raises the errors of `Publisher.run`, and
        ConfigurationError if two rows have the same key."""
        target = self.target
        # A lost progress does no harm: what the topic holds decides what is sent.
        topics = target.prepare()
        sent = failures = transactions = 0
        while True:
            try:
                session = target.session()
                for records, version in self._send_all(session, topics.target):
                    sent, transactions, failures = sent + records, transactions + 1, 0
                    self.on_progress(version, sent)
                return Published(windows=min(transactions, 1), records=sent, transactions=transactions)
            except _UncheckedError as e:
                return Published(min(transactions, 1), sent, transactions=transactions, unchecked=(e.version,))
            except PublishingInterruptedError as e:
                failures += 1
                if e.fenced or not e.again or failures >= _ATTEMPTS:
                    raise
                _log.warning("%s Continuing with a new producer.", e)

    def _send_all(self, session: Session, topic_id: str) -> Iterator[tuple[int, str]]:
        """Send what differs. Yield the number of records of each transaction, and the table's version."""
        require_topic(self.cluster, self.declaration.topic, topic_id)
        known = self._parsed(session.progress.records, topic_id)
        if known is None and self._other_topics(session.progress.records, topic_id):
            _log.warning("%s: the topic was created again: all rows that it lacks are sent", self.declaration.name)
        version = self.version()
        if version is None or self._is_published(known, version):
            return
        version, rows = self.rows(send=True)
        if not self.is_checked(self.maker_of(self.declaration, self.ledger, version)):
            raise _UncheckedError(version)
        form = self._encoder().digest
        held = self.held()
        changes = list(difference(rows, held.live()))
        if known is not None and known.form not in ("", form):
            _log.warning(
                "%s: the declaration or the columns have changed: %d of %d rows differ and are sent", self.declaration.name,
                sum(value is not None for _, _, value, _ in changes), len(rows),
            )  # fmt: skip
        number, first = max(held.number, 0 if known is None else known.number) + 1, 0
        if known is not None and not known.is_complete and known.version == version:
            number, first = known.number, known.sent
        last = first + len(changes)
        for part in parts(changes, self.declaration.transaction_rows, self.most_bytes):
            sent = first + len(part)
            reached = {self._key(topic_id): KeyedProgress(number, version, sent, sent == last, form).to_bytes()}

            def progress(reached: Mapping[bytes, bytes] = reached) -> Mapping[bytes, bytes]:
                # As late as possible: the records may be on another topic than that with this progress.
                require_topic(self.cluster, self.declaration.topic, topic_id)
                return reached

            session.send_batches([self._records(part, version, (number, first))], progress)
            first = sent
            yield len(part), version

    def _is_published(self, known: KeyedProgress | None, version: str) -> bool:
        """Return True if this version of the table is published completely, in the form that is declared now."""
        if known is None or not known.is_complete or known.version != version:
            return False
        return known.form == self._encoder().digest

    def _encoder(self, delta: DeltaTable | None = None) -> Encoder:
        data = datasets.of(self.ledger.lake.table(self.declaration.table).delta() if delta is None else delta)
        return Encoder(self.declaration, pa.schema([field.remove_metadata() for field in data.schema]))

    def changed_at(self) -> datetime:
        """Return the time of the first commit of the table that is not published, or of the first of its last 100 ones if
        that is later. The table must exist."""
        known = self.known(self.cluster.topic(self.declaration.topic).topic_id)
        delta = self.ledger.lake.table(self.declaration.table).delta()
        table, _, rest = ("", "", "") if known is None else known.version.partition("/")
        published = rest.partition("/")[0]
        is_same = table == str(delta.metadata().id)[:8] and published.isdigit()
        behind = delta.version() - (int(published) if is_same else -1)
        commits = delta.history(max(1, min(behind, _COMMITS)))
        return datetime.fromtimestamp(commits[-1]["timestamp"] / 1000, UTC)

    def _records(self, changes: Sequence[Change], version: str, first: Rank) -> Iterator[Record]:
        number, ordinal = first
        for n, (kind, key, value, headers) in enumerate(changes, ordinal):
            identity = Identity(self.declaration.table.name, version, (number, n), kind)
            yield key, value, [*headers, (HEADER, identity.to_bytes())]

    @property
    def hidden(self) -> frozenset[str]:
        """The columns that a JSON object has only if the declaration names them."""
        table = self.declaration.table
        return frozenset() if isinstance(table, TableRef) else hidden_in(table)

    def version(self) -> str | None:
        """Return a name of the table's newest version; None if the table was not made yet."""
        return self.version_of(self.declaration, self.ledger)

    @staticmethod
    def version_of(declaration: PublishDeclaration, ledger: Ledger) -> str | None:
        """Return a name of the newest version of the table of `declaration`; None if no run has made it yet."""
        folder = ledger.lake.table(declaration.table)
        if not folder.has_delta_log():
            return None
        delta = folder.delta()
        # While a table is made, it is empty. Its rows are not deleted ones.
        return _name(folder, delta) if new_tables.is_made(folder, delta.version()) else None

    @staticmethod
    def maker_of(declaration: PublishDeclaration, ledger: Ledger, version: str) -> str:
        """Return the id of the run that made the rows of a version, or of a derived table the first characters of that id;
        empty if no run made them."""
        number = int(version.split("/")[1])
        folder = ledger.lake.table(declaration.table)
        if isinstance(declaration.table, StateRef):
            fold = state_table.newest_fold(folder, number)
            return "" if fold is None else fold.run_id
        made, is_changed = derived_table.newest(folder, number)
        return "" if made is None or is_changed else made.derivation.run_id.partition("-")[0]

    @property
    def schemas(self) -> dict[Side, Registered]:
        """The schemas of keys and values whose format has one."""
        return self._encoder().schemas

    def rows(
        self, see: Callable[[pa.RecordBatch, Sequence[bytes | None]], None] | None = None, *, send: bool = False
    ) -> tuple[str, Rows]:
        """Return the newest version, and value and declared headers of each row, by key. `see` is called with rows, in all
        of their columns, and their keys. `send` is as for `SchemaIds.heads`.

        Raises ConfigurationError if two rows have the same key, or one has none, PublishingInterruptedError if files of
        this version are deleted meanwhile, UnpublishableRowError, and the errors of `SchemaIds.heads`."""
        d = self.declaration
        folder = self.ledger.lake.table(d.table)
        delta = folder.delta()
        encoder = self._encoder(delta).naming_schemas(self.ledger.lake, self.cluster, send=send)
        if see is not None:
            encoder = replace(encoder, past=True)
        found, number = Rows(), 0
        for batch in self._batches(folder, delta, encoder.columns if see is None else None):
            encoded = encoder.encode(pa.Table.from_batches([batch]))
            if see is not None:
                see(batch, encoded.keys)
            headers: Sequence[Headers] = encoded.headers or [[]] * len(encoded)
            for key, value, declared in zip(encoded.keys, encoded.values, headers, strict=True):
                if value is None:
                    raise AssertionError("unreachable: the formats of these values have no null")
                if key is None:
                    raise ConfigurationError(
                        f"{d.name}: a row of {d.table} has no key: declare a key that all rows have"
                    )
                found[key] = (value, declared)
            number += len(encoded)
        if len(found) != number:
            raise ConfigurationError(
                f"{d.name}: {number - len(found):,} rows of {d.table} have the key of another row: declare as `key` columns "
                "that identify a row"
            )
        return _name(folder, delta), found

    def _batches(self, folder: Folder, delta: DeltaTable, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        try:
            with folder.reading():
                for each in datasets.of(delta).to_batches(columns=columns, batch_size=_SLICE):
                    yield from _slices(each)
        except TableDamagedError as e:
            if folder.delta().version() == delta.version():
                raise
            # An erasure deletes past files at once.
            doing = f"reading {self.declaration.table}"
            raise PublishingInterruptedError(self.declaration.topic, doing, "a newer version has replaced it") from e

    def held(self) -> Held:
        """Read the topic, and return the newest committed record of each key. Raises PublishingInterruptedError."""
        found = Held({})
        state = self.cluster.topic(self.declaration.topic)
        starts = {p: f.offset for p, f in self.cluster.log_starts(state).items()}
        ends = self.target.settled_ends()
        for partition in state.partitions:
            here: dict[bytes, tuple[Rank, bytes | None]] = {}
            for message in committed_records(
                self.cluster, self.declaration.topic, partition, starts.get(partition, 0), ends.get(partition, 0)
            ):
                note(here, message, self.declaration.table.name)
            found.add(here)
        return found

    def known(self, topic_id: str) -> KeyedProgress | None:
        """Return the newest publication to the topic with this id; None if there is none."""
        return self._parsed(self.target.committed().records, topic_id)

    def is_created_again(self, topic_id: str) -> bool:
        """Return True if the table was published to a topic of this name with another id, and never to that with this
        id."""
        records = self.target.committed().records
        return self._parsed(records, topic_id) is None and self._other_topics(records, topic_id)

    def _other_topics(self, records: Mapping[bytes, bytes], topic_id: str) -> bool:
        """Return True if the table was published to topics with other ids."""
        found = (parsed_key(name) for name in records)
        return any(each[1:] == (self.declaration.table.name, "") and each[0] != topic_id for each in found if each)

    def _parsed(self, records: Mapping[bytes, bytes], topic_id: str) -> KeyedProgress | None:
        value = records.get(self._key(topic_id))
        try:
            return None if value is None else KeyedProgress.from_bytes(value)
        except ConfigurationError as e:
            raise ConfigurationError(f"{self.declaration.name}: {e}") from e
        except (ValueError, TypeError, KeyError, RecursionError) as e:
            # What the topic holds decides what is sent.
            _log.warning("%s: its progress is not the platform's, and does not count (%s)", self.declaration.name, e)
            return None

    def _key(self, topic_id: str) -> bytes:
        return json.dumps([topic_id, self.declaration.table.name, ""], separators=(",", ":")).encode()


def _name(folder: Folder, delta: DeltaTable) -> str:
    # Versions of a table that was restored from a backup have the same numbers again, but not the same commits.
    anchor = delta_log.anchor(folder, delta.version())
    return f"{str(delta.metadata().id)[:8]}/{delta.version()}" + ("" if anchor is None else f"/{anchor.digest[:8]}")


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows in parts whose texts Arrow can join: it allows 2 GiB."""
    if batch.num_rows > 1 and batch.nbytes > _SLICE_BYTES:
        half = batch.num_rows // 2
        yield from _slices(batch.slice(0, half))
        yield from _slices(batch.slice(half))
    else:
        yield batch


def note(newest: dict[bytes, tuple[Rank, bytes | None]], message: Any, table: str) -> None:
    """Note a record of a partition as the newest one of its key."""
    key, value = message.key(), message.value()
    if not isinstance(key, bytes):
        return
    identity = Identity.of(message.headers())
    if identity is None or identity.table != table:
        # Another program's record hides the row until the row is sent again. Keys that are only theirs are left alone.
        if key in newest:
            newest[key] = (newest[key][0], b"")
    else:
        newest[key] = (identity.rank, None if value is None else digest_of(value, message.headers()))


def difference(rows: Mapping[bytes, tuple[bytes, Headers]], held: Mapping[bytes, bytes]) -> Iterator[Change]:
    """Yield what turns the records that are held, digests by key, into the rows, in order of keys. Pure."""
    for key in sorted({*rows, *held}):
        row = rows.get(key)
        if row is None:
            yield "removed", key, None, []
        elif (before := held.get(key)) != digest_of(*row):
            yield "added" if before is None else "changed", key, *row


def parts(changes: Iterable[Change], most_rows: int, most_bytes: int) -> Iterator[list[Change]]:
    """Yield the changes of each transaction, which ends with the change that brings it to this number of rows or of bytes.
    If there are no changes, one part is empty: its transaction records the version. Pure."""
    part: list[Change] = []
    size = number = 0
    for change in changes:
        part.append(change)
        size += len(change[1]) + len(change[2] or b"")
        if len(part) >= most_rows or size >= most_bytes:
            yield part
            number, part, size = number + 1, [], 0
    if part or not number:
        yield part
