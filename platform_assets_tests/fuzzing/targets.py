"""All targets by scenario name. Each is imported on request, so the process of a case imports only what it needs."""

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
    """Return a target, or the target of a module with that name, for tests."""
    module = importlib.import_module(f"{__package__}.{TARGETS.get(name, name)}")
    target: Target = module.TARGET
    return target
