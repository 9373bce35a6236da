"""The services that `--service` names."""

from __future__ import annotations

import click

from infra.platform import SERVICES, Service


def chosen(names: tuple[str, ...]) -> tuple[Service, ...]:
    """The services of these names, in the order in which they start; all where none is named.

    Raises click.BadParameter for an unknown one.
    """
    unknown = sorted(set(names) - set(SERVICES))
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(SERVICES)}", param_hint="--service")
    return tuple(s for s in SERVICES if not names or s in names)
