"""The embedded platform as a whole: starting and ending it, listing what is running, and the environment for its users."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from dotenv import dotenv_values

from platform_assets.services import (
    brokers,
    connect_probe,
    dagster_services,
    jars,
    project,
    registry,
    spark_server,
    state,
)
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.brokers import Brokers, BrokerService
from platform_assets.services.dagster_services import DAEMON, WEBSERVER
from platform_assets.services.errors import ConfigurationError
from platform_assets.services.home import Home
from platform_assets.services.jarlock import JarSet
from platform_assets.services.ports import (
    DAGSTER_VARIABLE,
    LOOPBACK,
    REGISTRY_VARIABLE,
    SPARK_VARIABLE,
    ensure_free,
    is_listening,
    port_of,
)
from platform_assets.services.process import ProcessRecord, is_alive
from platform_assets.services.spark_server import SparkSettings
from platform_assets.services.supervisor import Launch, Reporter, bring_up, end, end_all, signals_end_in_order

KAFKA_ADDRESS: Final = "KAFKA_BOOTSTRAP_SERVERS"
CLIENT_SETTINGS: Final = ("KAFKA_SECURITY_", "KAFKA_SASL_", "KAFKA_SSL_")
"""Prefixes of the variables for authentication and trust of Kafka clients."""
SPARK_ADDRESS: Final = "SPARK_REMOTE"
DAGSTER_FOLDER: Final = "DAGSTER_HOME"
LAKE_ROOT: Final = "LAKE_ROOT"
DEFINITIONS: Final = "PLATFORM_DEFS"
KEEP_RUNS: Final = "PLATFORM_KEEP_RUNS_DAYS"
ASSET_PREFIX: Final = "PLATFORM_ASSET_PREFIX"
REGISTRY_ADDRESS: Final = "SCHEMA_REGISTRY_URL"

_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_RESERVED: Final = (
    "KAFKA_",
    "SPARK_",
    "DAGSTER_",
    "LAKE_",
    "PLATFORM_",
    "JAVA_",
    "PYTHON",
    "PATH",
    "LD_",
    "AWS_",
    "SCHEMA_REGISTRY_",
    "REGISTRY_",
)

Service = Literal[BrokerService, "registry", "spark", "dagster-webserver", "dagster-daemon"]
SERVICES: Final[tuple[Service, ...]] = ("kafka", "spark", "dagster-webserver", "dagster-daemon")
"""Services that `up` starts by default. `kafka` stands for all brokers of the home."""
ALL_SERVICES: Final[tuple[Service, ...]] = get_args(Service)
"""All services, including the additional brokers of a home with three brokers, and the schema registry, which starts
only on request."""

_GIVEN_BY: Final[Mapping[Service, str]] = {
    **dict.fromkeys(brokers.ALL, KAFKA_ADDRESS),
    "registry": REGISTRY_ADDRESS,
    "spark": SPARK_ADDRESS,
    "dagster-webserver": DAGSTER_FOLDER,
    "dagster-daemon": DAGSTER_FOLDER,
}
_PORT_VARIABLE: Final[Mapping[str, str]] = {
    **brokers.VARIABLES,
    "registry": REGISTRY_VARIABLE,
    "spark": SPARK_VARIABLE,
    "dagster-webserver": DAGSTER_VARIABLE,
}
_ENGINES: Final = (*brokers.ALL, "registry", "spark")
_JARS: Final[tuple[tuple[JarSet, tuple[Service, ...]], ...]] = (
    ("broker", brokers.ALL),
    ("spark", ("spark",)),
    ("s3a", ("spark",)),
)
"""Sets of jars, each with the services that need it. The set `s3a` is needed only for a lake in an object store."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The services that `up` starts, and their settings.

    Attributes:
        services: the services to start, except for those that the environment sets. `kafka` stands for all brokers of
            the home.
        workspace: the Dagster workspace file; the project's own by default.
        broker: heap, server properties and number of the brokers.
        spark: heap, master and settings of Spark.
    """

    services: Sequence[Service] = SERVICES
    workspace: Path | None = None
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The present state of one service.

    Attributes:
        service: the name of the service.
        status: `running`; `starting`, even if the start was interrupted; `dead` if the service was started and has
            ended; `given` if the environment sets the service; otherwise `stopped`.
        address: the address at which the service listens, or the address that the environment sets, without secrets;
            None if there is no address.
        pid: the process id; None if the service does not run here.
        log: the log file; None if the service was never started.
    """

    service: Service
    status: Literal["running", "starting", "dead", "given", "stopped"]
    address: str | None = None
    pid: int | None = None
    log: str | None = None


def up(
    home: Home | None = None,
    options: UpOptions | None = None,
    *,
    report: Reporter = print,
    environ: Mapping[str, str] | None = None,
) -> tuple[ServiceState, ...]:
    """Start services that are not running and that the environment does not set. A second call starts only the services
    that have died since the first.

    A UI that was already running reloads its definitions, so edits are visible immediately.

    If a service fails or the program is interrupted, this call ends everything that it started.

    Args:
        home: the data folder; from the environment by default.
        options: the services to start, and their settings.
        report: called with a line of text for each step.
        environ: the environment to read; the process's own by default.

    Returns:
        The state of each service.

    Raises:
        ServiceStartError: a service did not start. The error contains the path of the service's log file.
        PortTakenError: a requested port is in use.
        JavaNotFoundError, JarsUnavailableError, JarMismatchError: a requirement of the services is missing, or differs
            from the lock.
        ConfigurationError: a setting is wrong, the run state is damaged, or edited definitions cannot be loaded.
        BusyError: another command is starting or ending services of this home.
    """
    env = os.environ if environ is None else environ
    place = home or Home.from_environment(env)
    chosen = options or UpOptions()
    begun = time.monotonic()
    with signals_end_in_order(), state.exclusive(place):
        theirs = given(place, environ=env)
        for service in chosen.services:
            if service in theirs:
                report(f"{service}: not started, because {_GIVEN_BY[service]} is set")
        wanted = [service for service in chosen.services if service not in theirs]
        if brokers.FIRST in wanted:
            all_brokers = brokers.of_home(place, chosen.broker.brokers)
            wanted = [*all_brokers, *(service for service in wanted if service not in all_brokers)]
        members = Brokers(place, chosen.broker, env, wanted)
        sets = _sets(place, wanted)
        if sets:
            jars.install(place, sets, report=report, environ=env)
        if "registry" in wanted:
            registry.install(place, report, env)
        engines = [_launch(place, service, chosen, env, members) for service in wanted if service in _ENGINES]
        dagster = [
            _launch(place, service, chosen, env, members) for service in wanted if service in (WEBSERVER, DAEMON)
        ]
        _check_ports(place, wanted, env)
        started: list[ProcessRecord] = []
        try:
            started += bring_up(place, engines, report)
            # Dagster needs the engines' addresses, so it comes after them.
            if dagster:
                dagster_services.prepare(place, env)
            started += bring_up(place, dagster, report)
        except BaseException:
            _end_in_order(place, {record.service: record for record in started}, report)
            raise
        _reload_what_ran(place, wanted, started, report)
    report(f"up after {time.monotonic() - begun:.1f} s")
    return running_state(place, environ=env)


def down(home: Home | None = None, *, services: Sequence[Service] = ALL_SERVICES, report: Reporter = print) -> int:
    """End the services that were started: Dagster first, and the brokers last and all at once.

    Args:
        home: the home of the services; from the environment by default.
        services: the services to end.
        report: called with a line of text for each step.

    Returns:
        The number of services that were running.

    Raises:
        ConfigurationError: the run state is damaged.
        BusyError: another command is starting or ending services of this home.
    """
    place = home or Home.from_environment()
    with state.exclusive(place):
        records = state.read_records(place)
        ended = _end_in_order(place, {s: record for s, record in records.items() if s in services}, report)
    if not ended:
        report("nothing was running")
    return ended


def restart(
    service: Service,
    home: Home | None = None,
    options: UpOptions | None = None,
    *,
    report: Reporter = print,
    environ: Mapping[str, str] | None = None,
) -> None:
    """If the service is running, end it; then start it. Raises what `up` raises."""
    place = home or Home.from_environment(environ)
    down(place, services=(service,), report=report)
    start_service(service, place, options, report=report, environ=environ)


def start_service(
    service: Service,
    home: Home,
    options: UpOptions | None = None,
    *,
    report: Reporter = print,
    environ: Mapping[str, str] | None = None,
) -> ProcessRecord:
    """Start a single service, even if the environment sets its address. Raises what `up` raises.

    Returns:
        The record of the service, which is ready.
    """
    env = os.environ if environ is None else environ
    chosen = options or UpOptions()
    with signals_end_in_order(), state.exclusive(home):
        members = Brokers(home, chosen.broker, env, [service])
        sets = _sets(home, [service])
        if sets:
            jars.install(home, sets, report=report, environ=env)
        if service == "registry":
            registry.install(home, report, env)
        if service in (WEBSERVER, DAEMON):
            dagster_services.prepare(home, env)
        bring_up(home, [_launch(home, service, chosen, env, members)], report)
        return state.read_records(home)[service]


def running_state(home: Home | None = None, *, environ: Mapping[str, str] | None = None) -> tuple[ServiceState, ...]:
    """Return the running services, using only the run state and the process table. This is fast, because no service is
    queried.

    Raises:
        ConfigurationError: the run state is damaged.
    """
    env = os.environ if environ is None else environ
    place = home or Home.from_environment(env)
    records, theirs = state.read_records(place), given(place, environ=env)
    shown = {*SERVICES, *records, *theirs, *brokers.formatted(place)}
    if brokers.FIRST in theirs:
        # The environment's address covers all of them.
        shown -= {*brokers.ALL} - {brokers.FIRST}
    return tuple(
        _given_state(service, env) if service in theirs else _state_of(service, records.get(service))
        for service in ALL_SERVICES
        if service in shown
    )


def reload(home: Home | None = None) -> bool:
    """Make the UI that `up` started reload its definitions. Return True if the UI is running. The daemon needs no
    request to reload its definitions.

    Raises:
        ConfigurationError: the UI did not answer, or the definitions cannot be loaded.
    """
    record = state.read_records(home or Home.from_environment()).get(WEBSERVER)
    if record is None or not is_alive(record) or not record.ready:
        return False
    dagster_services.reload(record.address)
    return True


def given(home: Home | None = None, *, environ: Mapping[str, str] | None = None) -> frozenset[Service]:
    """Return the services that the environment sets. They are not started here.

    An address of this home, as printed by `platform-assets env`, does not count, because this call is to start the
    service that uses this address.

    Raises:
        ConfigurationError: the run state is damaged.
    """
    env = os.environ if environ is None else environ
    place = home or Home.from_environment(env)
    records = state.read_records(place)
    absent = {*brokers.ALL} - {brokers.FIRST, *brokers.formatted(place)}
    return frozenset(
        s
        for s in ALL_SERVICES
        if s not in absent and (value := env.get(_GIVEN_BY[s])) and not _is_own(place, s, value, records)
    )


def variables(home: Home | None = None) -> dict[str, str]:
    """Return the variables for the definitions from `platform.env` in the data folder, such as the start of the demo.

    Raises:
        ConfigurationError: a line is not `NAME=value`, or sets a variable that only the environment may set.
    """
    place = home or Home.from_environment()
    if not place.variables_file.is_file():
        return {}
    found = {}
    for name, value in dotenv_values(place.variables_file, interpolate=False).items():
        if value is None or not _NAME.fullmatch(name):
            raise ConfigurationError(f"{place.variables_file}: {name!r} is not a line of the form NAME=value")
        if name.startswith(_RESERVED):
            raise ConfigurationError(f"{place.variables_file}: set {name} in the environment, not in this file")
        found[name] = value
    return found


def environment(home: Home | None = None, *, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that the platform's clients and definitions need. Variables in the environment take
    precedence.

    Args:
        home: the home of the services; from the environment by default.
        environ: the environment to read; the process's own by default.

    Returns:
        `KAFKA_BOOTSTRAP_SERVERS`, and for secured brokers the client settings (they contain the password: keep them out
        of logs); `SCHEMA_REGISTRY_URL`, `SPARK_REMOTE` (it contains the token: keep it out of logs too),
        `DAGSTER_HOME`, `LAKE_ROOT`; `PLATFORM_DEFS`, `PLATFORM_KEEP_RUNS_DAYS` and `PLATFORM_ASSET_PREFIX` if they are
        set; and the `variables`. If a service is not running and the environment does not set its address, the address
        is omitted.

    Raises:
        ConfigurationError: the run state or `platform.env` is damaged.
    """
    env = os.environ if environ is None else environ
    place = home or Home.from_environment(env)
    records = {name: record for name, record in state.read_records(place).items() if is_alive(record)}
    found = {**variables(place), DAGSTER_FOLDER: str(place.dagster), LAKE_ROOT: place.lake}
    found |= {name: env[name] for name in (DEFINITIONS, KEEP_RUNS, ASSET_PREFIX) if env.get(name)}
    if (kafka := brokers.addresses(place, records)) is not None:
        found[KAFKA_ADDRESS] = kafka
        if (security := brokers.security_of(place)) is not None:
            found |= security.client_environment()
    if (spark := records.get(spark_server.SERVICE)) is not None:
        found[SPARK_ADDRESS] = spark_server.remote(place, spark.address)
    if (own_registry := records.get(registry.SERVICE)) is not None:
        found[REGISTRY_ADDRESS] = own_registry.address
    own = {_GIVEN_BY[s] for s in ALL_SERVICES} - {_GIVEN_BY[s] for s in given(place, environ=env)}
    if KAFKA_ADDRESS in own:
        own |= {name for name in found if name.startswith(CLIENT_SETTINGS)}
    else:
        found = {name: value for name, value in found.items() if not name.startswith(CLIENT_SETTINGS)}
    known = {*found, KAFKA_ADDRESS, SPARK_ADDRESS, REGISTRY_ADDRESS} - own
    return found | {name: env[name] for name in known if env.get(name)}


def _end_in_order(home: Home, records: Mapping[str, ProcessRecord], report: Reporter) -> int:
    """End services, starting with those that depend on others. Return the number of services that were running."""
    ended = 0
    for service in reversed(ALL_SERVICES):
        if service in records and service not in brokers.ALL:
            ended += end(home, records[service], report)
    return ended + end_all(home, [records[s] for s in brokers.ALL if s in records], report)


def _sets(home: Home, services: Sequence[Service]) -> list[JarSet]:
    return [
        jar_set
        for jar_set, needing in _JARS
        if not {*needing}.isdisjoint(services) and (jar_set != "s3a" or home.is_in_store)
    ]


def _reload_what_ran(home: Home, wanted: Sequence[Service], started: Sequence[ProcessRecord], report: Reporter) -> None:
    """Make a UI that was already running reload its definitions. Services that this call started already have the
    current definitions."""
    fresh = {record.service for record in started}
    if WEBSERVER in wanted and WEBSERVER not in fresh:
        dagster_services.reload(state.read_records(home)[WEBSERVER].address)
        report(f"{WEBSERVER}: reloaded the definitions")
    if DAEMON in wanted and DAEMON not in fresh:
        report(f"{DAEMON}: reloads edited definitions by itself within a minute")


def _check_ports(home: Home, wanted: Sequence[Service], env: Mapping[str, str]) -> None:
    """Check every requested port before any service starts. Without this check, a port that is in use would be noticed
    only after other services had started, and all of these would have to be ended."""
    records = state.read_records(home)
    for service in wanted:
        variable = _PORT_VARIABLE.get(service)
        if variable is None or not (text := env.get(variable)):
            continue
        record = records.get(service)
        if record is None or not is_alive(record):
            ensure_free(port_of(text, variable), variable)


def _is_own(home: Home, service: Service, value: str, records: Mapping[str, ProcessRecord]) -> bool:
    """Return True if a variable has the value that `environment` returns for this home's own service, even if the
    service has ended in the meantime."""
    if service in (WEBSERVER, DAEMON):
        return value == str(home.root / "dagster")
    own = brokers.formatted(home) or (brokers.FIRST,) if service in brokers.ALL else (service,)
    ports = [port for each in own for port in state.remembered_ports(home, each)[:1]]
    if not ports or value != _own_address(home, service, ports[0]):
        return False
    # By now, another user's service may listen on that port.
    free = (each for each in own if (record := records.get(each)) is None or not is_alive(record))
    return not any(is_listening(port) for each in free for port in state.remembered_ports(home, each)[:1])


def _own_address(home: Home, service: Service, port: int) -> str:
    """Return the value that `environment` returns for this home's own service, using the ports of its last start."""
    if service in brokers.ALL:
        return brokers.remembered_addresses(home)
    if service == "registry":
        return registry.address(port)
    return spark_server.remote(home, f"sc://localhost:{port}")


def _given_state(service: Service, env: Mapping[str, str]) -> ServiceState:
    if service in (WEBSERVER, DAEMON):
        # The environment sets the home of these services. Only the owner of that home knows where they listen.
        return ServiceState(service, "given")
    # In a Connect address, parameters follow the first ";"; one of them is a token.
    return ServiceState(service, "given", env[_GIVEN_BY[service]].split(";")[0])


def _state_of(service: Service, record: ProcessRecord | None) -> ServiceState:
    if record is not None and is_alive(record):
        return ServiceState(service, "running" if record.ready else "starting", record.address, record.pid, record.log)
    if record is None:
        return ServiceState(service, "stopped")
    return ServiceState(service, "dead", log=record.log)


def _client_environment(home: Home, env: Mapping[str, str], members: Brokers) -> dict[str, str]:
    """Return the variables that clients of this home's own secured brokers need. The result is empty if the environment
    sets other brokers."""
    return {} if brokers.FIRST in given(home, environ=env) else members.client_environment()


def _launch(home: Home, service: Service, options: UpOptions, env: Mapping[str, str], members: Brokers) -> Launch:
    if service in ("kafka", "kafka-2", "kafka-3"):
        return Launch(service, lambda: members.spec(service), lambda record: members.answers(service, record))
    if service == "spark":
        return Launch(
            service,
            # Workers of the columnar engine read the Kafka client settings from its environment.
            lambda: spark_server.spark_spec(
                home, options.spark, environ=env, clients=_client_environment(home, env, members)
            ),
            lambda record: connect_probe.accepts(LOOPBACK, record.ports[0], spark_server.read_token(home) or ""),
        )
    if service == "registry":
        return Launch(
            service,
            lambda: registry.registry_spec(home, environ=env),
            lambda record: registry.answers(record.ports[0]),
        )
    workspace = options.workspace or project.workspace_file(env)
    if not workspace.is_file():
        raise ConfigurationError(
            f"the Dagster workspace file {workspace} does not exist: give the path of an existing file."
        )

    def changed(record: ProcessRecord) -> str:
        # Dagster receives the engines' addresses when it starts. It cannot reach an engine that has moved since.
        now = {**environment(home, environ=env), **dagster_services.storage_environment(env)}
        if service == WEBSERVER:
            now |= dagster_services.host_environment(env)
        return dagster_services.changed(record.fingerprint, now)

    if service == "dagster-webserver":
        return Launch(
            service,
            lambda: dagster_services.webserver_spec(home, workspace, environment(home, environ=env), environ=env),
            lambda record: dagster_services.web_answers(record.ports[0]),
            changed,
        )
    return Launch(
        service,
        lambda: dagster_services.daemon_spec(home, workspace, environment(home, environ=env), environ=env),
        lambda record: True,
        changed,
    )
