"""A separate process of the platform that loads windows on request, and waits before each commit. Its parent writes
lines, each of which is a window's key or `go`. The rival answers with lines of JSON, which report that the rival is
waiting, or give the result of the load. The last argument names the topic and the lake. The addresses of the brokers
and of the object store are in the environment. The columnar engine's tasks run in this process itself instead of
Spark's workers, so each request to the store uses the environment of this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from platform_assets.engines.columnar import engine, task
from platform_assets.engines.columnar.engine import ColumnarEngine
from platform_assets.engines.columnar.work import Work
from platform_assets.engines.decoding.rows import in_order
from platform_assets.engines.protocol import NO_ROWS
from platform_assets.engines.shared.digests import measured
from platform_assets.engines.shared.reports import Report
from platform_assets.errors import PlatformError, Retryable, UnknownOutcome
from platform_assets.lake import data_files, holdings
from platform_assets.lake.commits import WindowCommit
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef
from platform_assets.services.home import CHECKOUT
from testbed.loads import TopicLake

_BLOCK_ROWS: Final = 16_384
_HOLDING: Final = {"holding": True}


class Rival:
    """The parent's handle for such a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._holds = False

    def begin(self, key: str, closed: datetime) -> None:
        """Make the rival load this window. `closed` is the newest closed edge."""
        self._say(f"{key} {closed.isoformat()}")

    def wait(self) -> dict[str, Any] | None:
        """Wait for the rival's next line. Return the result of the load, or None if the rival is waiting before its
        commit."""
        line = self._stdout.readline()
        assert line, "the process of a rival has ended"
        found: dict[str, Any] = json.loads(line)
        self._holds = found == _HOLDING
        return None if self._holds else found

    def go(self) -> None:
        """Let the rival commit."""
        self._say("go")

    def result(self) -> dict[str, Any]:
        """Wait for the result of the rival's load, and return the result."""
        found = self.wait()
        assert found is not None
        return found

    def _say(self, word: str) -> None:
        self._stdin.write(f"{word}\n")
        self._stdin.flush()


@contextmanager
def rival(lake: TopicLake, environment: Mapping[str, str]) -> Iterator[Rival]:
    """Run a rival that loads into `lake` until the block ends."""
    settings = {"topic": lake.topic, "root": str(lake.root), "address": str(lake.lake)}
    with subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(settings)],
        cwd=CHECKOUT,
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": lake.bootstrap, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Rival(process)
        finally:
            process.kill()


class _Gate:
    """Makes the first commit of each load wait."""

    def __init__(self) -> None:
        self.is_open = False
        replace = WindowCommit.replace

        def held(*arguments: Any) -> Any:
            if not self.is_open:
                self.is_open = True
                print(json.dumps(_HOLDING), flush=True)
                assert sys.stdin.readline() == "go\n"
            return replace(*arguments)

        WindowCommit.replace = held  # type: ignore[method-assign, assignment]


class _Engine(ColumnarEngine):
    """The columnar engine, except that it reads tables without Spark."""

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        folder = self.lake.table(table)
        held = holdings.window_files(pa.table(folder.delta(version).get_add_actions(flatten=True)))
        for key in keys:
            blocks = (b for path in held[key].paths for b in data_files.blocks(folder, path, key, _BLOCK_ROWS))
            yield key, sum((measured(in_order(block)) for block in blocks), NO_ROWS)


def _no_spark() -> Any:
    return None


def _in_process() -> None:
    """Run the engine's tasks in this process."""

    def reports(_: Any, work: Work, __: int) -> Generator[Report, None, None]:
        yield from task.reports(work, range(len(work.shares)))

    vars(engine).update(reports_of=reports, parallelism=lambda _: 2)


def _answer(lake: TopicLake, key: str) -> dict[str, Any]:
    try:
        loaded = lake.loader(engine=_Engine(lake.lake, lambda: lake.settings, _no_spark)).load(key)
    except (Retryable, UnknownOutcome) as e:
        return {"again": type(e).__name__, "message": str(e)}
    except Exception as e:  # noqa: BLE001 - whatever it is, the parent is told
        traceback.print_exc()
        return {"error": type(e).__name__, "message": str(e)}
    return {"outcome": loaded.outcome, "rows": loaded.receipt.rows}


def main() -> None:
    """Load windows on the parent's request until the input ends."""
    settings = json.loads(sys.argv[1])
    gate = _Gate()
    _in_process()
    lake = TopicLake(
        os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        settings["topic"],
        Path(settings["root"]),
        _no_spark,
        address=settings["address"],
    )
    while line := sys.stdin.readline():
        key, _, closed = line.strip().partition(" ")
        gate.is_open, lake.closed = False, datetime.fromisoformat(closed)
        print(json.dumps(_answer(lake, key)), flush=True)


if __name__ == "__main__":
    main()
