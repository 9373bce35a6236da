"""Choice of ports: ports that are in use, ports remembered from an earlier start, and free ports."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_assets.services import ports
from platform_assets.services.errors import ConfigurationError, PortTakenError


@pytest.fixture
def taken() -> Iterator[int]:
    """Return a port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_port_asked_for_and_taken_names_port_holder_and_setting(taken: int) -> None:
    with pytest.raises(PortTakenError) as caught:
        ports.choose_ports(1, "KAFKA_PORT", environ={"KAFKA_PORT": str(taken)})
    assert caught.value.port == taken
    assert f"pid {os.getpid()}" in str(caught.value)
    assert "KAFKA_PORT" in str(caught.value)


def test_port_taken_on_the_other_loopback_address_counts_as_taken() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback address")
    with server:
        assert not ports.is_free(server.getsockname()[1])


def test_remembered_port_is_reused_when_free() -> None:
    (first,) = ports.choose_ports(1, "X", environ={})
    assert ports.choose_ports(1, "X", remembered=(first,), environ={}) == (first,)


def test_remembered_port_that_is_taken_gives_way(taken: int) -> None:
    chosen = ports.choose_ports(2, "X", remembered=(taken, taken), environ={})
    assert taken not in chosen
    assert len(set(chosen)) == 2


def test_port_asked_for_wins_over_the_remembered(taken: int) -> None:
    (asked,) = ports.choose_ports(1, "X", environ={})
    assert ports.choose_ports(2, "X", remembered=(taken, taken), environ={"X": str(asked)})[0] == asked


def test_one_port_remembered_twice_is_given_once() -> None:
    (port,) = ports.choose_ports(1, "X", environ={})
    assert len(set(ports.choose_ports(2, "X", remembered=(port, port), environ={}))) == 2


@pytest.mark.parametrize("text", ["", "0", "65536", "http", "-1", "１２"])
def test_no_port_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="DAGSTER_PORT"):
        ports.port_of(text, "DAGSTER_PORT")


def test_no_outgoing_connection_gets_a_port_that_was_given() -> None:
    """If the port were in the range for outgoing connections, such a connection could take it before the service
    listens."""
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not outgoing.exists():
        pytest.skip("the system does not say which ports outgoing connections get")
    first, last = map(int, outgoing.read_text().split())
    if first < ports.GIVEN_PORTS.stop:
        pytest.skip(f"this machine gives outgoing connections ports from {first} on")
    given = ports.choose_ports(20, "NONE_SUCH", environ={})
    assert [port for port in given if first <= port <= last] == []


def test_a_port_that_somebody_took_just_now_is_not_given(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose, first = secrets.choice, iter([taken])
    monkeypatch.setattr(ports, "is_free", lambda port: True)
    monkeypatch.setattr("platform_assets.services.ports.secrets.choice", lambda some: next(first, None) or choose(some))
    (given,) = ports.choose_ports(1, "NONE_SUCH", environ={})
    assert given != taken
