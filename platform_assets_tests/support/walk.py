"""Execution of pages: files are written, commands run in one shell, and outputs are compared.

The commands in a fence marked `bash` are run. The step fails at the first command that fails. If the next fence is
marked `text`, its lines must be in the output of these commands, in the same order; `…` stands for any text. A fence
with a title is a file with that name, which is written to the shell's current folder. All other fences are ignored.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_FENCE: Final = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BEGIN, _END = "\x1e", "\x1f"


@dataclass(frozen=True, slots=True)
class Step:
    """Commands in one fence, and the lines that must be in the output of these commands. `where` is used in messages."""

    where: str
    commands: str
    expected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """Combined standard output and error output of a step, and the exit code of the step. The exit code is None if the
    step never ended."""

    step: Step
    output: str
    code: int | None

    @property
    def fault(self) -> str | None:
        """Return the difference between the output and the page, or None if there is no difference."""
        if self.code != 0:
            return f"{self.step.where}: exit code {self.code}\n{self.step.commands}\n{self.output}"
        left = iter(self.output.splitlines())
        for line in self.step.expected:
            if not any(_matches(line, found) for found in left):
                return f"{self.step.where}: no line like {line!r} in the output\n{self.step.commands}\n{self.output}"
        return None


def _matches(line: str, found: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in re.split(r" *… *", line.strip()))
    return re.fullmatch(rf"\s*{pattern}\s*", found) is not None


def fences(page: str) -> Iterator[tuple[int, str, str | None, str]]:
    """Yield the line, language, title and text of each fence in `page`."""
    for fence in _FENCE.finditer(page):
        yield page.count("\n", 0, fence.start()) + 1, fence[1], fence[2], fence[3]


def steps(name: str, page: str) -> Iterator[Step]:
    """Yield the steps that a reader of `page` takes, in order."""
    last: Step | None = None
    for line, language, title, text in fences(page):
        if last is not None and language == "text":
            last = replace(last, expected=tuple(t for t in text.splitlines() if t.strip()))
        if last is not None:
            yield last
        where, last = f"{name}, line {line}", None
        if title is not None:
            path = shlex.quote(title)
            last = Step(where, f"mkdir -p \"$(dirname {path})\" && cat > {path} <<'END OF FILE'\n{text}END OF FILE")
        elif language == "bash":
            last = Step(where, text.rstrip())
    if last is not None:
        yield last


def walk(todo: Sequence[Step], folder: Path, environment: Mapping[str, str], *, timeout: float) -> Iterator[Done]:
    """Run the steps `todo` in one shell that starts in `folder`. The run ends at the first command that fails, or after
    `timeout` seconds."""
    script = folder.with_suffix(".sh")
    lines = ["set -eo pipefail"]
    for at, step in enumerate(todo):
        lines += [f"printf '{_BEGIN}%s\\n' {at}", step.commands, f"printf '{_END}'"]
    script.write_text("\n".join(lines) + "\n")
    output = folder.with_suffix(".out")
    with output.open("wb") as out:
        shell = subprocess.Popen(
            ["bash", str(script)],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            # So that a hanging command ends with its shell.
            start_new_session=True,
        )
        try:
            code: int | None = shell.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            code = None
    found = output.read_text(errors="replace")
    for part in found.split(_BEGIN)[1:]:
        number, _, told = part.partition("\n")
        text, ended, _ = told.partition(_END)
        yield Done(todo[int(number)], text, 0 if ended else code)
