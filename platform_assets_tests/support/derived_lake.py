"""A decoded table whose windows a test loads, reloads, erases and expires, without Kafka, and a judge of derived tables: DuckDB."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake

from platform_assets.lake import new_tables
from platform_assets.lake.derived_table import Derivation, RowsDigest
from platform_assets.lake.load_log import Expiry, LoadMetadata
from platform_assets.lake.location import Folder, Lake
from platform_assets.lake.state_table import FOLD_KEY
from platform_assets.model.derived import DerivedDeclaration
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.windows import Window, key_of
from testbed.samples import TOPIC_ID

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)

Row = dict[str, Any]
"""A row of `decoded/flights`, without its window."""

COLUMNS = pa.schema(
    [
        ("topic_id", pa.string()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("time_hour", pa.timestamp("us", "UTC")),
        ("carrier", pa.string()),
        ("tailnum", pa.string()),
        ("dep_delay", pa.int32()),
        ("window", pa.string()),
    ]
)


def window(number: int) -> Window:
    """Return an hourly window."""
    return Window(START + number * HOUR, START + (number + 1) * HOUR)


@dataclass
class Flights:
    """The table `decoded/<topic>` of a lake, and the rows of each window that it should have."""

    root: Path
    topic: str = "flights"
    windows: dict[str, list[Row]] = field(default_factory=dict)

    def derive(self, declared: DerivedDeclaration, rows: pa.Table, run_id: str = "run") -> Derivation:
        """Commit all rows of a derived table as a run does, without Spark. The digests are not those of the rows."""
        digest = RowsDigest(rows.num_rows, 1)
        made = Derivation(
            declared.table,
            f"{run_id[:8]}-0",
            declared.digest,
            {},
            "groups",
            "",
            {"count": 1},
            {},
            RowsDigest(),
            digest,
            digest,
        )
        properties = CommitProperties(custom_metadata={"userMetadata": made.to_json()})
        write_deltalake(
            self.root / "derived" / declared.table.short, rows, mode="overwrite", commit_properties=properties
        )
        return made

    def __post_init__(self) -> None:
        new_tables.create(Folder.at(self.path), Schema.from_arrow(COLUMNS), name=self.topic, description="")

    @property
    def lake(self) -> Lake:
        """The lake."""
        return Lake.at(self.root)

    @property
    def path(self) -> Path:
        """Folder of the table."""
        return self.root / "decoded" / self.topic

    @property
    def version(self) -> int:
        """Newest version of the table."""
        return DeltaTable(self.path).version()

    def load(self, number: int, rows: list[Row]) -> str:
        """Replace the rows of a window, as a load does. Return the window's key."""
        of = window(number)
        self._replace(f"window = '{of.key}'", self._table(of.key, rows), self._metadata(of).to_json())
        self.windows[of.key] = list(rows)
        return of.key

    def erase(self, number: int, rows: list[Row]) -> None:
        """Replace the rows of a window, and delete all files of past versions, as an erasure does."""
        before = set(DeltaTable(self.path).file_uris())
        self.load(number, rows)
        for name in before - set(DeltaTable(self.path).file_uris()):
            Path(unquote(name)).unlink(missing_ok=True)

    def expire(self, numbers: list[int]) -> None:
        """Remove the rows of windows, as `keep` does."""
        each = tuple(self._metadata(window(n), expired="1 day") for n in numbers)
        keys = ", ".join(f"'{m.window.key}'" for m in each)
        self._replace(f"window IN ({keys})", self._table("", []), Expiry(uuid.uuid4().hex, each).to_json())
        for m in each:
            self.windows.pop(m.window.key, None)

    def compact(self) -> None:
        """Merge the files, as OPTIMIZE does."""
        DeltaTable(self.path).optimize.compact()

    def append(self, rows: list[Row], key: str) -> None:
        """Append rows as another writer might do."""
        write_deltalake(self.path, self._table(key, rows), mode="append")
        self.windows.setdefault(key, []).extend(rows)

    def table(self) -> pa.Table:
        """Return all rows that the table should have."""
        return pa.concat_tables([self._table("", []), *(self._table(key, rows) for key, rows in self.windows.items())])

    def _metadata(self, of: Window, **more: Any) -> LoadMetadata:
        ranges = TopicRanges({0: OffsetRange(0, 100)})
        return LoadMetadata(self.topic, TOPIC_ID, 1, of, ranges, uuid.uuid4().hex, "run", **more)

    def _table(self, key: str, rows: list[Row]) -> pa.Table:
        full = [
            {
                "topic_id": TOPIC_ID,
                "kafka_partition": 0,
                "kafka_offset": n,
                "kafka_timestamp": START,
                "window": key,
                **row,
            }
            for n, row in enumerate(rows)
        ]
        return pa.Table.from_pylist(full, COLUMNS)

    def _replace(self, predicate: str, rows: pa.Table, metadata: str) -> None:
        write_deltalake(
            self.path,
            rows,
            mode="overwrite",
            predicate=predicate,
            commit_properties=CommitProperties(custom_metadata={"userMetadata": metadata}),
        )


PLANES = pa.schema(
    [("tailnum", pa.string()), ("maker", pa.string()), ("seats", pa.int32()), ("kafka_offset", pa.int64())]
)


@dataclass
class Planes:
    """The table `state/<topic>` of a lake, and the row of each key that it should have."""

    root: Path
    topic: str = "planes"
    rows: list[Row] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """Folder of the table."""
        return self.root / "state" / self.topic

    def fold(self, rows: list[Row]) -> None:
        """Replace all rows and files, as a fold does."""
        self.rows = list(rows)
        # The metadata of a fold tells that a table without rows is not one that was only created.
        made = CommitProperties(custom_metadata={"userMetadata": f'{{"{FOLD_KEY}":1}}'})
        write_deltalake(self.path, self.table(), mode="overwrite", commit_properties=made)

    def forget(self) -> None:
        """Delete all files of past versions, as a fold after an erasure does."""
        held = {Path(unquote(name)) for name in DeltaTable(self.path).file_uris()}
        for name in set(self.path.glob("*.parquet")) - held:
            name.unlink()

    def table(self) -> pa.Table:
        """Return all rows that the table should have."""
        return pa.Table.from_pylist(self.rows, PLANES)


def planes(seed: random.Random, before: list[Row]) -> list[Row]:
    """Return planes with some rows of `before`, some with other values, and some new ones. Offsets always differ."""
    rows = {row["tailnum"]: row for row in before if seed.random() < 0.8}
    for _ in range(seed.randrange(3)):
        plane = {"maker": seed.choice(["A", "B", None]), "seats": seed.choice([None, 0, 5, 200])}
        name = seed.choice(["N1", "N2", "N3", "N4"])
        rows[name] = {"tailnum": name, **plane}
    return [{**row, "kafka_offset": seed.randrange(1 << 40)} for row in rows.values()]


def flights(seed: random.Random, number: int) -> list[Row]:
    """Return random rows of few days, carriers and planes, with nulls in each column."""
    return [
        {
            "time_hour": None if seed.random() < 0.05 else START + timedelta(hours=seed.randrange(5 * 24)),
            "carrier": seed.choice(["AA", "UA", "DL", None]),
            "tailnum": seed.choice(["N1", "N2", "N3", None]),
            "dep_delay": seed.choice([None, -5, 0, 7, 120]),
        }
        for _ in range(number)
    ]


def rows_of(lake: Lake, name: str) -> list[tuple[Any, ...]]:
    """Return all rows of a derived table, sorted, read with DuckDB's own reader of the files in the log."""
    table = DeltaTable(f"{lake.root}/derived/{name}")
    columns = ", ".join(f'"{f.name}"' for f in table.schema().fields)
    files = [unquote(uri) for uri in table.file_uris()]
    if not files:
        return []
    return sorted_rows(duckdb.connect().execute(f"SELECT {columns} FROM read_parquet(?)", [files]).fetchall())


def judged(sql: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a query in DuckDB's SQL over tables, sorted."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name, table in tables.items():
        connection.register(name, table)
    return sorted_rows(connection.execute(sql).fetchall())


def sorted_rows(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows in a fixed order, also if some values are null."""
    return sorted(rows, key=repr)


def key(number: int) -> str:
    """Return the key of an hourly window."""
    return key_of(window(number).start)
