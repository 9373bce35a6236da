"""The checks of a raw table. Each check is defined by its module under `rules/`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from platform_assets.checks.check import Check
from platform_assets.checks.rules import accounted, agreement, deep_audit, no_duplicates, no_gaps

CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {check.name: check for check in (no_gaps.CHECK, no_duplicates.CHECK, accounted.CHECK, agreement.CHECK)}
)
"""Checks that are evaluated after each load, in this order."""

DEEP_AUDIT: Final = deep_audit.CHECK
"""Check that has its own schedule and time budget, and covers every window."""
