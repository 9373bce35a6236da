"""An asset that publishes the rows of `derived/late_flights` to the topic `late_flights`, each exactly once."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

import dagster as dg
from deltalake import DeltaTable

from platform_assets.kafka.publisher import Record, Target
from platform_assets.orchestration.resources import KafkaResource, LakeResource

TOPIC: Final = "late_flights"
TABLE: Final = dg.AssetKey(["derived", "late_flights"])


@dg.asset(
    key=["published", TOPIC],
    deps=[TABLE],
    group_name="stream",
    kinds={"kafka"},
    automation_condition=dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed(),
)
def late_flights_publish(kafka: KafkaResource, lake: LakeResource) -> dg.MaterializeResult[None]:
    """Send what is not on the topic yet. A transaction per window also records what the topic now has of the window."""
    target = Target(kafka.cluster(), TOPIC)
    # Another topic with this name, after it was created again, has nothing yet.
    topic_id = target.prepare().target
    # Ends an earlier publisher's open transaction, and then reads what was committed.
    session = target.session()
    known, sent = session.progress.records, 0
    rows = {f"{topic_id} {window}".encode(): each for window, each in _by_window(_table(lake))}
    # A window that has lost all of its rows is only in the progress.
    for window in sorted(rows.keys() | {key for key in known if key.startswith(f"{topic_id} ".encode())}):
        records, progress = to_send(rows.get(window, {}), known.get(window, b"{}"))
        if records:
            session.send(records, {window: progress})
            sent += len(records)
    return dg.MaterializeResult(metadata={"records": sent})


def to_send(rows: Mapping[str, bytes], progress: bytes) -> tuple[list[Record], bytes]:
    """Return the records of one window that the topic lacks, and the progress after them.

    `rows` maps keys to values. The progress has a digest of the last value sent with each key. A row that no longer
    exists is sent as a tombstone. Pure.
    """
    before: dict[str, str] = json.loads(progress)
    after = {key: sha256(value).hexdigest() for key, value in sorted(rows.items())}
    records: list[Record] = [(key.encode(), rows[key], []) for key in after if before.get(key) != after[key]]
    records += [(key.encode(), None, []) for key in sorted(before.keys() - after.keys())]
    return records, json.dumps(after).encode()


def _table(lake: LakeResource) -> DeltaTable:
    return DeltaTable(f"{lake.lake().root}/{TABLE.to_user_string()}")


def _by_window(table: DeltaTable) -> Iterable[tuple[str, dict[str, bytes]]]:
    found: dict[str, dict[str, bytes]] = defaultdict(dict)
    for row in table.to_pyarrow_table().to_pylist():
        key = json.dumps({name: row[name] for name in ("window", "manufacturer")})
        found[row["window"]][key] = json.dumps(row).encode()
    return found.items()
