"""All targets by scenario name. Each target's module is imported on request, so a process imports only what its cases
need."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

from platform_assets_tests.fuzzing.target import Target

TARGETS: Final[Mapping[str, str]] = {
    "fuzz-wire": "wires",
    "fuzz-decoders": "values",
    "fuzz-registry": "registries",
    "fuzz-yaml": "declarations",
    "fuzz-backups": "backups",
}
"""Module of each target."""


def target_of(name: str) -> Target:
    """Return the target with this scenario name, or, for tests, the target in the module with this name."""
    module = importlib.import_module(f"{__package__}.{TARGETS.get(name, name)}")
    target: Target = module.TARGET
    return target
