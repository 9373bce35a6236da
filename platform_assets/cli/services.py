"""The services that `--service` names."""

from __future__ import annotations

import click

from platform_assets.services.platform import ALL_SERVICES, SERVICES, Service


def chosen(names: tuple[str, ...], *, registry: bool = False) -> tuple[Service, ...]:
    """Return the named services in their start order. Without names, return all services, but the registry only if
    `registry` is true.

    When services are started, `kafka` means all brokers in the home. Raises click.BadParameter for an unknown name.
    """
    unknown = sorted(set(names) - set(ALL_SERVICES))
    if unknown:
        raise click.BadParameter(
            f"{unknown[0]!r} is not a service; use one of {', '.join(ALL_SERVICES)}", param_hint="--service"
        )
    wanted = {*(names or SERVICES), *(["registry"] if registry else [])}
    return tuple(s for s in ALL_SERVICES if s in wanted)
