"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def by(command: Command) -> Command:
    """Add the option `--by`: the author of a decision."""
    text = "Your name; recorded in the ledger without verification, together with your uid. Default: your account."
    return click.option("--by", help=text)(command)


def yes(command: Command) -> Command:
    """Add the option `--yes`."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def reason(text: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return the option `--reason` of a decision, with the help `text`."""
    return click.option("--reason", help=text, **attributes)


def dry_run(text: str) -> Callable[[Command], Command]:
    """Return the option `--dry-run` with the help `text`."""
    return click.option("--dry-run", is_flag=True, help=text)


def as_json(text: str = "Print JSON, for scripts; see docs/commands.md.") -> Callable[[Command], Command]:
    """Return the option `--json` with the help `text`."""
    return click.option("--json", "as_json", is_flag=True, help=text)
