"""Topics with windows that are past their `keep`, and judges of what upkeep has left. No Kafka, no Spark."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable

from platform_assets.lake import new_tables
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.keeping import GRACE, Keep
from platform_assets.model.tables import TableKind
from platform_assets.windows.decode.decoding import DecodedWindow
from platform_assets.windows.decode.decoding_many import decode_many
from platform_assets.windows.maintain.expiring import Expired, Expiring
from platform_assets.windows.maintain.notice import Times
from platform_assets.windows.recover.rebuild import rebuild
from platform_assets.windows.recover.rebuild_decoded import rebuild_decoded
from platform_assets_tests.support.erasures import MadeTopic, proved
from platform_assets_tests.support.local_engine import Kept
from platform_assets_tests.support.made_kafka import MadeCluster, loader_of
from platform_assets_tests.support.recovery import lose_ledger
from testbed import samples

KINDS: tuple[TableKind, ...] = ("raw", "decoded", "dead_letters")
DAY = timedelta(days=1)
KEEP = Keep(1)
HOURS = 4
WINDOWS, OLD, EACH = 9, 24 // HOURS, 2
"""Windows, those of the first day, which are past `KEEP` on the third, and records of a partition in a window."""
END = samples.edge(WINDOWS * HOURS)
"""The newest boundary of a topic's windows."""
NOW = samples.START + 2 * DAY + timedelta(hours=3)
SEEN = samples.START + 2 * DAY - GRACE - timedelta(hours=1)
_made: dict[tuple[Callable[..., None], int, bool], Path] = {}


def made(root: Path, windows: int = WINDOWS, *, decode: bool = True) -> MadeTopic:
    """Return a copy of a topic that is made once for each layout."""
    known = (new_tables.create, windows, decode)
    if known not in _made:
        _made[known] = Path(tempfile.mkdtemp(prefix="expiring-"))
        atexit.register(shutil.rmtree, _made[known], ignore_errors=True)
        first = MadeTopic(_made[known] / "lake", hours=HOURS)
        first.load_many(sealed(first, windows))
        if decode:
            for _, outcome in decode_many(first.decoder(), keys(first)):
                assert isinstance(outcome, DecodedWindow)
    shutil.copytree(_made[known] / "lake", root)
    topic = MadeTopic(root, hours=HOURS)
    topic.declaration = replace(topic.declaration, keep=KEEP)
    topic.records[:] = _records(windows)
    return topic


def _values(windows: int) -> list[dict[int, list[tuple[bytes | None, bytes | None]]]]:
    return [{p: [(b"k%d" % n, b"v-%d-%d-%d" % (w, p, n)) for n in range(EACH)] for p in (0, 1)} for w in range(windows)]


def sealed(topic: MadeTopic, windows: int) -> list[SealedWindow]:
    return topic.seal(_values(windows))


def _records(windows: int) -> list[Kept]:
    found = [
        Kept(p, w * EACH + n, key, value, samples.edge(w * HOURS))
        for w, by_partition in enumerate(_values(windows))
        for p, pairs in by_partition.items()
        for n, (key, value) in enumerate(pairs)
    ]
    return sorted(found, key=lambda r: (r.partition, r.offset))


def run(topic: MadeTopic, now: datetime = NOW) -> Expired:
    found = expiring_of(topic).run(now)
    assert found is not None
    return found


def expiring_of(topic: MadeTopic) -> Expiring:
    """Return what removes windows in a time that both clocks show, and until which all windows are sealed."""
    return Expiring(topic.declaration, topic.ledger, measure=lambda ledger, name, now: Times(now, now))


def keys(topic: MadeTopic) -> list[str]:
    return [w.key for w in topic.ledger.windows(topic.topic)]


def windows(topic: MadeTopic) -> list[SealedWindow]:
    return topic.ledger.windows(topic.topic)


def held(topic: MadeTopic, kind: TableKind = "raw") -> set[tuple[Any, ...]]:
    """Return the rows that polars finds in a table. Fails if a place has two."""
    path = topic.root / kind / topic.topic
    columns = ["window", "kafka_partition", "kafka_offset"]
    rows = pl.scan_delta(str(path)).select(columns).collect().rows()
    assert len(set(rows)) == len(rows)
    return set(rows)


def sent(topic: MadeTopic, of: list[str]) -> set[tuple[Any, ...]]:
    ranges = {w.key: w.ranges.by_partition for w in windows(topic)}
    return {(k, r.partition, r.offset) for r in topic.records for k in of if r.offset in ranges[k][r.partition]}


def check_expired(topic: MadeTopic, gone: list[str]) -> None:
    """Check that exactly the windows `gone` have no rows, and that every check passes."""
    left = [key for key in keys(topic) if key not in gone]
    assert held(topic) == sent(topic, left)
    assert held(topic, "decoded") == sent(topic, left)
    assert {k for kind in KINDS for k, r in topic.receipts(kind).items() if r.is_expired} == set(gone)
    assert all(topic.receipts(kind)[k].is_expired for kind in KINDS for k in gone)
    proved(topic)


def table(topic: MadeTopic, kind: TableKind = "raw") -> DeltaTable:
    return DeltaTable(topic.root / kind / topic.topic)


def kafka_of(topic: MadeTopic, now: datetime = NOW) -> tuple[MadeCluster, Any]:
    cluster = MadeCluster(topic)
    return cluster, replace(loader_of(topic, cluster), now=lambda: now)


def lose_and_rebuild_ledger(topic: MadeTopic) -> None:
    """Delete the ledger, and rebuild it from the logs of the topic's tables."""
    lose_ledger(topic)
    rebuild(topic.declaration, topic.ledger, topic.engine)
    rebuild_decoded(topic.declaration, topic.ledger, topic.decoder().engine)


def few(root: Path, windows: int = 3, *, decode: bool = True) -> MadeTopic:
    """Return a topic with a few windows, all of which are past `KEEP`, which was seen a week ago."""
    topic = made(root, windows, decode=decode)
    if not decode:
        topic.declaration = replace(topic.declaration, decode=None)
    assert run(topic, SEEN).done == ()
    return topic
