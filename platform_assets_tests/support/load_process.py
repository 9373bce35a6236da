"""A run in a separate process, for tests that race with this process or kill it.

`python -m platform_assets_tests.load_process '{"topic": …, "root": …, "closed": …, "key": …}'`, with the addresses of
the brokers and the Spark server in the environment. The last line of its output is a JSON object with the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support import in_process
from testbed.loads import TopicLake


class LoadProcess:
    """The parent's handle for such a process. The process ends with the block.

    With `hold`, the process waits for `go` before it commits.
    """

    def __init__(self, lake: TopicLake, key: str, remote: str, *, hold: bool = False, dagster: bool = False) -> None:
        settings = {
            "topic": lake.topic,
            "root": str(lake.root),
            "address": str(lake.lake),
            "closed": lake.closed.isoformat(),
            "start": lake.start.isoformat(),
            "records_per_file": lake.records_per_file,
            "engine": lake.engine_name,
            "key": key,
            "hold": hold,
            "dagster": dagster,
            "in_process": in_process.is_used(),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "platform_assets_tests.support.load_process", json.dumps(settings)],
            cwd=CHECKOUT,
            env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": lake.bootstrap, "SPARK_REMOTE": remote},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout

    def __enter__(self) -> LoadProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.returncode is None:
            self.kill()

    def wait_for_hold(self) -> None:
        """Wait until the process has reached its commit and is waiting for `go`."""
        assert self._stdout.readline() == "holding\n"

    def go(self) -> None:
        """Let the process commit."""
        self._stdin.write("go\n")
        self._stdin.flush()

    def result(self, seconds: float = 120) -> dict[str, Any]:
        """Wait for the process to end and return its result."""
        output, _ = self.process.communicate(timeout=seconds)
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        assert self.process.returncode == ("error" in found)
        return found

    def kill(self) -> None:
        """Kill the process as the system would, so that no handler runs."""
        self.process.kill()
        self.process.communicate(timeout=30)


def _hold() -> None:
    """Make each load wait for the parent's signal just before it commits."""
    from platform_assets.lake.commits import WindowCommit

    commit = WindowCommit.replace

    def held(*arguments: Any) -> Any:
        print("holding", flush=True)
        sys.stdin.readline()
        return commit(*arguments)

    WindowCommit.replace = held  # type: ignore[method-assign, assignment]


def _lake(settings: Mapping[str, Any]) -> TopicLake:
    from platform_assets.engines.shared.session import connect

    return TopicLake(
        os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        settings["topic"],
        Path(settings["root"]),
        lambda: connect(os.environ["SPARK_REMOTE"]),
        settings["records_per_file"],
        datetime.fromisoformat(settings["closed"]),
        datetime.fromisoformat(settings["start"]),
        address=settings["address"],
        engine_name=settings["engine"],
    )


def _load(settings: Mapping[str, Any]) -> dict[str, Any]:
    loaded = _lake(settings).load(settings["key"])
    return {"outcome": loaded.outcome, "rows": loaded.receipt.rows, "kind": loaded.receipt.kind}


def _materialize(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Load through Dagster, with Dagster's retries."""
    import dagster as dg

    from platform_assets_tests.support.runs_of import failure_of, materialize

    with dg.DagsterInstance.ephemeral() as instance:
        result = materialize(_lake(settings), os.environ["SPARK_REMOTE"], [settings["key"]], instance)
        events = [e.event_type_value for e in result.all_events]
        found: dict[str, Any] = {"success": result.success, "retries": events.count("STEP_UP_FOR_RETRY")}
        return found if result.success else {**found, "error": "run failed", "message": failure_of(result)}


def main() -> int:
    """Load one window and print the result."""
    settings = json.loads(sys.argv[1])
    if settings["in_process"]:
        in_process.replace_spark(pytest.MonkeyPatch())
    if settings["hold"]:
        _hold()
    try:
        found = _materialize(settings) if settings["dagster"] else _load(settings)
    except Exception as e:  # noqa: BLE001 - whatever it is, the parent is told
        traceback.print_exc()
        found = {"error": type(e).__name__, "message": str(e)}
    print(json.dumps(found), flush=True)
    return int("error" in found)


if __name__ == "__main__":
    sys.exit(main())
