"""The derived tables of `examples/suggestions`: one more window of 10,000 events, compared with computing all of their rows again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import yaml
from deltalake import Schema

from benchmarks.derived import load
from benchmarks.rounds import alternate, ratio
from benchmarks.scenario import Bench, Measured, at_least
from platform_assets.engines.shared.session import connect
from platform_assets.lake import checkpoints, new_tables
from platform_assets.lake.location import Lake
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window
from platform_assets.windows.derive.deriving import Updater
from testbed.samples import START, TOPIC_ID

EVENTS_A_USER: Final = 50
WINDOW_ROWS: Final = 10_000
ITEMS: Final = 5_000
_HOUR: Final = timedelta(hours=1)
_SOURCE: Final = TableRef("decoded", "trips")
_COLUMNS: Final = pa.schema(
    [
        ("topic_id", pa.string()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("plane", pa.string()),
        ("destination", pa.string()),
        ("window", pa.string()),
    ]
)


def declared() -> list[DerivedDeclaration]:
    """Return the example's derived tables, each after those that it reads."""
    text = (Path(__file__).parents[1] / "examples" / "suggestions" / "defs" / "suggestions" / "defs.yaml").read_text()
    every = [each["attributes"] for each in yaml.safe_load_all(text) if each["type"].endswith("DerivedTable")]
    return [DerivedDeclaration(DerivedRef(each["table"]), each["by"], each["sql"]) for each in every]


def load_events(lake: Lake, number: int, users: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Load window `number` with one event for each of these users. Few items are in most events."""
    random = np.random.default_rng(number)
    items = np.minimum(random.zipf(1.3, len(users)), ITEMS)
    window = Window(START + number * _HOUR, START + (number + 1) * _HOUR)
    rows = {
        "topic_id": pa.repeat(TOPIC_ID, len(users)),
        "kafka_partition": pa.array(users % 4, pa.int32()),
        "kafka_offset": pa.array(np.arange(len(users)) + (number << 32)),
        "kafka_timestamp": pa.repeat(pa.scalar(window.start, pa.timestamp("us", "UTC")), len(users)),
        "plane": pa.array([f"user-{user:07}" for user in users]),
        "destination": pa.array([f"item-{item:05}" for item in items]),
        "window": pa.repeat(window.key, len(users)),
    }
    load(lake, _SOURCE, window, pa.table(rows, schema=_COLUMNS))


def run(bench: Bench) -> Measured:
    """Measure the seconds of the runs of all derived tables that follow one more window, and of those that compute all rows."""
    lake, users, rounds = Lake.at(bench.root / "lake"), bench.pick(1_000_000, 10_000), bench.pick(3, 2)
    began, number = time.perf_counter(), EVENTS_A_USER
    new_tables.create(lake.table(_SOURCE), Schema.from_arrow(_COLUMNS), name="decoded_trips", description="")
    for window in range(number):
        load_events(lake, window, np.random.default_rng(window).permutation(users))
    checkpoints.write(lake.table(_SOURCE))
    bench.report(f"made {users * number:,} rows in {time.perf_counter() - began:.0f} s")
    session, tables = cache(partial(connect, bench.remote)), declared()

    def derive(tables: Sequence[DerivedDeclaration], *, whole: bool) -> None:
        for each in tables:
            began = time.perf_counter()
            done = Updater(lake, each, session).run("bench", whole=whole).made.derivation
            extent = done.because or f"{done.groups['count']:,} groups"
            bench.report(f"  {each.table}: {done.whole.rows:,} rows, {extent}, {time.perf_counter() - began:.1f} s")

    def load_next() -> None:
        nonlocal number
        chosen = np.random.default_rng(number).choice(users, min(WINDOW_ROWS, users // 10), replace=False)
        load_events(lake, number, chosen)
        number += 1

    derive(tables, whole=True)
    load_next()
    contenders = {
        "one more window": lambda: derive(tables, whole=False),
        "all rows": lambda: derive(tables, whole=True),
    }
    found = alternate(contenders, rounds, bench.report, clear=load_next)
    goals = [at_least("one more window, relative to all rows", 20, ratio(found["all rows"], found["one more window"]))]
    setting = {"users": users, "events per user": EVENTS_A_USER, "events of the window": min(WINDOW_ROWS, users // 10)}
    return Measured("suggestions", found, goals, setting=setting)
