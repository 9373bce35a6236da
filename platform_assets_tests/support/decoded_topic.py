"""A topic's lake with decoded tables, made by the real decoding code. The decoding tasks run in this process, without
Spark."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import dagster as dg

from platform_assets.checks.report.rendering import as_event
from platform_assets.engines.decoding import task
from platform_assets.engines.decoding.engine import DecodeEngine, Plan
from platform_assets.engines.decoding.reading import measured_window
from platform_assets.engines.decoding.work import Report
from platform_assets.errors import FilesLostError, PlatformError
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.digest import Measured
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import decoded_checks, events, execution
from platform_assets.windows.change.changing import WindowChanger
from platform_assets.windows.decode.decoding import DecodedWindow, WindowDecoder
from platform_assets.windows.load.receipts import empty_receipt
from platform_assets_tests.support import tables
from platform_assets_tests.support.local_engine import LocalEngine
from testbed import samples

ORDERS: Final = DecodeDeclaration(
    FormatSpec("json", {"schema": "id BIGINT NOT NULL, amount DECIMAL(12, 2)"}), warn_share=0.1, fail_share=0.3
)
"""Declared format of the values that `value` returns."""


class InProcessEngine(DecodeEngine):
    """An engine that decodes like Spark's workers, but in this process, and reads tables without Spark."""

    def _parallelism(self) -> int:
        return 2

    def _reports(self, plan: Plan) -> Generator[Report, None, None]:
        if plan.shares:
            # As Spark sends it.
            work = pickle.loads(pickle.dumps(self._work(plan)))
            yield from (Report.from_json(r.to_json()) for r in task.reports(work, range(len(work.shares))))

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        if table.kind == "raw":
            yield from LocalEngine(self.lake).measure(table, keys, version)
            return
        for key in keys:
            try:
                yield key, measured_window(self.lake.table(table), key, version)
            except FilesLostError as error:
                yield key, error


class DecodedTopic:
    """A topic with hourly windows, which are decoded as `declared`. Its raw table below `root` is hand-made."""

    def __init__(self, root: Path, topic: str, declared: DecodeDeclaration = ORDERS) -> None:
        self.root, self.topic, self.declared = root, topic, declared
        self.lake = Lake.at(root)
        self.ledger = Ledger(self.lake)
        self.windows: list[SealedWindow] = []
        self.partitions = 1
        self.records_per_file = tables.declaration(topic).records_per_file
        self.state: StateDeclaration | None = None

    @property
    def declaration(self) -> TopicDeclaration:
        """The topic's current declaration."""
        made = tables.declaration(self.topic)
        return replace(made, decode=self.declared, records_per_file=self.records_per_file, state=self.state)

    @property
    def decoder(self) -> WindowDecoder:
        """Return a decoder that decodes windows by the current declaration."""
        return WindowDecoder(self.declaration, self.ledger, InProcessEngine(self.lake, tables_without_spark))

    @property
    def changer(self) -> WindowChanger:
        """Return what makes changes by the current declaration."""
        return WindowChanger(self.declaration, self.ledger)

    def load(self, *windows: Sequence[bytes | samples.Keyed | None]) -> list[str]:
        """Write these values to the raw table as loaded windows, one window for each list of values, in alternating
        partitions. Return the keys of the windows."""
        ends = [dict.fromkeys(range(self.partitions), 0)]
        for values in windows:
            ends.append({p: end + len(values[p :: self.partitions]) for p, end in ends[-1].items()})
        self.windows = samples.recorded(self.root, self.topic, ends)
        for window, values in zip(self.windows, windows, strict=True):
            held = {
                (p, r.start + n): value
                for p, r in window.ranges.items()
                for n, value in enumerate(values[p :: self.partitions])
            }
            if not held:
                self.ledger.record_receipts([empty_receipt(self.declaration.raw_table, window, "")])
                continue
            samples.loaded(self.root, window, values=held, holes={}, proved_by="load digest")
        return [window.key for window in self.windows]

    def decode(self, *keys: str, instance: dg.DagsterInstance | None = None) -> list[DecodedWindow]:
        """Decode these windows, or by default all windows. With an `instance`, also report the windows and evaluate the
        checks."""
        wanted = keys or tuple(window.key for window in self.windows)
        decoder = self.decoder
        if instance is None:
            return [decoder.decode(key) for key in wanted]
        done: list[DecodedWindow] = []
        for attempt in execution.decode_each(decoder, wanted, lambda: None):
            if attempt.error is not None:
                raise attempt.error
            done += [] if attempt.done is None else [attempt.done]
        for window in done:
            for event in events.decoded_events(window, decoder.declaration, decoder.ledger.lake):
                instance.report_runless_asset_event(event)
        self.evaluate_checks(instance, *wanted)
        return done

    def evaluate_checks(self, instance: dg.DagsterInstance, *keys: str) -> None:
        """Evaluate the checks of these windows, and report them to `instance`."""
        d = self.decoder
        for found in decoded_checks.results(d.declaration, d.declared, d.ledger, instance, list(keys)):
            instance.report_runless_asset_event(as_event(found))


def tables_without_spark() -> None:
    """Fail if a Spark session is requested within the block."""
    raise AssertionError("unreachable: tables are read without Spark")


def order(number: int) -> bytes:
    """Return a value that the declared format can decode."""
    return b'{"id": %d, "amount": %d.50}' % (number, number)
