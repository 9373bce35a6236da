"""Figures in the documentation: they equal the newest results. After a new measurement, the test names the pages to
update."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any, Final

import pytest

from platform_assets.services.home import CHECKOUT

IN_SPEED: Final = (
    "bulk", "topic-kinds", "decoding", "decoding-avro", "broken-avro", "whole-window", "many-windows", "memory", "streams",
)  # fmt: skip
"""Scenarios whose goals docs/speed.md states individually."""
BY_LOADS: Final = {
    "README.md": (
        "load by the columnar engine",
        "load by the connector engine",
        "Structured Streaming availableNow to Delta, as shipped",
        "Structured Streaming availableNow, its client and session tuned as ours",
        "evidence audit",
    ),
    "benchmarks/SCALE.md": ("load by the columnar engine",),
}


def newest(results: Path) -> dict[str, Any]:
    """Return the newest result of each scenario."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in results.glob("*.json") if re.fullmatch(r"\d{4}-\d\d-\d\d", p.stem)):
        found |= json.loads(path.read_text())["scenarios"]
    return found


SCENARIOS: Final = newest(CHECKOUT / "benchmarks" / "results")


def said(path: str) -> str:
    """Return a page's text in one line."""
    return " ".join((CHECKOUT / path).read_text().split())


def times(value: float) -> str:
    """Return a ratio in the format that the pages use."""
    return f"{value:.1f} ×" if value >= 10 else f"{value:.2f} ×"


def of_sizes(name: str) -> list[float]:
    """Return the seconds for `name`, for example a tick or a load, with tables of 10 to 100,000 windows."""
    return list(SCENARIOS["many-windows"]["more"]["curves"][f"seconds of {name} by windows in the table"].values())


@pytest.mark.parametrize("scenario", IN_SPEED)
def test_each_goal_is_told_as_it_was_measured_last(scenario: str) -> None:
    text = said("docs/speed.md")
    goals = {g["what"]: times(g["value"]) for g in SCENARIOS[scenario]["goals"] if g["unit"] == "×"}
    goals.pop("windows proved", None)  # all or nothing
    assert {what: figure for what, figure in goals.items() if f" {figure}" not in text} == {}


def test_goals_that_are_missed_are_told() -> None:
    text = said("docs/speed.md")
    missed = [g for name in IN_SPEED for g in SCENARIOS[name]["goals"] if not g["reached"]]
    figures = {g["what"]: times(g["value"]) if g["unit"] == "×" else f"{g['value']:.0f} {g['unit']}" for g in missed}
    assert {w: f for w, f in figures.items() if not re.search(rf" {re.escape(f)}.{{0,70}}\bmissed\b", text)} == {}
    assert bool(missed) == ("missed" in text)


@pytest.mark.parametrize("path", [*BY_LOADS, "docs/speed.md"])
def test_rates_are_those_that_were_measured_last(path: str) -> None:
    rates = SCENARIOS["bulk"]["more"]["records per second"]
    figures = {name: f"{round(rates[name], -3):,}" for name in BY_LOADS.get(path, rates)}
    assert {name: figure for name, figure in figures.items() if f" {figure} " not in said(path)} == {}


@pytest.mark.parametrize("path", ["README.md", "docs/speed.md", "benchmarks/SCALE.md"])
def test_a_small_window_takes_what_was_measured_last(path: str) -> None:
    rounds = SCENARIOS["small-window"]["rounds"]["the same, beyond the sensor's interval"]
    assert f" takes {statistics.median(rounds):.2f} s for 1,000 records" in said(path)


def test_tables_of_all_sizes_take_what_was_measured_last() -> None:
    ticks = [round(seconds * 1000) for seconds in of_sizes("tick")]
    assert f"A sensor tick takes {min(ticks)} to {max(ticks)} ms in tables of 10 to 100,000 windows" in said(
        "README.md"
    )
    whole = SCENARIOS["whole-window"]["more"]["median seconds"]["whole run"]
    assert f"A whole run of 1 million records takes {whole:.2f} s" in said("README.md")
    loads = [f"{seconds:.2f}" for seconds in of_sizes("load")]
    rows = {"tick": [f"{ms} ms" for ms in ticks], "load": [f"{seconds} s" for seconds in loads]}
    for row in rows.values():
        assert f"| {' | '.join(row)} |" in said("docs/speed.md")
    in_scale = f"tick {'/'.join(map(str, ticks))} ms; load {'/'.join(loads)} s;"
    assert in_scale in said("benchmarks/SCALE.md")


def test_streams_keep_the_head_room_that_was_measured_last() -> None:
    room = next(g["value"] for g in SCENARIOS["streams"]["goals"] if g["what"].startswith("head-room"))
    for path in ("docs/speed.md", "benchmarks/SCALE.md"):
        assert f"headroom of {times(room)}" in said(path)


def test_a_thousand_topics_take_what_was_measured_last() -> None:
    text = said("benchmarks/SCALE.md")
    hundred, thousand, pages = (SCENARIOS[name]["rounds"] for name in ("many-topics", "thousand-topics", "pages"))
    for what, rounds in thousand.items():
        figures = [f"{_three_digits(statistics.median(each))} s" for each in (hundred[what], rounds)]
        assert f"| {' | '.join(figures)} |" in text, what
    assert {n: f for n, each in pages.items() if (f := f"{n} {statistics.median(each):.2f} s") not in text} == {}


def _three_digits(seconds: float) -> str:
    return f"{seconds:.{2 if seconds < 10 else 1 if seconds < 100 else 0}f}"


def test_later_results_of_a_scenario_count_and_trials_do_not(tmp_path: Path) -> None:
    for name, scenarios in (("2026-01-02", {"a": 2}), ("2026-01-01", {"a": 1, "b": 1}), ("2026-01-03-quick", {"a": 3})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"scenarios": scenarios}))
    assert newest(tmp_path) == {"a": 2, "b": 1}


def test_each_scenario_is_described() -> None:
    names = re.findall(
        r'^    "([a-z-]+)": \w+\.run\w*,$', (CHECKOUT / "benchmarks" / "scenarios.py").read_text(), re.MULTILINE
    )
    assert set(names) > {*IN_SPEED, "file-formats"}
    assert [name for name in names if f"| `{name}` |" not in said("benchmarks/README.md")] == []
