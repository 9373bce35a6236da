"""The whole demo as users run it: interrupted by Ctrl-C and by SIGKILL, then run twice to its end."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from platform_assets.services import platform
from platform_assets.services.platform import SERVICES
from testbed.homes import home_at, service_environment

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A signal to send, and the condition for sending it: a line matches the pattern `counted`, and the number in the
    pattern's only group is at least `least`.

    The demo reports its progress every few seconds, so it may skip any particular number.
    """

    number: signal.Signals
    counted: str
    least: int

    def is_due(self, line: str) -> bool:
        found = re.search(self.counted, line)
        return found is not None and int(found[1].replace(",", "")) >= self.least


SENT = r"flights ([\d,]+) of 336,782"
LOADED = r"planes .* (\d+) of \d+ windows loaded"


def demo(root: Path, interrupt: Interrupt | None = None) -> tuple[int, str]:
    """Run the demo to its end, or until it is interrupted."""
    home = home_at(root)
    environment = {**service_environment(), "PLATFORM_HOME": str(home.root), "PLATFORM_JARS": str(home.jars)}
    code = "from platform_assets.cli.main import main; main(['demo', '--once'])"
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if interrupt is not None and interrupt.is_due(line):
                process.send_signal(interrupt.number)
                interrupt = None
    return process.returncode, "".join(lines)


def running(root: Path) -> set[str]:
    return {s.service for s in platform.running_state(home_at(root), environ={}) if s.status == "running"}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_interrupted_and_started_again_it_ends_exact(tmp_path: Path, rng: random.Random) -> None:
    root = tmp_path / "a folder"
    streaming = Interrupt(signal.SIGKILL, SENT, rng.randrange(1, 290_000))
    # Services that the demo leaves running continue to load, and the next demo takes them over.
    loading = Interrupt(signal.SIGKILL, LOADED, rng.randrange(2, 25))
    taken_over = Interrupt(signal.SIGINT, SENT, rng.randrange(305_000, 330_000))
    print(streaming, loading, taken_over)
    try:
        for kill, left in ((streaming, {"kafka"}), (loading, set(SERVICES))):
            code, text = demo(root, kill)
            assert code == -signal.SIGKILL, text
            assert running(root) == left
        code, text = demo(root, taken_over)
        assert code == 130, text
        assert "taken over from a demo that was killed: dagster-daemon" in text
        assert running(root) == set()
        code, text = demo(root)
        assert code == 0, text
        for topic, rows in (("flights", "336,782"), ("weather", "26,117"), ("planes", "3,323")):
            assert f"{topic}: exact: each of the {rows} rows exists once" in text
        code, again = demo(root)
        assert code == 0, again
        proof = re.compile(r"^ +(?:flights|weather|planes) +[\d,]+ +[\d,]+ +[\d,]+ ", re.MULTILINE)
        assert proof.findall(again) == proof.findall(text) != []
    finally:
        # End whatever the killed demo left running.
        platform.down(home_at(root), report=lambda line: None)
    assert "DEMO_START" in (root / "platform.env").read_text()
    assert os.listdir(root / "lake" / "raw") != []
