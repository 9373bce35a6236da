"""`platform-assets status --watch`: the newest status in place on a terminal, one after the other elsewhere."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from datetime import UTC, datetime

from rich.console import Console
from rich.live import Live
from rich.text import Text

from platform_assets.cli.status_table import print_status
from platform_assets.errors import PlatformError
from platform_assets.model.untrusted import line
from platform_assets.orchestration.status import JSON_VERSION, Status
from platform_assets.terminal import console as console_of
from platform_assets.terminal import echo_json

INTERRUPTED = 130
"""Exit code if Ctrl-C comes before the first status; shells use the same code."""


def watch(look: Callable[[], Status], every: float, as_json: bool, console: Console | None = None) -> int:
    """Refresh every `every` seconds until Ctrl-C; return the exit code of the last status. If the status fails, for
    example because the YAML is now wrong, the error is shown, and the next refresh tries again.
    """
    console = console or console_of()
    last: Status | PlatformError | None = None
    in_place = console.is_terminal and not as_json
    # An alternate screen, so that the previous content comes back.
    live = Live(console=console, screen=True, auto_refresh=False) if in_place else None
    try:
        if live is not None:
            live.start()
        while True:
            last = _looked(look)
            if live is not None:
                live.update(_screen(last, every, console), refresh=True)
            else:
                _print(last, as_json, console)
            time.sleep(every)
    except KeyboardInterrupt:
        pass
    finally:
        if live is not None:
            live.stop()
    if last is None:
        return INTERRUPTED
    if live is not None:
        _print(last, as_json, console)
    return 0 if isinstance(last, Status) and last.healthy else 1


def _looked(look: Callable[[], Status]) -> Status | PlatformError:
    try:
        return look()
    except PlatformError as e:
        return e


def _print(found: Status | PlatformError, as_json: bool, console: Console) -> None:
    if as_json:
        echo_json(_document(found), indent=None)
    elif isinstance(found, Status):
        print_status(found, console)
    else:
        console.print(Text(line(f"platform-assets: {found}"), "yellow"), soft_wrap=True)


def _document(found: Status | PlatformError) -> dict[str, object]:
    if isinstance(found, Status):
        return found.to_json()
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"version": JSON_VERSION, "at": at, "tables": [], "error": str(found)}


def _screen(found: Status | PlatformError, every: float, console: Console) -> Text:
    """Return the output that fits the terminal. If not everything fits, problems come before rows, and a line says what
    was left out."""
    # Not on the console itself, which redraws the live display around each output.
    printed = io.StringIO()
    page = console_of(file=printed, force_terminal=True, width=console.width, color_system="standard")
    if isinstance(found, Status):
        print_status(found, page, attention_first=True)
    else:
        _print(found, False, page)
    text = Text.from_ansi(printed.getvalue().rstrip("\n"))
    lines = text.wrap(console, console.width)
    foot = f"refreshed every {every:g} s; Ctrl-C to stop"
    room = console.height - 2
    if len(lines) > room:
        foot = f"{len(lines) - room} more lines do not fit; {foot}"
    return Text("\n").join([*lines[:room], Text(foot, style="dim")])
