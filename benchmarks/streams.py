"""Keyed streams at a steady rate. They are produced, loaded window by window, and proved, all at the same time on one
machine."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Final

from benchmarks.dagster_runs import WindowRuns
from benchmarks.producing import create
from benchmarks.scenario import Bench, Goal, Measured
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import key_of
from platform_assets.services.home import CHECKOUT

STREAMS: Final = 1_000
PER_SECOND: Final = 100
RECORD_BYTES: Final = 160
PARTITIONS: Final = 4
RATE: Final = STREAMS * PER_SECOND
MINUTE: Final = timedelta(minutes=1)


def run(bench: Bench) -> Measured:
    """Measure windows that close every minute. A Dagster run loads each window while the next window is being
    produced."""
    minutes = bench.pick(10, 2)
    topic = f"streams-{uuid.uuid4().hex[:8]}"
    create(bench.bootstrap, [topic], PARTITIONS)
    cluster = Cluster.connect(ClientSettings(bench.bootstrap))
    state = cluster.topic(topic)
    first = datetime.now(UTC).replace(second=0, microsecond=0) + MINUTE
    declaration = TopicDeclaration(topic, "* * * * *", first)
    time.sleep((first - datetime.now(UTC)).total_seconds())
    producer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.keyed_producer", bench.bootstrap, topic, str(STREAMS), str(PER_SECOND),
         str(RECORD_BYTES), str(60 * minutes)],
        cwd=CHECKOUT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    busy: list[float] = []
    lags: list[float] = []
    try:
        with ExitStack() as stack:
            runs = WindowRuns(stack, declaration, bench.bootstrap, bench.remote, bench.root / "streams")
            # One window more than minutes, for records sent at the very end.
            for number in range(minutes + 1):
                closed = first + (number + 1) * MINUTE
                time.sleep(max((closed - datetime.now(UTC)).total_seconds(), 0) + 0.2)
                began = time.monotonic()
                runs.load(key_of(closed - MINUTE))
                busy.append(time.monotonic() - began)
                newest = Ledger(Lake.at(runs.root)).newest_cut(topic)
                held = 0 if newest is None else sum(newest.cut.offsets.values())
                lags.append(float(sum(f.offset for f in cluster.last_stable_offsets(state).values()) - held))
                bench.report(f"window {number + 1} of {minutes + 1}: {busy[-1]:.1f} s, lag {lags[-1]:,.0f} records")
            sent = int(producer.communicate(timeout=60)[0])
            rows = sum(r.rows for r in Ledger(Lake.at(runs.root)).receipts(declaration.raw_table).values())
            proved = sum(
                r.holes is not None for r in Ledger(Lake.at(runs.root)).receipts(declaration.raw_table).values()
            )
    finally:
        if producer.poll() is None:
            producer.kill()
        producer.wait()
    if rows != sent:
        raise RuntimeError(f"{rows:,} rows from {sent:,} records: the measurement is invalid")
    full = busy[1:minutes] or busy[:1]
    # Only windows in which records were still arriving. The first load is left out because its server is cold.
    during = lags[1 : minutes - 1] or lags[:1]
    half = (len(during) + 1) // 2
    level = statistics.median(during[-half:]) / statistics.median(during[:half])
    goals = [
        Goal("head-room: a minute divided by the time that its window takes", 60 / statistics.median(full), 8.0, False),
        Goal("lag after each window, second half relative to the first", level, 1.2, True),
        Goal("windows proved", proved / (minutes + 1), 1.0, False),
    ]
    setting = {"streams": STREAMS, "records/s": RATE, "bytes": RECORD_BYTES, "minutes": minutes}
    more = {"lag in records after each window": lags, "records": sent, "rows": rows}
    return Measured("streams", {"one window, closed to proved": busy}, goals, setting=setting, more=more)
