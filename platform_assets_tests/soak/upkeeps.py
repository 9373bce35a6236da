"""Upkeep as an additional actor: the command runs repeatedly while faults strike, and is killed from time to time."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import psutil

from platform_assets_tests.soak.embedded import Embedded

_PAUSE: Final = 3.0
_PATIENCE: Final = 300.0
_ENDED: Final = {0: "ended", -9: "killed"}


@dataclass
class Upkeeps:
    """The command `upkeep` on a platform, for all windows that have ended. `outcomes` counts how the command's runs
    ended."""

    platform: Embedded
    outcomes: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)
    _running: subprocess.Popen[str] | None = None

    @contextmanager
    def working(self) -> Iterator[Upkeeps]:
        """Run the command repeatedly, with pauses, while the block runs."""
        stop = threading.Event()
        thread = threading.Thread(target=self._work, args=(stop,), name="upkeeps")
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def kill(self) -> bool:
        """If a run of the command is under way, kill it with SIGKILL. Return False if there is no such run."""
        running = self._running
        if running is None or running.poll() is not None:
            return False
        with suppress(psutil.NoSuchProcess):
            psutil.Process(running.pid).kill()
            return True
        return False

    def at_rest(self) -> None:
        """Run the command once more when all services are back. It must succeed."""
        code, text = self._once()
        if code:
            self.anomalies.append(f"`upkeep` exited with code {code} although all services are back: {text[-500:]}")

    def _work(self, stop: threading.Event) -> None:
        while not stop.wait(_PAUSE * random.random()):
            self._once()

    def _once(self) -> tuple[int, str]:
        began = time.monotonic()
        self._running = self.platform.begin("upkeep", "--quiet-hours", "0")
        try:
            text, _ = self._running.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._running.kill()
            text, _ = self._running.communicate()
            self.anomalies.append(f"upkeep did not end within {time.monotonic() - began:.0f} s: {text[-500:]}")
        code = self._running.returncode
        self.outcomes[_ENDED.get(code, "gave up with an error")] += 1
        if "Traceback" in text:
            self.anomalies.append(f"`upkeep` ended in a traceback: {text[-1000:]}")
        return code, text
