"""Evidence that a topic holds the rows of a table without windows: for each key, its newest record is the key's row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from platform_assets.checks.published import Evidence
from platform_assets.errors import ConfigurationError, PublishingInterruptedError
from platform_assets.kafka.publisher import committed_records
from platform_assets.windows.publish.keyed import Held, Identity, KeyedPublisher, Rank, digest_of, note


def gather(publisher: KeyedPublisher, progress: Callable[[str], None] = lambda text: None) -> Evidence:
    """Read the whole topic, and hold it against the newest version of the table. Raises the errors of Cluster."""
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
    held = Held({})
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
                versions.add(identity.version)
        held.add(here)
    found.windows = len(versions)
    if known is not None and not found.deleted and not compacted:
        missing = sum((known.number, ordinal) not in ranks for ordinal in range(known.sent))
        if missing:
            found.object_to(f"{missing:,} of the {known.sent:,} records of publication {known.number} are missing")
    if known is None or not known.is_complete or found.plan.behind:
        found.not_read.append("the newest version of the table is not published completely")
        return found
    try:
        version, rows = publisher.rows()
    except ConfigurationError as e:
        found.object_to(str(e))
        return found
    if version != known.version:
        found.not_read.append("the table has changed meanwhile")
        return found
    _compare(found, {key: digest_of(*row) for key, row in rows.items()}, held.live())
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
