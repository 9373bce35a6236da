"""All scenarios by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks import bulk, code_location
from benchmarks.scenario import Bench, Measured

SCENARIOS: Mapping[str, Callable[[Bench], Measured]] = {
    "bulk": bulk.run,
    "code-location": code_location.run,
}
