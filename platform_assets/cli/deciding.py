"""Output and questions of the commands that record operators' decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from platform_assets.model.untrusted import line
from platform_assets.terminal import echo, echo_json

if TYPE_CHECKING:
    from platform_assets.ledger.decisions import Author
    from platform_assets.windows.decide.deciding import Deciding


def deciding(table: str, author: Author | None, *, quiet: bool = False, ask: bool = True) -> Deciding:
    """Return the object that makes decisions on the topic of `table`, with settings from the environment. If `quiet`,
    it prints nothing; unless `ask`, it asks no questions. Raises DeclarationsError and ConfigurationError."""
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import declaration_of
    from platform_assets.windows.decide.deciding import Deciding

    declaration, environment = declaration_of(table), Environment.of_process()
    return Deciding(
        declaration,
        environment.ledger(),
        environment.cluster,
        environment.settings,
        lambda: environment.engine(declaration.engine),
        author,
        _nothing if quiet else echo,
        _confirmed if ask else _nothing,
    )


def print_decision(version: int, decided: Deciding, found: Mapping[str, Any] | None) -> None:
    """Print the findings as JSON, together with whether they were accepted."""
    accepted = found is not None and decided.author is not None
    document = {"version": version, "topic": decided.declaration.topic, "accepted": accepted, **(found or {})}
    echo_json(document)


def _confirmed(question: str) -> None:
    click.confirm(line(question), abort=True)


def _nothing(_: str) -> None:
    """Print nothing, and ask for no confirmation."""
