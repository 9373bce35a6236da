"""Evidence that a topic holds the rows of a table without windows: for each key, its newest record is the key's row.

The publisher's own encoder makes the expected records; of a sample, `published_values` judges keys, values and headers
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from platform_assets.checks.published import Evidence
from platform_assets.checks.published_values import Reader, Sampled, of_row, python_rows
from platform_assets.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    PublishingInterruptedError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from platform_assets.kafka.publisher import committed_records
from platform_assets.lake.new_tables import making
from platform_assets.windows.publish.keyed import Held, Identity, KeyedPublisher, Rank, digest_of, note

_JUDGED: Final = 256
"""Number of keys whose records are judged without the publisher's encoder."""


@dataclass
class _Sample:
    """The newest records of the keys with the lowest checksums, and what is wrong with those that were judged."""

    reader: Reader
    records: dict[bytes, tuple[Rank, Sampled]] = field(default_factory=dict)
    judged: int = 0
    problems: list[str] = field(default_factory=list)
    _chosen: list[tuple[int, bytes]] = field(default_factory=list)

    def add(self, rank: Rank, record: Sampled) -> None:
        """Keep a record if its key is in the sample, and no record of the key is newer."""
        key, order = record[0] or b"", crc32(record[0] or b"")
        if key in self.records:
            if self.records[key][0] > rank:
                return
        elif len(self._chosen) < _JUDGED:
            heappush(self._chosen, (-order, key))
        elif order < -self._chosen[0][0]:
            del self.records[heapreplace(self._chosen, (-order, key))[1]]
        else:
            return
        self.records[key] = rank, record

    def judge(self, publisher: KeyedPublisher, rows: pa.RecordBatch, keys: Sequence[bytes | None]) -> None:
        """Judge the records of those rows whose keys, according to the publisher, are in the sample."""
        places = pa.array([n for n, key in enumerate(keys) if key in self.records], pa.int64())
        types, hidden = dict(zip(rows.schema.names, rows.schema.types, strict=True)), publisher.hidden
        for n, row in zip(places.to_pylist(), python_rows(pa.Table.from_batches([rows]).take(places)), strict=True):
            self.judged += 1
            name = f"the row with key {ascii(keys[n])[:60]}"
            record = self.records[keys[n] or b""][1]
            self.problems += of_row(publisher.declaration, row, types, record, hidden, name, self.reader)


def gather(publisher: KeyedPublisher, progress: Callable[[str], None] = lambda text: None) -> Evidence:
    """Read the whole topic, and hold it against the newest version of the table. Raises the errors of Cluster."""
    topic, cluster = publisher.declaration.topic, publisher.cluster
    topic_id = cluster.topic(topic).topic_id
    try:
        found = _gathered(publisher, progress)
    except BrokerUnreachableError:
        # Offsets of the deleted topic are waited for in vain.
        if cluster.topic(topic).topic_id == topic_id:
            raise
        found = None
    if found is None or cluster.topic(topic).topic_id != topic_id:
        return Evidence(unit="versions", not_read=["the topic was deleted and created again meanwhile"])
    return found


def _gathered(publisher: KeyedPublisher, progress: Callable[[str], None]) -> Evidence:
    # Compiled code, which definitions do not need.
    from platform_assets.checks.published_schemas import SchemaReader

    d, found = publisher.declaration, Evidence(unit="versions")
    target = publisher.target
    state = publisher.cluster.topic(d.topic)
    try:
        # Kafka answers a commit before readers see it, and they see it in one partition before another.
        if target.progress_topic in publisher.cluster.topics():
            target.settled_ends(target.progress_topic)
        found.plan, known = publisher.plan(), publisher.known(state.topic_id)
        ends = target.settled_ends()
    except PublishingInterruptedError as e:
        found.not_read.append(f"{e.doing} failed: {e.reason}")
        return found
    starts = {p: f.offset for p, f in publisher.cluster.log_starts(state).items()}
    found.deleted = sum(starts.values())
    compacted = "compact" in (publisher.cluster.topic_config(d.topic).get("cleanup.policy") or "")
    ranks: set[Rank] = set()
    versions: set[str] = set()
    held, sample = Held({}), _Sample(SchemaReader(d, lambda: publisher.schemas))
    for partition in state.partitions:
        progress(f"reading partition {partition} of topic {d.topic}")
        here: dict[bytes, tuple[Rank, bytes | None]] = {}
        last: Rank = (0, -1)
        for message in committed_records(
            publisher.cluster, d.topic, partition, starts.get(partition, 0), ends.get(partition, 0)
        ):
            found.records += 1
            note(here, message, d.table.name)
            last = _judge(
                found, d.name, d.table.name, message, f"partition {partition} offset {message.offset()}", last
            )
            identity = Identity.of(message.headers())
            if identity is not None:
                if identity.rank in ranks:
                    number, ordinal = identity.rank
                    found.object_to(f"record {ordinal} of publication {number} is on the topic twice")
                ranks.add(identity.rank)
                if identity.table == d.table.name:
                    sample.add(identity.rank, (message.key(), message.value(), message.headers() or ()))
                versions.add(identity.version)
        held.add(here)
    found.windows = len(versions)
    if known is not None and not found.deleted and not compacted:
        missing = sum((known.number, ordinal) not in ranks for ordinal in range(known.sent))
        if missing:
            found.object_to(f"{missing:,} of the {known.sent:,} records of publication {known.number} are missing")
    if publisher.version() is None:
        found.not_read.append(f"{d.table} was not made yet: run `{making(d.table)}`")
        return found
    if known is None or not known.is_complete or found.plan.behind:
        found.not_read.append("the newest version of the table is not published completely")
        if known is None and publisher.is_created_again(state.topic_id):
            found.not_read[-1] = (
                "the topic was deleted and created again since the table was published; run `platform-assets publish "
                f"{d.topic}`, which sends all rows that it lacks"
            )
        return found
    try:
        version, rows = publisher.rows(lambda batch, keys: sample.judge(publisher, batch, keys))
    except ConfigurationError as e:
        found.object_to(str(e))
        return found
    except (RegistryUnreachableError, RegistryRefusedError) as e:
        found.not_read.append(f"records could not be read by their schema ({e})")
        return found
    if version != known.version:
        found.not_read.append("the table has changed meanwhile")
        return found
    _compare(found, {key: digest_of(*row) for key, row in rows.items()}, held.live())
    found.judged = sample.judged
    for problem in sample.problems:
        found.object_to(problem)
    return found


def _judge(found: Evidence, name: str, table: str, message: Any, place: str, last: Rank) -> Rank:
    """Object to a record that the publisher did not send, or sent in another order. Return its rank."""
    identity = Identity.of(message.headers())
    if identity is None or identity.table != table:
        found.object_to(f"{place} has a record that {name} did not send")
        return last
    if identity.rank <= last:
        found.object_to(f"{place}: record {identity.rank[1]} of publication {identity.rank[0]} is not in order")
    return identity.rank


def _compare(found: Evidence, rows: dict[bytes, bytes], live: dict[bytes, bytes]) -> None:
    if missing := rows.keys() - live.keys():
        text = f"{len(missing):,} rows are missing, such as that with key {ascii(min(missing))[:60]}"
        if found.deleted:
            found.not_read.append(f"{text}: Kafka may have deleted them")
        else:
            found.object_to(text)
    if more := live.keys() - rows.keys():
        found.object_to(f"{len(more):,} keys have no row, such as {ascii(min(more))[:60]}")
    different = [key for key in rows.keys() & live.keys() if rows[key] != live[key]]
    if different:
        found.object_to(f"{len(different):,} records differ from their rows, such as key {ascii(min(different))[:60]}")
