"""The services that `--service` names."""

from __future__ import annotations

import click

from platform_assets.services.platform import ALL_SERVICES, SERVICES, Service


def chosen(names: tuple[str, ...], *, registry: bool = False) -> tuple[Service, ...]:
    """The services of these names, in the order in which they start; where none is named, all but the registry.

    With `registry`, it is among them. `kafka` stands for all brokers of the home where it is started.

    Raises click.BadParameter for an unknown one.
    """
    unknown = sorted(set(names) - set(ALL_SERVICES))
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(ALL_SERVICES)}", param_hint="--service")
    wanted = {*(names or SERVICES), *(["registry"] if registry else [])}
    return tuple(s for s in ALL_SERVICES if s in wanted)
