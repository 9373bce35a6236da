"""All targets by the name of their scenario. Each is imported when it is asked for: a case's process has what that needs alone."""

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
"""The module of each."""


def target_of(name: str) -> Target:
    """Return a target, or the one of a module of that name, for tests."""
    module = importlib.import_module(f"{__package__}.{TARGETS.get(name, name)}")
    target: Target = module.TARGET
    return target
