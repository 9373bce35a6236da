"""Publishing a table without windows, such as a state or a derived table: an upsert for each key whose row was added or
changed, and a tombstone for each deleted key, exactly once.

What to send is the difference between the table's rows and what the topic holds: the newest committed record of each
key. It is read after `init_transactions`, when no earlier publisher can commit any more, and everything that is sent is
part of the next difference. So no version of the table has to be kept, and a publisher may be killed at any point.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

from platform_assets.errors import ConfigurationError, PublishingInterruptedError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.publisher import Headers, Record, Session, Target, committed_records
from platform_assets.lake import datasets
from platform_assets.ledger.store import Ledger
from platform_assets.model.logs import logger
from platform_assets.model.publishing import HEADER, PublishDeclaration
from platform_assets.windows.publish.encoding import Encoder
from platform_assets.windows.publish.progress import Kind, Plan, Published

_log = logger(__name__)

_ATTEMPTS: Final = 5
_SLICE: Final = 50_000
_VERSION: Final = 1

Rank = tuple[int, int]
"""Number of a publication, and ordinal of a record in it: later records of a key have a higher rank."""
Change = tuple[Kind, bytes, bytes | None, Headers]


@dataclass(frozen=True, slots=True)
class KeyedProgress:
    """The newest publication: its number, the version of the table, and how many records of it were sent."""

    number: int
    version: str
    sent: int
    is_complete: bool

    def to_bytes(self) -> bytes:
        """Return the value of the progress record."""
        fields = {"number": self.number, "table": self.version, "sent": self.sent, "complete": self.is_complete}
        return json.dumps({"version": _VERSION, **fields}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> KeyedProgress:
        """Parse the value of a progress record."""
        fields = json.loads(value)
        if fields["version"] != _VERSION:
            raise ValueError(f"version {fields['version']} instead of {_VERSION}: upgrade platform-assets")
        return cls(fields["number"], fields["table"], fields["sent"], fields["complete"] is True)


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


@dataclass(frozen=True)
class KeyedPublisher:
    """Publishes the rows of `declaration`'s table. The other fields are as in `Publisher`."""

    declaration: PublishDeclaration
    ledger: Ledger
    cluster: Cluster
    before_step: Callable[[str], None] = lambda step: None
    on_progress: Callable[[str, int], None] = lambda version, records: None

    @property
    def target(self) -> Target:
        """The topic, as the publisher sees it."""
        seconds = self.declaration.transaction_timeout.total_seconds()
        return Target(self.cluster, self.declaration.topic, seconds, self.before_step)

    def plan(self) -> Plan:
        """Return a plan with the table's version, if it is not published. Raises the errors of Cluster."""
        known = self.known(self.cluster.topic(self.declaration.topic).topic_id)
        version, rows = self.version(), 0
        if version is None or (known is not None and known.is_complete and known.version == version):
            return Plan(published=1)
        rows = datasets.of(self.ledger.lake.table(self.declaration.table).delta()).count_rows()
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
            except PublishingInterruptedError as e:
                failures += 1
                if e.fenced or failures >= _ATTEMPTS:
                    raise
                _log.warning("%s Continuing with a new producer.", e)

    def _send_all(self, session: Session, topic_id: str) -> Iterator[tuple[int, str]]:
        """Send what differs. Yield the number of records of each transaction, and the table's version."""
        known = self._parsed(session.progress.records, topic_id)
        version = self.version()
        if version is None or (known is not None and known.is_complete and known.version == version):
            return
        version, rows = self.rows()
        held = self.held()
        changes = list(difference(rows, held.live()))
        number, first = max(held.number, 0 if known is None else known.number) + 1, 0
        if known is not None and not known.is_complete and known.version == version:
            number, first = known.number, known.sent
        most = self.declaration.transaction_rows
        for start in range(0, max(len(changes), 1), most):
            part = changes[start : start + most]
            sent = first + start + len(part)
            progress = KeyedProgress(number, version, sent, start + len(part) == len(changes))
            session.send(
                self._records(part, version, (number, first + start)), {self._key(topic_id): progress.to_bytes()}
            )
            yield len(part), version

    def _records(self, changes: Sequence[Change], version: str, first: Rank) -> Iterator[Record]:
        number, ordinal = first
        for n, (kind, key, value, headers) in enumerate(changes, ordinal):
            identity = Identity(self.declaration.table.name, version, (number, n), kind)
            yield key, value, [*headers, (HEADER, identity.to_bytes())]

    def version(self) -> str | None:
        """Return a name of the table's newest version; None if the table does not exist yet."""
        return self.version_of(self.declaration, self.ledger)

    @staticmethod
    def version_of(declaration: PublishDeclaration, ledger: Ledger) -> str | None:
        """Return a name of the newest version of the table of `declaration`; None if it does not exist yet."""
        folder = ledger.lake.table(declaration.table)
        if not folder.has_delta_log():
            return None
        delta = folder.delta()
        return f"{str(delta.metadata().id)[:8]}/{delta.version()}"

    def rows(self) -> tuple[str, dict[bytes, tuple[bytes, Headers]]]:
        """Return the newest version, and value and declared headers of each row, by key. Raises ConfigurationError if
        two rows have the same key, or one has none."""
        d = self.declaration
        delta = self.ledger.lake.table(d.table).delta()
        data = datasets.of(delta)
        encoder = Encoder(d, pa.schema([field.remove_metadata() for field in data.schema]))
        found: dict[bytes, tuple[bytes, Headers]] = {}
        number = 0
        for batch in data.to_batches(columns=encoder.columns, batch_size=_SLICE):
            encoded = encoder.encode(pa.Table.from_batches([batch]))
            headers: Sequence[Headers] = encoded.headers or [[]] * len(encoded)
            for key, value, declared in zip(encoded.keys, encoded.values, headers, strict=True):
                if value is None:
                    number -= 1
                    continue
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
        return f"{str(delta.metadata().id)[:8]}/{delta.version()}", found

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

    def _parsed(self, records: Mapping[bytes, bytes], topic_id: str) -> KeyedProgress | None:
        value = records.get(self._key(topic_id))
        return None if value is None else KeyedProgress.from_bytes(value)

    def _key(self, topic_id: str) -> bytes:
        return json.dumps([topic_id, self.declaration.table.name, ""], separators=(",", ":")).encode()


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
