"""Printing hostile text: all of it is visible, and it cannot move the cursor, add colors or links, or hide anything."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.table import Table
from rich.text import Text

from platform_assets.cli import main
from platform_assets.cli.audit_table import progress
from platform_assets.cli.status_table import print_status
from platform_assets.errors import ConfigurationError, DeclarationsError
from platform_assets.model.logs import logger
from platform_assets.orchestration.health import CheckStatus
from platform_assets.orchestration.status import Status, TableStatus
from platform_assets.services import process
from platform_assets.services.errors import ServiceStartError
from platform_assets.terminal import console, echo, echo_error, echo_json, echo_lines
from platform_assets_tests.support import services
from testbed.homes import home_at

HOSTILE = "\x1b[2J\x1b]8;;https://evil.ex\x07[link=https://evil.ex]x[/link] [bold]b[/bold] \x9b31m \u202e\r\nall is well :boom:"
SHOWN = r"\x1b[2J\x1b]8;;https://evil.ex\x07[link=https://evil.ex]x[/link] [bold]b[/bold] \x9b31m \u202e\r\nall is well :boom:"


def printed(run: click.Command) -> tuple[str, str]:
    result = CliRunner().invoke(run)
    return result.stdout, result.stderr


def test_lines_errors_and_json_make_no_terminal_act() -> None:
    @click.command()
    def run() -> None:
        echo(HOSTILE)
        echo_lines("one\ntwo\x1b")
        echo_json({"a": HOSTILE})
        echo_error(ConfigurationError(HOSTILE))
        echo_error(DeclarationsError([f"a.yaml:1: {HOSTILE[:4]}", "b.yaml:2: two"]))

    out, err = printed(run)
    first, second, third, rest = out.split("\n", 3)
    assert (first, second, third) == (SHOWN, "one", r"two\x1b")
    assert json.loads(rest) == {"a": HOSTILE}
    assert all(c == "\n" or c.isprintable() for c in out + err)
    assert err.splitlines() == [
        f"platform-assets: {SHOWN}",
        "platform-assets: 2 mistakes in the definitions; nothing was done.",
        r"a.yaml:1: \x1b[2J",
        "b.yaml:2: two",
    ]


def test_the_end_of_a_log_keeps_its_lines(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    home.prepare()
    spec = services.spec_of(home, "thing", f"print({HOSTILE[:4] + 'one'!r}, 'two', sep=chr(10)); raise SystemExit(1)")
    with pytest.raises(ServiceStartError) as failed:
        process.wait_ready(spec, process.spawn(spec, process.planned(spec)))

    @click.command()
    def run() -> None:
        echo_error(failed.value)

    _, err = printed(run)
    assert err == (
        "platform-assets: thing did not start: the process ended; the last lines of its log:\n"
        f"\\x1b[2Jone\ntwo\nIts log: {spec.log}\n"
    )


def test_an_error_of_a_command_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("broken")
    def broken() -> None:
        raise ConfigurationError(HOSTILE)

    monkeypatch.setitem(main.main.commands, "broken", broken)
    result = CliRunner().invoke(main.main, ["broken"])
    assert (result.exit_code, result.stderr) == (1, f"platform-assets: {SHOWN}\n")


def test_a_traceback_shows_what_a_terminal_would_act_on(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError("by\x1b[2J")
    main._print_traceback(ValueError, error, None)
    assert capsys.readouterr().err == "ValueError: by\\x1b[2J\n"


def test_a_console_has_its_own_colours_alone() -> None:
    file = io.StringIO()
    made = console(file=file, force_terminal=True, color_system="standard", width=400)
    made.print(HOSTILE)
    made.print(Text(HOSTILE, "bold"))
    table = Table("[red]a[/red]")
    table.add_row("[link=x]" + HOSTILE)
    made.print(table)
    text = file.getvalue()
    assert "[bold]b[/bold]" in text
    assert "\x1b[1m" in text, "the style of the second line"
    for mark in ("\x1b[2J", "\x1b]8", "\x9b", "\u202e", "\r", "\x07"):
        assert mark not in text
    assert "[red]a[/red]" in text


def test_progress_on_a_terminal_takes_nothing_for_markup() -> None:
    file = io.StringIO()
    with progress(console(file=file, force_terminal=True, width=300)) as tell:
        tell(HOSTILE)
    assert "\x1b]8" not in file.getvalue()


@pytest.mark.parametrize("width", [60, 400])
def test_status_shows_what_brokers_and_checks_say(width: int) -> None:
    file = io.StringIO()
    failed = CheckStatus("[bold]no_gaps", False, None, HOSTILE)
    table = TableStatus("raw/x", "x", 4, 4, 0, 0, 10, 0, None, None, 0, (), (failed,), None, None, problems=(HOSTILE,))
    found = Status("now", (table,), HOSTILE)
    print_status(found, console(file=file, width=width))
    text = file.getvalue()
    assert text.count(SHOWN) == 3
    assert "[bold]no_gaps FAILED" in text
    assert all(c == "\n" or c.isprintable() for c in text)


def test_a_message_of_a_log_is_one_line_of_the_place_that_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    log = logger("platform_assets.x")
    with caplog.at_level(logging.INFO, "platform_assets.x"):
        log.warning("the broker says %s", HOSTILE)
        log.debug("unformatted %d", "nothing is formatted below the level")
    (record,) = caplog.records
    assert record.getMessage() == f"the broker says {SHOWN}"
    assert record.funcName == "test_a_message_of_a_log_is_one_line_of_the_place_that_logs_it"
