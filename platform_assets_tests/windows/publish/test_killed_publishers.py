"""Publishers that are killed at random points, while windows are loaded again: a plain consumer reads each record once,
and ends with the table's rows."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.checks.published import gather
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.publishing import Identity, Part, PublishDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish.publishing import Publisher
from platform_assets_tests.support.published import Message, consumed, identities, replayed
from testbed import samples
from testbed.clients import client_settings

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker

STEPS = ("first", "flush", "commit", "next")
Rows = dict[tuple[int, int], bytes]


def load(root: Path, window: SealedWindow, rng: random.Random, load_id: str) -> Rows:
    """Load random rows into a window; return them."""
    held: dict[tuple[int, int], bytes] = {}
    for partition, span in window.ranges.items():
        for offset in range(span.start, span.end):
            if rng.random() < 0.9:
                held[partition, offset] = b"%d/%d/%d" % (partition, offset, rng.randrange(3))
    kept = {p: [o for q, o in sorted(held) if q == p] for p, _ in window.ranges.items()}
    holes = {"compacted": sum(span.size for _, span in window.ranges.items()) - len(held)}
    samples.loaded(root, window, kept, load_id=load_id, values=held, holes=holes)
    return held


def killed(work: dict[str, object], rng: random.Random) -> bool:
    """Start a publisher, and kill it before a random step; return False if it was done before."""
    step, times = rng.choice(STEPS), rng.randint(1, 3)
    child = subprocess.Popen(
        [sys.executable, "-m", "platform_assets_tests.support.doomed_publisher"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        print(json.dumps(work), file=child.stdin, flush=True)
        for line in child.stdout:
            if line.strip() == "done":
                return False
            times -= line.strip() == step
            if not times:
                break
            print(file=child.stdin, flush=True)
        assert not times, "the publisher failed"
        os.kill(child.pid, signal.SIGKILL)
    return True


def named(message: Message, windows: list[SealedWindow]) -> Message:
    """Return a record without a header with the identity that its value shows."""
    if message.window:
        return message
    partition, offset, _ = map(int, (message.value or b"").split(b"/"))
    (key,) = (w.key for w in windows for p, r in w.ranges.items() if p == partition and r.start <= offset < r.end)
    return replace(message, window=key, position=(partition, offset), ordinal=partition << 32 | offset)


def history(broker: Broker, topic: TopicMaker, root: Path, seed: int, kills: int, identity: Identity) -> None:
    """Publish two windows, with kills and reloads in random order, and compare the topic with the table."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    source, target = f"source-{seed}", topic(partitions=2)
    table = TableRef.raw(source)
    ends = [dict.fromkeys(range(2), n * 20) for n in range(3)]
    windows = samples.recorded(root, source, ends)
    loads = 0
    rows: dict[str, Rows] = {}
    work = {
        "bootstrap": broker.bootstrap, "lake": str(root), "table": table.name, "target": target,
        "rows": rng.choice([5, 20, 1000]), "identity": identity,
    }  # fmt: skip
    for window in windows:
        rows[window.key] = load(root, window, rng, f"load{loads}")
        loads += 1
    for _ in range(kills):
        killed(work, rng)
        if rng.random() < 0.6:
            window = rng.choice(windows)
            rows[window.key] = load(root, window, rng, f"load{loads}")
            loads += 1
    declared = PublishDeclaration(
        target, table, Part("text", ("kafka_offset",)), Part("bytes", ("value",)), tombstones=True, identity=identity
    )
    cluster = Cluster.connect(client_settings(broker.bootstrap))
    publisher = Publisher(declared, Ledger(Lake.at(root)), cluster)
    publisher.run()
    messages = [named(each, windows) for each in consumed(broker.bootstrap, target)]
    names = identities(messages)
    assert len(set(names)) == len(names)
    expected = {(key, at): value for key, some in rows.items() for at, value in some.items()}
    assert {place: value for place, (_, value) in replayed(messages).items()} == expected
    evidence = gather(publisher)
    assert evidence.passed, evidence.headline
    assert not evidence.not_read
    assert evidence.records == len(messages)


@pytest.mark.parametrize(("seed", "identity"), [(1, "header"), (2, "progress")])
def test_killed_publishers_publish_each_record_once(
    broker: Broker, topic: TopicMaker, tmp_path: Path, seed: int, identity: Identity
) -> None:
    history(broker, topic, tmp_path, seed, 3, identity)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 23))
def test_many_killed_publishers_publish_each_record_once(
    broker: Broker, topic: TopicMaker, tmp_path: Path, seed: int
) -> None:
    history(broker, topic, tmp_path, seed, 6, "progress" if seed % 2 else "header")
