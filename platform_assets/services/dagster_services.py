"""The Dagster UI and daemon, which run on the project's workspace."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import yaml

from platform_assets.services import extras, state
from platform_assets.services.errors import ConfigurationError, DagsterConfigurationError
from platform_assets.services.home import Home
from platform_assets.services.inherited import EVERYTHING
from platform_assets.services.ports import DAGSTER_VARIABLE, LOOPBACK, choose_ports
from platform_assets.services.process import ServiceSpec
from platform_assets.services.secret_files import SUFFIX, secret
from platform_assets.services.web_guard import HOSTS_VARIABLE, AllowedHosts

WEBSERVER: Final[Literal["dagster-webserver"]] = "dagster-webserver"
DAEMON: Final[Literal["dagster-daemon"]] = "dagster-daemon"
INSTANCE_FILE: Final = Path(__file__).with_name("dagster.yaml")
START_TIMEOUT_SECONDS: Final = 240.0
RELOAD_TIMEOUT_SECONDS: Final = 240.0
POSTGRES_VARIABLE: Final = "DAGSTER_POSTGRES_URL"
"""Variable that contains the address `postgresql://user:password@host:port/database`. If it is set, Dagster stores runs
and events there instead of in SQLite."""

# Proxy settings of the environment do not apply to loopback.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_RELOAD: Final = """mutation {
  reloadWorkspace {
    ... on Workspace { locationEntries { locationOrLoadError { ...failure } } }
    ...failure
  }
}
fragment failure on PythonError { message errorChain { error { message } } }"""

_STORAGE: Final = f"""
storage:
  # Runs, events and ticks are in PostgreSQL. The address, including the password, is only in the environment.
  postgres:
    postgres_url:
      env: {POSTGRES_VARIABLE}
"""

_STORAGE_FILE: Final = f"""
storage:
  # Runs, events and ticks are in PostgreSQL. {POSTGRES_VARIABLE}{SUFFIX} names the file with the address, password
  # included.
  custom:
    module: platform_assets.services.postgres_storage
    class: PostgresStorage
"""

_FORMER_MODULE: Final = re.compile(r"^(\s*module:\s*)infra\.", re.MULTILINE)
"""Pattern for the previous name of this package, which instance settings from earlier releases contain."""

_DAEMON_READY: Final = b"Instance is configured with the following daemons"


def prepare(home: Home, environ: Mapping[str, str] | None = None) -> None:
    """Create `DAGSTER_HOME` with the project's instance settings, unless it has settings already. Also create Dagster's
    storage.

    If the settings are from an earlier release, they refer to modules in `infra`; these module names are replaced with
    their present names.

    The storage is created here because the UI and the daemon start at the same time. Both would try to create the
    storage, and one of them would die.

    Args:
        home: the home that contains `DAGSTER_HOME`.
        environ: the environment to read; the process's own by default. If it contains `DAGSTER_POSTGRES_URL`, new
            settings use that variable for the address of the storage.

    Raises:
        ConfigurationError: the folder cannot be written, or Dagster does not accept its settings or does not reach its
            storage.
    """
    env = os.environ if environ is None else environ
    settings, url = home.dagster / "dagster.yaml", secret(env, POSTGRES_VARIABLE)
    in_file = bool(env.get(POSTGRES_VARIABLE + SUFFIX))
    storage = _STORAGE_FILE if in_file else _STORAGE
    if url:
        _check_library()
    try:
        home.dagster.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not settings.exists():
            written = settings.with_suffix(".new")
            written.write_text(INSTANCE_FILE.read_text() + (storage if url else ""))
            os.replace(written, settings)
        text = settings.read_text()
        if _FORMER_MODULE.search(text):
            text = _FORMER_MODULE.sub(r"\1platform_assets.services.", text)
            written = settings.with_suffix(".new")
            written.write_text(text)
            os.replace(written, settings)
    except OSError as error:
        raise ConfigurationError(f"DAGSTER_HOME {home.dagster} cannot be written: {error}") from error
    named = POSTGRES_VARIABLE in text
    if named and not url:
        raise ConfigurationError(
            f"{settings} reads the address of its storage from {POSTGRES_VARIABLE}, which is not set: set it, or remove `storage` "
            "from the file to start over with SQLite"
        )
    if in_file and named and "platform_assets.services.postgres_storage" not in text:
        raise DagsterConfigurationError(
            f"{POSTGRES_VARIABLE}{SUFFIX} is set, but {settings} reads only {POSTGRES_VARIABLE}. Replace `storage` "
            f"in that file with these lines, or set {POSTGRES_VARIABLE} instead:{storage}"
        )
    if url and not named and not _names_storage(text):
        raise DagsterConfigurationError(
            f"{POSTGRES_VARIABLE} is set, but {settings} does not use it: add these lines to the file to start over "
            "with PostgreSQL (`platform-assets report-loads` then reports earlier loads to Dagster), or unset "
            f"the variable. The lines:{storage}"
        )
    if url or not (home.dagster / "history" / "runs.db").exists():
        _create_storage(home, env)


def webserver_spec(
    home: Home, workspace: Path, addresses: Mapping[str, str], *, environ: Mapping[str, str] | None = None
) -> ServiceSpec:
    """Return the spec to start the UI.

    Args:
        home: the home of the service.
        workspace: the workspace file. Its folder becomes the working directory.
        addresses: the variables that the workspace's code needs, as returned by `platform.environment`.
        environ: the environment to read; the process's own by default.

    Raises:
        PortTakenError, ConfigurationError: `DAGSTER_PORT` or `PLATFORM_UI_HOSTS` is wrong, or the port is in use.
    """
    env = os.environ if environ is None else environ
    hosts = host_environment(env)
    AllowedHosts.parse(hosts.get(HOSTS_VARIABLE, ""))
    (port,) = choose_ports(1, DAGSTER_VARIABLE, remembered=state.remembered_ports(home, WEBSERVER), environ=env)
    state.remember_ports(home, WEBSERVER, (port,))
    return ServiceSpec(
        name=WEBSERVER,
        command=(
            sys.executable, "-m", "platform_assets.services.webserver", "--host", LOOPBACK, "--port", str(port),
            "--workspace", str(workspace),
        ),
        environment=_environment(home, {**addresses, **hosts}, env),
        directory=workspace.parent,
        log=home.log_file(WEBSERVER),
        address=f"http://{LOOPBACK}:{port}",
        ports=(port,),
        timeout=START_TIMEOUT_SECONDS,
        ready=lambda: web_answers(port),
        fingerprint=fingerprint({**addresses, **storage_environment(env), **hosts}),
        inherits=EVERYTHING,
    )  # fmt: skip


def daemon_spec(
    home: Home, workspace: Path, addresses: Mapping[str, str], *, environ: Mapping[str, str] | None = None
) -> ServiceSpec:
    """Return the spec to start the daemon, which runs sensors, the run queue and run monitoring. The arguments are
    those of `webserver_spec`."""
    log = home.log_file(DAEMON)
    return ServiceSpec(
        name=DAEMON,
        command=(sys.executable, "-m", "dagster._daemon", "run", "--workspace", str(workspace)),
        environment=_environment(home, addresses, environ),
        directory=workspace.parent,
        log=log,
        address=str(home.dagster),
        ports=(),
        timeout=START_TIMEOUT_SECONDS,
        ready=lambda: log.is_file() and _DAEMON_READY in log.read_bytes(),
        fingerprint=fingerprint({**addresses, **storage_environment(os.environ if environ is None else environ)}),
        inherits=EVERYTHING,
    )


def fingerprint(addresses: Mapping[str, str]) -> str:
    """Return a fingerprint from which a later comparison can tell which addresses differ. It does not contain the
    addresses themselves, because one of them contains a token."""
    return json.dumps(
        {name: hashlib.sha256(value.encode()).hexdigest()[:16] for name, value in sorted(addresses.items())}
    )


def changed(former: str, addresses: Mapping[str, str]) -> str:
    """Return the names of the variables in `addresses` whose values have changed since the fingerprint `former`, or ""
    if none have changed.

    Args:
        former: the result of `fingerprint` at the start. A fingerprint from an earlier release contains no names.
        addresses: the present addresses.
    """
    now = fingerprint(addresses)
    if now == former:
        return ""
    if not former.startswith("{"):
        return "its environment"
    old, new = json.loads(former), json.loads(now)
    return ", ".join(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


def web_answers(port: int) -> bool:
    """Return True if a Dagster UI answers on this loopback port."""
    try:
        with _OPENER.open(f"http://{LOOPBACK}:{port}/server_info", timeout=2.0) as answer:
            return b"dagster_webserver_version" in answer.read(4096)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def reload(address: str) -> None:
    """Make a running UI reload its code. The daemon needs no request: it reloads its code within a minute.

    Args:
        address: the address of the UI, `http://host:port`.

    Raises:
        ConfigurationError: the UI did not answer, or the code cannot be loaded. The services continue with the previous
            code.
    """
    body = json.dumps({"query": _RELOAD}).encode()
    request = urllib.request.Request(f"{address}/graphql", body, {"Content-Type": "application/json"})
    try:
        with _OPENER.open(request, timeout=RELOAD_TIMEOUT_SECONDS) as answer:
            found = json.load(answer)["data"]["reloadWorkspace"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"the UI at {address} did not reload its definitions ({error}): press Reload on its Deployment page, or restart the UI"
        ) from error
    entries = found.get("locationEntries")
    failures = [found] if entries is None else [entry["locationOrLoadError"] for entry in entries]
    for failure in failures:
        if "message" in failure:
            # The last error of the chain is the one that the code itself raised.
            causes = [link["error"]["message"] for link in failure["errorChain"]]
            reason = (causes or [failure["message"]])[-1].strip()
            raise DagsterConfigurationError(
                f"the edited definitions cannot be loaded: {reason}\nCorrect them, then run the command again."
            )


def storage_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which Dagster's processes reach Dagster's storage. No other process needs them. They
    contain a password."""
    return {name: environ[name] for name in (POSTGRES_VARIABLE, POSTGRES_VARIABLE + SUFFIX) if environ.get(name)}


def host_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that tells the web server by which hosts browsers reach the UI."""
    return {HOSTS_VARIABLE: environ[HOSTS_VARIABLE]} if environ.get(HOSTS_VARIABLE) else {}


def _names_storage(settings: str) -> bool:
    """Return True if the settings themselves configure where runs and events are stored."""
    found = yaml.safe_load(settings)
    return isinstance(found, dict) and not found.keys().isdisjoint({"storage", "run_storage", "event_log_storage"})


def _check_library() -> None:
    if importlib.util.find_spec("dagster_postgres") is None:
        raise DagsterConfigurationError(
            f"{POSTGRES_VARIABLE} is set, but the package dagster-postgres is not installed: run "
            f"`{extras.install_command('postgres')}`, or unset the variable"
        )


@contextmanager
def failures_named(folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Raise a one-line error without a password if Dagster's storage fails in this block.

    Raises:
        ConfigurationError: Dagster does not accept the settings in `folder`, or the storage does not answer.
    """
    try:
        yield
    except _store_errors() as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ConfigurationError(
            f"Dagster does not accept {folder / 'dagster.yaml'}, or its storage does not answer: "
            f"{_without_secret(str(cause).strip(), environ)}"
        ) from None  # the original error may show the address


def _create_storage(home: Home, environ: Mapping[str, str]) -> None:
    # Imported here because the import takes a second. Only a first start or a start with PostgreSQL needs it.
    from dagster import DagsterInstance

    names, wanted = (POSTGRES_VARIABLE, POSTGRES_VARIABLE + SUFFIX), storage_environment(environ)
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(wanted)
    try:
        with failures_named(home.dagster, environ), DagsterInstance.from_config(str(home.dagster)) as instance:
            # One query to each of Dagster's three stores.
            instance.get_runs_count()
            instance.all_asset_keys()
            instance.all_instigator_state()
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


def _store_errors() -> tuple[type[Exception], ...]:
    from dagster import DagsterError
    from sqlalchemy.exc import SQLAlchemyError

    if importlib.util.find_spec("dagster_postgres") is None:
        return DagsterError, SQLAlchemyError
    from dagster_postgres.utils import DagsterPostgresException

    return DagsterError, SQLAlchemyError, DagsterPostgresException


def _without_secret(text: str, environ: Mapping[str, str]) -> str:
    url = secret(environ, POSTGRES_VARIABLE) or ""
    shown = text.replace(url, "(address hidden)") if url else text
    try:
        password = urlsplit(url).password
    except ValueError:
        return f"{POSTGRES_VARIABLE} is not an address of the form postgresql://user:password@host:port/database"
    return shown.replace(password, "(hidden)") if password else shown


def _environment(
    home: Home, addresses: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    storage = storage_environment(os.environ if environ is None else environ)
    return {
        **addresses,
        **storage,
        "DAGSTER_HOME": str(home.dagster),
        "PLATFORM_HOME": str(home.root),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "PYTHONUNBUFFERED": "1",
    }
