"""A topic whose windows are loaded and decoded in this process, and a search for bytes in every file of its lake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from platform_assets.checks.decoded import conserved, windows_of
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.proving import prove_by_reading
from platform_assets.checks.registry import CHECKS
from platform_assets.engines.protocol import Records
from platform_assets.lake import raw_table
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Lake
from platform_assets.ledger import cut_ranges
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.expectations import Expectation
from platform_assets.model.tables import TableKind
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets.windows.erase.erasure import Erasure
from platform_assets.windows.load.receipts import receipt_of
from platform_assets.windows.load.replacing import Loaded, WindowReplacer
from platform_assets_tests.support.decoded_topic import InProcessEngine, tables_without_spark
from platform_assets_tests.support.local_engine import Kept, LocalEngine
from testbed import samples

AUTHOR = Author("somebody", "asked to be forgotten")
FORM = Expectation("value_pattern", "pattern", ("value",), pattern="[a-z0-9-]*")
ONCE = Expectation("value_once", "unique", ("value",))
DECODE = DecodeDeclaration(FormatSpec("string"), key=FormatSpec("string"), expect=(FORM, ONCE))


@dataclass
class MadeTopic:
    """A topic with windows of `hours`. `records` are the records in Kafka. If the lake is in an object store, `address`
    is the lake's address in the store, and the store's files are below `root`."""

    root: Path
    topic: str = "people"
    records: list[Kept] = field(default_factory=list)
    address: str | None = None
    hours: int = 1

    def __post_init__(self) -> None:
        self.lake = Lake.at(self.address or self.root)
        self.ledger = Ledger(self.lake)
        self.declaration = TopicDeclaration(self.topic, f"0 */{self.hours} * * *", samples.START, decode=DECODE)
        self.engine = LocalEngine(self.lake, self.records)
        raw_table.create(self.lake.table(self.declaration.raw_table), self.topic)

    def seal(self, windows: Sequence[Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]]) -> list[SealedWindow]:
        """Add the (key, value) pairs of each window and partition to Kafka, each pair at the next offset, and record
        the cuts between the windows."""
        ends: list[dict[int, int]] = [dict.fromkeys(sorted({p for w in windows for p in w}), 0)]
        for number, window in enumerate(windows):
            at = dict(ends[-1])
            for partition, pairs in window.items():
                for key, value in pairs:
                    moment = samples.edge(number * self.hours)
                    self.records.append(Kept(partition, at[partition], key, value, moment))
                    at[partition] += 1
            ends.append(at)
        self.records.sort(key=lambda r: (r.partition, r.offset))
        return samples.recorded(self.address or self.root, self.topic, ends, self.hours)

    def load(self, window: SealedWindow, before_commit: Callable[[], None] = lambda: None) -> Loaded:
        """Load a window without querying Kafka. Leave out the records that the ledger lists as erased."""
        without = self.ledger.accepted_losses(self.declaration.raw_table, window.key)
        replacer = self.replacer
        commit, receipt = replacer.open(), replacer.receipt(window.key)
        records = Records(
            window.topic, window.topic_id, window.key, window.ranges, without, commit.is_flat, commit.field_ids()
        )
        metadata = LoadMetadata(
            window.topic, window.topic_id, window.generation, window.window, window.ranges, f"load-{len(self.log)}", "run",
            cut_ranges.first_cut(self.ledger, window.topic, window.generation, window.window.start),
            erased=erased_of(self.ledger, window.topic, [window.key]).get(window.key, {}),
        )  # fmt: skip

        def write(load_id: str) -> Any:
            return self.engine.write(records, self.declaration.raw_table, load_id, self.declaration.records_per_file)

        if receipt is None:
            return replacer.first(commit, metadata, write, before_commit)
        return replacer.again(commit, receipt, metadata, write, before_commit)

    def load_many(self, windows: Sequence[SealedWindow], together: int = 50) -> None:
        """Load windows for the first time, several at a time, as for a backlog."""
        table, rows = self.declaration.raw_table, self.declaration.records_per_file
        for at in range(0, len(windows), together):
            opened, receipts = self.replacer.open(), []
            for w in windows[at : at + together]:
                first = cut_ranges.first_cut(self.ledger, w.topic, w.generation, w.window.start)
                metadata = LoadMetadata(
                    w.topic, w.topic_id, w.generation, w.window, w.ranges, f"load of {w.key}", "run", first
                )
                records = Records(w.topic, w.topic_id, w.key, w.ranges, {}, opened.is_flat, opened.field_ids())
                written = self.engine.write(records, table, metadata.load_id, rows)
                made = opened.of_new_window().replace(replace(metadata, engine=written.engine), written.files)
                receipts.append(receipt_of(self.lake, table, made, written.measured, kind="load", seconds=0.1))
            self.ledger.record_receipts(receipts)

    @property
    def log(self) -> list[Path]:
        """Return the files of the raw table's commits."""
        return sorted((self.root / "raw" / self.topic / "_delta_log").glob("*.json"))

    @property
    def replacer(self) -> WindowReplacer:
        """Return the object that replaces windows of the raw table."""
        return WindowReplacer(self.declaration.raw_table, self.ledger, self.engine, "run")

    def decoder(self, **declared: Any) -> WindowDecoder:
        """Return a decoder of windows. `declared` contains the differences from the declaration `DECODE`."""
        engine = InProcessEngine(self.lake, tables_without_spark)
        return WindowDecoder(
            replace(self.declaration, decode=replace(DECODE, **declared)), self.ledger, engine, run_id="run"
        )

    def fill(self, windows: Sequence[SealedWindow], *, decode: bool = True) -> None:
        """Load and decode all windows."""
        for window in windows:
            self.load(window)
            if decode:
                self.decoder().decode(window.key)

    @property
    def erasure(self) -> Erasure:
        """Return the object that erases records of the topic."""
        return Erasure(self.declaration, self.ledger)

    def receipts(self, kind: TableKind = "raw") -> dict[str, Receipt]:
        """Map each window key to the window's receipt."""
        return self.ledger.receipts(replace(self.declaration.raw_table, kind=kind))

    def values(self, kind: TableKind = "raw") -> list[Any]:
        """Return the values of all rows of a table, in the order of partition and offset."""
        folder = self.lake.table(replace(self.declaration.raw_table, kind=kind))
        rows = (
            folder.delta().to_pyarrow_table().sort_by([("kafka_partition", "ascending"), ("kafka_offset", "ascending")])
        )
        return rows["value"].to_pylist()  # type: ignore[no-any-return]


def found_in(root: Path, needle: bytes) -> list[str]:
    """List the files and columns below `root` that contain the bytes, either in a raw file or in an unpacked column of
    a Parquet file."""
    places = []
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        content = path.read_bytes()
        name = str(path.relative_to(root))
        if needle in content or needle in str(path).encode():
            places.append(name)
        if content[:4] == b"PAR1":
            table = pq.ParquetFile(pa.BufferReader(content)).read()
            places += [f"{name}: {column}" for column in table.column_names if _has(table[column], needle)]
    return places


def _has(column: pa.ChunkedArray, needle: bytes) -> bool:
    return any(needle in buffer.to_pybytes() for buffer in _buffers(column))


def _buffers(column: pa.ChunkedArray) -> Iterator[pa.Buffer]:
    for chunk in column.chunks:
        yield from (buffer for buffer in chunk.buffers() if buffer is not None)


def shown(places: Sequence[str]) -> str:
    """Format the places for the message of a failing test."""
    return json.dumps(list(places), indent=1)


def proved(topic: MadeTopic) -> None:
    """Check that every check of the raw table passes, that the receipts match the table's files, and that decoded rows
    and dead letters match the raw rows."""
    evaluation = evaluation_of(topic)
    for name, check in CHECKS.items():
        check_result = check.evaluate(evaluation)
        assert check_result.passed, (name, check_result)
    assert not prove_by_reading(evaluation, evaluation.facts(fresh=True), list(topic.receipts())).findings
    check_result = conserved(windows_of(topic.declaration, topic.ledger))
    assert check_result.passed, check_result


def evaluation_of(topic: MadeTopic) -> Evaluation:
    """Return the evaluation that checks of the raw table use. It does not query any broker."""
    return Evaluation(topic.declaration, topic.ledger, Orchestration(), _nobody, _nobody, topic.engine)


def _nobody() -> NoReturn:
    raise AssertionError("brokers were asked")
