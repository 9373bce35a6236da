"""Progress output on a terminal and in a log file."""

from __future__ import annotations

import io

from rich.console import Console

from platform_assets.demo.display import Display


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plain() -> tuple[Display, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    return Display(Console(file=out, highlight=False, width=40), clock), out, clock


def test_without_a_terminal_a_line_comes_every_few_seconds() -> None:
    display, out, clock = plain()
    with display.counters({"flights": 2_000, "planes": 10}) as counters:
        counters.advance("flights", 1)
        counters.note("planes", "1 of 2 windows loaded")
        assert out.getvalue() == ""
        clock.now = 5.0
        counters.advance("flights", 1_499)
        assert out.getvalue() == "  flights 1,500 of 2,000; planes 0 of 10, 1 of 2 windows loaded\n"
        counters.advance("planes", 10)
    assert out.getvalue().splitlines()[1:] == ["  flights 1,500 of 2,000; planes 10 of 10, 1 of 2 windows loaded"]


def test_what_was_told_last_is_not_told_again() -> None:
    display, out, clock = plain()
    with display.counters({"planes": 10}) as counters:
        for clock.now in (5.0, 10.0, 15.0):
            counters.note("planes", "none sealed")
    assert out.getvalue() == "  planes 0 of 10, none sealed\n"


def test_a_terminal_gets_bars() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=True, width=120))
    with display.counters({"flights": 4}) as counters:
        counters.advance("flights", 3)
        counters.note("flights", "1 of 2 windows loaded")
    assert "3/4" in out.getvalue()
    assert "1 of 2 windows loaded" in out.getvalue()


def test_brackets_in_a_path_are_no_markup_and_long_lines_stay_whole() -> None:
    display, out, _ = plain()
    path = "/data [red]/" + "x" * 100
    display.show(path)
    display.detail(path)
    assert out.getvalue() == f"{path}\n  {path}\n"
