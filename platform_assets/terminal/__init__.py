"""The only way to a terminal: nothing that the platform prints makes a terminal act, whatever records, registries or brokers said.

Control characters, ESC among them, are shown as escapes, and square brackets are no markup. The colours are the platform's own.
"""

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
    """Print text whose line ends are the platform's own."""
    click.echo(lines(text), err=err)


def echo_error(error: BaseException, before: str = "platform-assets: ") -> None:
    """Print what went wrong on stderr: one line, or more if the error has lines of its own, as mistakes in YAML do."""
    show = echo_lines if isinstance(error, PlatformError) and error.has_lines else echo
    show(f"{before}{error}", err=True)


def echo_json(value: Any, indent: int | None = 2) -> None:
    """Print `value` as JSON."""
    click.echo(document(value, indent))


def console(*, stderr: bool = False, **options: Any) -> Console:
    """A console of rich that takes no text for markup, and shows what a terminal would act on as escapes."""
    from platform_assets.terminal.consoles import SafeConsole

    return SafeConsole(stderr=stderr, **options)
