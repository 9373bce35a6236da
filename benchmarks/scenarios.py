"""All scenarios by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks import bulk, code_location, many_windows, small_window, ticks, whole_window
from benchmarks.scenario import Bench, Measured

SCENARIOS: Mapping[str, Callable[[Bench], Measured]] = {
    "bulk": bulk.run,
    "code-location": code_location.run,
    "many-windows": many_windows.run,
    "ticks": ticks.run,
    "small-window": small_window.run,
    "whole-window": whole_window.run,
}
