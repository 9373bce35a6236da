"""What a topic's runs select: the tables that it has, and the checks of those that are decoded."""

from __future__ import annotations

import dagster as dg

from platform_assets.checks import decoded as checks
from platform_assets.checks.registry import CHECKS
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration.names import table_key


def tables_of(declaration: TopicDeclaration) -> list[dg.AssetKey]:
    """The assets of a topic that one run loads: its raw table, and those that are made from it."""
    raw = [table_key(declaration.raw_table)]
    return raw if declaration.decode is None else raw + decoded_keys(declaration)


def decoded_keys(declaration: TopicDeclaration) -> list[dg.AssetKey]:
    """Those that are made from the raw table."""
    return [table_key(declaration.decoded_table), table_key(declaration.dead_letter_table)]


def check_keys(declaration: TopicDeclaration) -> list[dg.AssetCheckKey]:
    """The checks of decoded tables; none where nothing is decoded."""
    if declaration.decode is None:
        return []
    names = (*checks.NAMES, *(e.name for e in declaration.decode.expect))
    return [dg.AssetCheckKey(table_key(declaration.decoded_table), name) for name in names]


def blocking_keys(declaration: TopicDeclaration) -> list[dg.AssetCheckKey]:
    """The checks of the raw table that hold back what is made from it while they fail."""
    return [dg.AssetCheckKey(table_key(declaration.raw_table), c.name) for c in CHECKS.values() if c.blocking]
