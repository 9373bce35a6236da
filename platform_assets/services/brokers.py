"""The brokers of one home: a single broker, or three brokers that each keep a copy of all data.

The storage of a home determines its number of brokers: the storage is formatted for a quorum of controllers, which does
not change afterwards.
"""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from platform_assets.services import broker, state
from platform_assets.services.broker import BrokerSettings, Member
from platform_assets.services.errors import ConfigurationError
from platform_assets.services.home import Home
from platform_assets.services.kafka_probe import answers, answers_securely
from platform_assets.services.ports import KAFKA_VARIABLE, LOOPBACK, PortWish, choose_each
from platform_assets.services.process import ProcessRecord, ServiceSpec, is_alive
from platform_assets.services.security import Security

BrokerService = Literal["kafka", "kafka-2", "kafka-3"]
ALL: Final[tuple[BrokerService, ...]] = ("kafka", "kafka-2", "kafka-3")
"""All broker services, in order of node id, from 1 on."""
FIRST: Final[BrokerService] = "kafka"
VARIABLES: Final[Mapping[str, str]] = {
    "kafka": KAFKA_VARIABLE,
    "kafka-2": "KAFKA_2_PORT",
    "kafka-3": "KAFKA_3_PORT",
}
"""Maps each broker to the environment variable that sets its client port."""

_QUORUM: Final = 2
"""Minimum number of brokers that must run in a home with three."""


def formatted(home: Home) -> tuple[BrokerService, ...]:
    """Return the brokers for which a home's storage was formatted. The result is empty before the first start."""
    found = [service for service in ALL if broker.cluster_of(home.root / service) is not None]
    if not found:
        return ()
    # `kafka` is formatted last, so if only its storage exists, it is a single broker.
    return ALL if set(found) - {FIRST} else (FIRST,)


def of_home(home: Home, asked: int | None) -> tuple[BrokerService, ...]:
    """Return the brokers of a home: the brokers for which its storage was formatted, or else as many brokers as
    requested, or else one broker.

    Raises:
        ConfigurationError: the storage was formatted for a different number of brokers than requested.
    """
    there = formatted(home)
    if not there:
        return ALL if asked == len(ALL) else (FIRST,)
    if asked is not None and asked != len(there):
        raise ConfigurationError(
            f"--brokers {asked}: the number of brokers is fixed: Kafka's storage in {home.root} was formatted for {len(there)}. "
            "Omit --brokers to start the existing brokers, or set PLATFORM_HOME to another folder for a new cluster."
        )
    return there


def security_of(home: Home) -> Security | None:
    """Return the credentials of a home's secured brokers and of their clients, or None if the brokers are not secured
    or do not exist yet.

    Raises:
        ConfigurationError: the credentials are damaged.
    """
    return Security.of_home(home) if formatted(home) else None


def cluster_id(home: Home) -> str | None:
    """Return the cluster id for which the storage was formatted, or None before the first start."""
    return next((found for service in ALL if (found := broker.cluster_of(home.root / service))), None)


def addresses(home: Home, records: Mapping[str, ProcessRecord]) -> str | None:
    """Return the brokers' addresses for clients, `host:port[,host:port…]`, or None if no broker is running.

    Brokers that are not running are included, because a broker keeps its address when it is restarted, and clients try
    one address after another.

    Args:
        home: the home of the brokers.
        records: the records of the services that are running.
    """
    if not any(service in records for service in ALL):
        return None
    return ",".join(
        records[service].address if service in records else own
        for service, own in _remembered(home)
        if service in records or own
    )


def remembered_addresses(home: Home) -> str:
    """Return the brokers' addresses in the form that `addresses` returns, but with the ports of the last start. The
    result is empty before the first start."""
    return ",".join(address for _, address in _remembered(home) if address)


class Brokers:
    """The brokers that one command starts. The ports of all brokers are chosen at once, because each broker must know
    the ports of the others."""

    def __init__(self, home: Home, settings: BrokerSettings, env: Mapping[str, str], wanted: Iterable[str]) -> None:
        """Store the arguments. No port is chosen and nothing is written before the first call of `spec`.

        Args:
            home: the home of the brokers.
            settings: heap, server properties, and the number of brokers.
            env: the environment to read.
            wanted: the services to be started. Those that are not brokers are ignored.

        Raises:
            ConfigurationError: as in `of_home`; or the home has no such broker; or too few brokers would run to elect a
                controller; or the home's storage was formatted for clients that authenticate differently.
        """
        self._home, self._settings, self._env = home, settings, env
        asked_for = frozenset(wanted)
        self._wanted = tuple(service for service in ALL if service in asked_for)
        # If the environment sets brokers, none is started, and no number can be wrong.
        self._services = of_home(home, settings.brokers if self._wanted else None)
        self._lock = threading.Lock()
        if self._wanted:
            self._refuse_other_security()
        self._members: dict[BrokerService, Member] = {}
        for service in self._wanted:
            if service not in self._services:
                raise ConfigurationError(
                    f"{service}: there is no such broker. The home {self._home.root} has one broker, {FIRST}. "
                    "For three brokers, set PLATFORM_HOME to a new folder and run `platform-assets up --brokers 3`."
                )
        if self._wanted and len({*self._running(), *self._wanted}) < min(_QUORUM, len(self._services)):
            raise ConfigurationError(
                f"{self._wanted[0]} cannot start alone: two of the three brokers must be running to elect a controller. "
                f"`platform-assets up --service {FIRST}` starts every broker that is not running."
            )

    def spec(self, service: BrokerService) -> ServiceSpec:
        """Return the spec to start one of the brokers. If the broker's storage is not formatted yet, format it.

        Raises:
            PortTakenError, ConfigurationError: a variable that sets a port is wrong, or a controller's port is in use.
            JavaNotFoundError: no Java was found.
            ServiceStartError: the storage could not be formatted.
        """
        with self._lock:
            if not self._members:
                self._members = self._planned()
                # `kafka` last, so that a command that dies in between does not leave a home that seems to have a single broker.
                for each in reversed(self._members.values()):
                    broker.format_storage(self._home, each)
        return broker.spec(self._home, self._members[service])

    def answers(self, service: BrokerService, record: ProcessRecord) -> bool:
        """Return True if the process that an earlier start recorded is this broker and still answers."""
        found, cluster, node = security_of(self._home), cluster_id(self._home) or "", ALL.index(service) + 1
        if found is None:
            return answers(LOOPBACK, record.ports[0], cluster, node)
        return answers_securely(LOOPBACK, record.ports[0], cluster, node, found.librdkafka())

    def client_environment(self) -> dict[str, str]:
        """Return the variables that clients of these brokers need. For a new home, create their values. The result is
        empty if the brokers are not secured.

        Raises:
            ConfigurationError: the existing credentials are damaged.
        """
        with self._lock:
            found = self._security()
        return {} if found is None else found.client_environment()

    def _security(self) -> Security | None:
        if formatted(self._home) or not self._wanted:
            return security_of(self._home)
        asked, there = self._settings.secure, Security.of_home(self._home)
        if asked is None or (there is not None and there.kind == asked):
            # Credentials of a start that did not format anything do not count.
            return None if asked is None else there
        return Security.make(self._home, asked)

    def _refuse_other_security(self) -> None:
        asked = self._settings.secure
        if asked is None or not formatted(self._home):
            return
        there = security_of(self._home)
        if there is None or there.kind != asked:
            has = "plain text without login" if there is None else f"--secure={there.kind}"
            raise ConfigurationError(
                f"--secure={asked}: security cannot be changed: Kafka's storage in {self._home.root} was formatted for {has}. "
                "Omit --secure to start the brokers as they are, or set PLATFORM_HOME to another folder for a new cluster."
            )

    def _running(self) -> dict[BrokerService, ProcessRecord]:
        records = state.read_records(self._home)
        return {s: record for s in self._services if (record := records.get(s)) is not None and is_alive(record)}

    def _planned(self) -> dict[BrokerService, Member]:
        """Return all brokers of the home, ready to be formatted and started."""
        running = self._running()
        ports = self._ports(running)
        voters = ",".join(f"{ALL.index(s) + 1}@{LOOPBACK}:{ports[s][1]}" for s in self._services)
        cluster, found = cluster_id(self._home) or _new_id(), self._security()
        return {
            service: broker.member(
                self._home, service, node, ports[service], voters, cluster, self._settings, self._env, found
            )
            for node, service in enumerate(self._services, 1)
        }

    def _ports(self, running: Mapping[BrokerService, ProcessRecord]) -> dict[BrokerService, tuple[int, int]]:
        """Return the client port and the controller port of each broker. A broker that is to be started keeps its
        previous ports if they are free."""
        found = {service: (record.ports[0], record.ports[1]) for service, record in running.items()}
        former = {s: (*state.remembered_ports(self._home, s), 0, 0)[:2] for s in self._services if s not in found}
        # A broker that is not started keeps its ports, which the others still have to know.
        found |= {s: (ports[0], ports[1]) for s, ports in former.items() if s not in self._wanted and all(ports)}
        starting = [service for service in former if service not in found]
        wishes = [w for s in starting for w in (PortWish(former[s][0], VARIABLES[s]), PortWish(former[s][1]))]
        chosen = choose_each(wishes, environ=self._env)
        for service, client, controller in zip(starting, chosen[::2], chosen[1::2], strict=True):
            known = former[service][1]
            if running and known and controller != known:
                raise ConfigurationError(
                    f"{service} must listen on port {known}, where the running brokers expect it, but another process "
                    "is using that port. End that process, or run `platform-assets down` and `platform-assets up` to choose new ports."
                )
            found[service] = (client, controller)
        for service in starting:
            state.remember_ports(self._home, service, found[service])
        return found


def _remembered(home: Home) -> list[tuple[BrokerService, str]]:
    """Return a list of a home's brokers and their addresses, using the ports of the last start. An address is empty
    before the broker's first start."""
    found = []
    for service in formatted(home) or (FIRST,):
        ports = state.remembered_ports(home, service)
        found.append((service, f"{LOOPBACK}:{ports[0]}" if ports else ""))
    return found


def _new_id() -> str:
    new = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # Kafka's own tool refuses an id that its option parser would read as a flag.
    return "0" + new[1:] if new.startswith("-") else new
