"""`status --watch`: it updates in place on a terminal, prints successive reports elsewhere, and has the right exit code
after Ctrl-C."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from platform_assets.cli import watching
from platform_assets.cli.watching import INTERRUPTED, watch
from platform_assets.errors import ConfigurationError, PlatformError
from platform_assets.orchestration.status import Status, TableStatus
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support.shell import Shell
from testbed.homes import service_environment
from testbed.samples import loaded, recorded


def table(name: str, error: str | None = None) -> TableStatus:
    return TableStatus(f"raw/{name}", name, 4, 4, 0, 0, 10, 0, None, None, 0, (), (), None, error)


GOOD, BAD = Status("good", (table("clicks"),)), Status("bad", (table("clicks", "its disk is full"),))


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace waiting by a list that records the requested waits."""
    waits: list[float] = []
    monkeypatch.setattr("platform_assets.cli.watching.time.sleep", waits.append)
    return waits


def looks(*found: Status | PlatformError) -> Callable[[], Status]:
    """Return these results one after the other, then act as if Ctrl-C had been pressed."""
    left = iter(found)

    def look() -> Status:
        each = next(left, None)
        if each is None:
            raise KeyboardInterrupt
        if isinstance(each, PlatformError):
            raise each
        return each

    return look


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([GOOD, BAD], 1),
        ([BAD, GOOD], 0),
        ([GOOD, ConfigurationError("a mistake in the YAML")], 1),
        ([ConfigurationError("a mistake in the YAML"), GOOD], 0),
        ([], INTERRUPTED),
    ],
)
def test_the_exit_code_is_that_of_the_last_status(
    no_waiting: list[float], found: list[Status | PlatformError], code: int
) -> None:
    console = Console(file=io.StringIO(), width=120)
    assert watch(looks(*found), 7.0, False, console) == code
    assert no_waiting == [7.0] * len(found)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("lake tables at") == sum(isinstance(each, Status) for each in found)
    assert ("a mistake in the YAML" in text) == any(isinstance(each, PlatformError) for each in found)


def test_json_is_one_document_a_line(no_waiting: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    assert watch(looks(GOOD, ConfigurationError("a mistake"), BAD), 1.0, True) == 1
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [d["at"] for d in (documents[0], documents[2])] == ["good", "bad"]
    assert (documents[1]["error"], documents[1]["tables"], documents[1]["version"]) == ("a mistake", [], 1)


def test_what_does_not_fit_the_terminal_is_the_rows_and_that_is_said() -> None:
    many = Status("now", (*(table(f"t{n:02}") for n in range(40)), table("last", "its disk is full")))
    lines = watching._screen(many, 5.0, Console(width=100, height=20, file=io.StringIO())).plain.splitlines()
    assert len(lines) <= 19
    assert "its disk is full" in lines[0]
    assert "more lines do not fit; refreshed every 5 s" in lines[-1]
    few = watching._screen(BAD, 5.0, Console(width=100, height=20, file=io.StringIO())).plain
    assert "fit" not in few
    assert few.splitlines()[-1] == "refreshed every 5 s; Ctrl-C to stop"


# --- the command itself ----------------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a shell with a topic whose windows are loaded, and no broker."""
    root = tmp_path / "lake"
    root.mkdir()
    for window in recorded(root, "clicks", [{0: n * 10} for n in range(4)]):
        loaded(root, window)
    shell = Shell(tmp_path / "project", {"LAKE_ROOT": str(root)})
    shell.declare("clicks")
    return shell


def started(shell: Shell, *arguments: str, stdout: int) -> subprocess.Popen[bytes]:
    environment = {**service_environment(), **shell.variables, "PYTHONPATH": str(CHECKOUT), "TERM": "xterm"}
    command = [
        sys.executable,
        "-c",
        "from platform_assets.cli.main import main; main()",
        "status",
        "--watch",
        *arguments,
    ]
    return subprocess.Popen(command, env=environment, stdout=stdout, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def read_until(file: int, done: Callable[[str], bool]) -> str:
    text = ""
    while not done(text):
        try:
            more = os.read(file, 1 << 16)
        except OSError:  # raised by a terminal whose other end is closed
            more = b""
        if not more:
            break
        text += more.decode(errors="replace")
    return text


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Return the two ends of a terminal of 120 columns and 40 lines: the viewer's and the program's."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    yield ours, theirs
    os.close(ours)


def test_a_terminal_shows_the_newest_status_in_place(shell: Shell, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    process = started(shell, "0.5", stdout=theirs)
    os.close(theirs)
    seen = read_until(ours, lambda text: text.count("lake tables at") >= 3)
    process.send_signal(signal.SIGINT)
    seen += read_until(ours, lambda text: False)
    # No broker answers, so the last status was bad.
    assert process.wait(60) == 1
    before, _, after = seen.partition("\x1b[?1049l")
    assert before.startswith("\x1b[?1049h"), "a screen of its own"
    assert before.count("\x1b[H") >= 3, "each from its upper left corner"
    assert "Ctrl-C to stop" in before
    # The last status stays in the terminal, as without --watch.
    assert after.count("lake tables at") == 1
    assert "3/3" in after
    assert "Traceback" not in seen


def test_without_a_terminal_each_status_is_a_line_of_json(shell: Shell) -> None:
    process = started(shell, "0.5", "--json", stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(60) == 1
    process.stdout.close()
    for line in (*lines, *rest.splitlines()):
        (row,) = json.loads(line)["tables"]
        assert (row["table"], row["windows_loaded"]) == ("raw/clicks", 3)
