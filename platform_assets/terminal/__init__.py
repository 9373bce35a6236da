"""All output to a terminal. Nothing that the platform prints can control the terminal, whatever records, registries or
brokers contain. Control characters, including ESC, are shown as escapes, and square brackets are not markup. Only the
platform sets colors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from platform_assets.errors import PlatformError
from platform_assets.model.untrusted import document, line, lines

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: object = "", *, err: bool = False) -> None:
    """Print one line, on stderr if `err`."""
    click.echo(line(text), err=err)


def echo_lines(text: object, *, err: bool = False) -> None:
    """Print text with several lines. The line ends must come from the platform itself, not from quoted text."""
    click.echo(lines(text), err=err)


def echo_error(error: BaseException, before: str = "platform-assets: ") -> None:
    """Print an error on stderr: one line, or more if the error itself has several, such as mistakes in YAML."""
    show = echo_lines if isinstance(error, PlatformError) and error.has_lines else echo
    show(f"{before}{error}", err=True)


def echo_json(value: Any, indent: int | None = 2) -> None:
    """Print `value` as JSON."""
    click.echo(document(value, indent))


def console(*, stderr: bool = False, **options: Any) -> Console:
    """Return a rich console that does not interpret markup in text, and shows control characters as escapes."""
    from platform_assets.terminal.consoles import SafeConsole

    return SafeConsole(stderr=stderr, **options)
