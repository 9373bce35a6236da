"""The whole demo as people run it: interrupted by Ctrl-C and by SIGKILL, then twice to its end."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra import platform
from testbed.homes import home_at, service_environment

CHECKOUT = Path(__file__).parents[2]


def demo(root: Path, interrupt_at: str | None = None, with_signal: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    """Run the demo to its end, or until a line matches `interrupt_at`."""
    home = home_at(root)
    environment = {**service_environment(), "PLATFORM_HOME": str(home.root), "PLATFORM_JARS": str(home.jars)}
    code = "from platform_assets.cli.main import main; main(['demo', '--once'])"
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if interrupt_at is not None and re.search(interrupt_at, line):
                process.send_signal(with_signal)
                interrupt_at = None
    return process.returncode, "".join(lines)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_interrupted_and_started_again_it_ends_exact(tmp_path: Path, rng: random.Random) -> None:
    root = tmp_path / "a folder"
    try:
        code, text = demo(root, r"flights [1-9][\d,]* of 336,776", signal.SIGKILL)
        assert code == -signal.SIGKILL, text
        loaded = rng.randrange(2, 20)
        code, text = demo(root, rf"planes .* {loaded}\d* of \d+ windows loaded")
        assert code == 130, text
        assert {s.status for s in platform.running_state(home_at(root), environ={})} <= {"stopped", "dead"}
        code, text = demo(root)
        assert code == 0, text
        for topic, rows in (("flights", "336,776"), ("weather", "26,115"), ("planes", "3,322")):
            assert f"{topic}: exact, each of {rows} rows once" in text
        code, again = demo(root)
        assert code == 0, again
        proof = re.compile(r"^ +(?:flights|weather|planes) +[\d,]+ +[\d,]+ +[\d,]+ ", re.MULTILINE)
        assert proof.findall(again) == proof.findall(text) != []
    finally:
        # Whatever the killed demo left running.
        platform.down(home_at(root), report=lambda line: None)
    assert "DEMO_START" in (root / "platform.env").read_text()
    assert os.listdir(root / "lake" / "raw") != []
