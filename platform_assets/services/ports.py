"""Choosing loopback ports: a requested port, the port of the last start, or a free port."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import psutil

from platform_assets.services.errors import ConfigurationError, PortTakenError

LOOPBACK: Final = "127.0.0.1"
KAFKA_VARIABLE: Final = "KAFKA_PORT"
SPARK_VARIABLE: Final = "SPARK_CONNECT_PORT"
DAGSTER_VARIABLE: Final = "DAGSTER_PORT"
REGISTRY_VARIABLE: Final = "REGISTRY_PORT"

GIVEN_PORTS: Final = range(20_000, 32_768)
"""Default ports of services. They are below the port range that Linux uses for outgoing connections. A port in that
range could be taken by an outgoing connection before the service listens on it."""


@dataclass(frozen=True, slots=True)
class PortWish:
    """One port to choose.

    Attributes:
        remembered: the port of the last start, which is used if it is free; 0 if there was no earlier start.
        variable: the environment variable that can request another port; None if there is no such variable.
    """

    remembered: int = 0
    variable: str | None = None


def choose_ports(
    count: int, variable: str, *, remembered: Iterable[int] = (), environ: Mapping[str, str] | None = None
) -> tuple[int, ...]:
    """Choose loopback ports for one service.

    The first port is the one that the environment requests. If it requests none, the port of the last start is used if
    it is free, so that addresses survive a restart. Each other port is the port of the last start if that is free, or
    else any free port.

    Args:
        count: the number of ports.
        variable: the environment variable that can request the first port.
        remembered: the ports of the last start, in the same order.
        environ: the environment to read; the process's own by default.

    Raises:
        PortTakenError: the requested port is in use. If the system reports the process that uses the port, the error
            contains its name.
        ConfigurationError: the value of the variable is not a port.
    """
    wanted = [*remembered, *([0] * count)][:count]
    wishes = [PortWish(port, None if at else variable) for at, port in enumerate(wanted)]
    return choose_each(wishes, environ=environ)


def choose_each(wishes: Sequence[PortWish], *, environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """Choose distinct loopback ports, one for each wish. The ports that the environment requests are chosen first.

    Raises:
        PortTakenError: a requested port is in use.
        ConfigurationError: the value of a variable is not a port, or is the same port as in another variable.
    """
    env = os.environ if environ is None else environ
    chosen: dict[int, int] = {}
    asked: dict[int, str] = {}
    with ExitStack() as held:
        for at, wish in enumerate(wishes):
            if wish.variable is None or not (text := env.get(wish.variable)):
                continue
            port = port_of(text, wish.variable)
            if port in asked:
                raise ConfigurationError(f"{asked[port]} and {wish.variable} are both {port}: give each its own port.")
            ensure_free(port, wish.variable)
            held.enter_context(_listener(port))
            chosen[at], asked[port] = port, wish.variable
        for at, wish in enumerate(wishes):
            if at not in chosen:
                # Each port is held until all ports are chosen, so that they are distinct.
                port = wish.remembered
                listener = held.enter_context(_listener(port) if port and is_free(port) else _free_listener())
                chosen[at] = int(listener.getsockname()[1])
    return tuple(chosen[at] for at in range(len(wishes)))


def port_of(text: str, variable: str) -> int:
    """Read a port number.

    Raises:
        ConfigurationError: the value is not a port.
    """
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise ConfigurationError(f"{variable}={text!r} is not a port: give a number from 1 to 65535, or unset it.")


def ensure_free(port: int, setting: str) -> None:
    """Check that nothing listens on a loopback port.

    Raises:
        PortTakenError: a process listens on the port.
    """
    if not is_free(port):
        raise PortTakenError(port, holder_of(port), setting)


def is_free(port: int) -> bool:
    """Return True if a server could listen on this port of both loopback addresses.

    `localhost` can resolve to `::1` first. A program that listens on the port there would receive the Spark token, so
    the port must be free on both addresses.
    """
    if not _can_bind(socket.AF_INET, LOOPBACK, port):
        return False
    return not socket.has_ipv6 or _can_bind(socket.AF_INET6, "::1", port)


def holder_of(port: int) -> str | None:
    """Return the process that listens on a port, for example `java (pid 4711)`; None if the system does not report the
    process."""
    try:
        for connection in psutil.net_connections("tcp"):
            if not connection.laddr or connection.status != psutil.CONN_LISTEN:
                continue
            if connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return None
    return None


def is_listening(port: int) -> bool:
    """Return True if a server accepts connections on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _can_bind(family: socket.AddressFamily, host: str, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Like servers: lingering connections of an earlier server are ignored.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        # A machine without IPv6 loopback has no listener there.
        return error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def _listener(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((LOOPBACK, port))
        # If the socket were only bound, another socket could be bound to the same port.
        sock.listen(1)
    except OSError:
        sock.close()
        raise
    return sock


def _free_listener() -> socket.socket:
    while True:
        port = secrets.choice(GIVEN_PORTS)
        if is_free(port):
            try:
                return _listener(port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:  # another process was faster: try another port
                    raise
