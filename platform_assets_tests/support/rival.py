"""A platform in a process of its own that loads one window after the other, as its parent says, and waits before each commit.

Its parent says a window's key a line, and `go`; it answers by a JSON object a line: that it holds, or what came of the load. Its last
argument names the topic and lake; brokers, Spark's server and the object store are in its environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from infra.home import CHECKOUT
from platform_assets.engines.spark.session import connect
from platform_assets.errors import Retryable, UnknownOutcome
from platform_assets.lake.commits import WindowCommit
from testbed.loads import TopicLake

_HOLDING: Final = {"holding": True}


class Rival:
    """Such a process, as its parent has it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._holds = False

    def begin(self, key: str, closed: datetime) -> None:
        """Have it load this window, when `closed` is the newest edge that has passed."""
        self._say(f"{key} {closed.isoformat()}")

    def wait(self) -> dict[str, Any] | None:
        """What came of it; None where it holds before its commit."""
        line = self._stdout.readline()
        assert line, "the process of a rival has ended"
        found: dict[str, Any] = json.loads(line)
        self._holds = found == _HOLDING
        return None if self._holds else found

    def go(self) -> None:
        """Let it commit."""
        self._say("go")

    def result(self) -> dict[str, Any]:
        """What came of it, once it is let go."""
        found = self.wait()
        assert found is not None
        return found

    def _say(self, word: str) -> None:
        self._stdin.write(f"{word}\n")
        self._stdin.flush()


@contextmanager
def rival(lake: TopicLake, remote: str, environment: Mapping[str, str]) -> Iterator[Rival]:
    """A rival that loads into `lake` until the block ends."""
    settings = {"topic": lake.topic, "root": str(lake.root), "address": str(lake.lake), "engine": lake.engine_name}
    with subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(settings)],
        cwd=CHECKOUT,
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": lake.bootstrap, "SPARK_REMOTE": remote, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Rival(process)
        finally:
            process.kill()


class _Gate:
    """Holds the first commit of each load."""

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


def _answer(lake: TopicLake, key: str) -> dict[str, Any]:
    try:
        loaded = lake.load(key)
    except (Retryable, UnknownOutcome) as e:
        return {"again": type(e).__name__, "message": str(e)}
    except Exception as e:  # noqa: BLE001 - whatever it is, the parent is told
        traceback.print_exc()
        return {"error": type(e).__name__, "message": str(e)}
    return {"outcome": loaded.outcome, "rows": loaded.receipt.rows}


def main() -> None:
    """Load what the parent says, until it says no more."""
    settings = json.loads(sys.argv[1])
    gate = _Gate()
    session: list[Any] = []

    def spark() -> Any:
        session[:] = session or [connect(os.environ["SPARK_REMOTE"])]
        return session[0]

    lake = TopicLake(
        os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        settings["topic"],
        Path(settings["root"]),
        spark,
        engine_name=settings["engine"],
        address=settings["address"],
    )
    while line := sys.stdin.readline():
        key, _, closed = line.strip().partition(" ")
        gate.is_open, lake.closed = False, datetime.fromisoformat(closed)
        print(json.dumps(_answer(lake, key)), flush=True)


if __name__ == "__main__":
    main()
