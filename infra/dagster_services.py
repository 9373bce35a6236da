"""The Dagster UI and daemon on the project's workspace."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from infra import state
from infra.errors import ConfigurationError
from infra.home import Home
from infra.ports import DAGSTER_VARIABLE, LOOPBACK, choose_ports
from infra.process import ServiceSpec

WEBSERVER: Final[Literal["dagster-webserver"]] = "dagster-webserver"
DAEMON: Final[Literal["dagster-daemon"]] = "dagster-daemon"
INSTANCE_FILE: Final = Path(__file__).with_name("dagster.yaml")
START_TIMEOUT_SECONDS: Final = 240.0
RELOAD_TIMEOUT_SECONDS: Final = 240.0

# No proxy setting of the environment has a say about loopback.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_RELOAD: Final = """mutation {
  reloadWorkspace {
    ... on Workspace { locationEntries { locationOrLoadError { ...failure } } }
    ...failure
  }
}
fragment failure on PythonError { message errorChain { error { message } } }"""

_DAEMON_READY: Final = b"Instance is configured with the following daemons"


def prepare(home: Home) -> None:
    """Create `DAGSTER_HOME` with the project's instance settings, unless it has its own, and its storage.

    The storage is created here since the UI and the daemon, started side by side, would both try to and one would die.

    Raises:
        ConfigurationError: the folder cannot be written, or Dagster does not take its settings.
    """
    settings = home.dagster / "dagster.yaml"
    try:
        home.dagster.mkdir(parents=True, exist_ok=True)
        if not settings.exists():
            shutil.copyfile(INSTANCE_FILE, settings)
    except OSError as error:
        raise ConfigurationError(f"DAGSTER_HOME {home.dagster} cannot be written: {error}") from error
    if not (home.dagster / "history" / "runs.db").exists():
        _create_storage(home)


def webserver_spec(
    home: Home, workspace: Path, addresses: Mapping[str, str], *, environ: Mapping[str, str] | None = None
) -> ServiceSpec:
    """Say how to start the UI.

    Args:
        home: whose.
        workspace: the workspace file; its folder is the working directory.
        addresses: what the code in it needs, as `platform.environment` gives it.
        environ: the environment to read; the process's own by default.

    Raises:
        PortTakenError, ConfigurationError: from `DAGSTER_PORT`.
    """
    env = os.environ if environ is None else environ
    (port,) = choose_ports(1, DAGSTER_VARIABLE, remembered=state.remembered_ports(home, WEBSERVER), environ=env)
    state.remember_ports(home, WEBSERVER, (port,))
    return ServiceSpec(
        name=WEBSERVER,
        command=(
            sys.executable, "-m", "dagster_webserver", "--host", LOOPBACK, "--port", str(port),
            "--workspace", str(workspace),
        ),
        environment=_environment(home, addresses),
        directory=workspace.parent,
        log=home.log_file(WEBSERVER),
        address=f"http://{LOOPBACK}:{port}",
        ports=(port,),
        timeout=START_TIMEOUT_SECONDS,
        ready=lambda: web_answers(port),
        fingerprint=fingerprint(addresses),
    )  # fmt: skip


def daemon_spec(home: Home, workspace: Path, addresses: Mapping[str, str]) -> ServiceSpec:
    """Say how to start the daemon that runs sensors, the run queue and run monitoring; arguments as above."""
    log = home.log_file(DAEMON)
    return ServiceSpec(
        name=DAEMON,
        command=(sys.executable, "-m", "dagster._daemon", "run", "--workspace", str(workspace)),
        environment=_environment(home, addresses),
        directory=workspace.parent,
        log=log,
        address=str(home.dagster),
        ports=(),
        timeout=START_TIMEOUT_SECONDS,
        ready=lambda: log.is_file() and _DAEMON_READY in log.read_bytes(),
        fingerprint=fingerprint(addresses),
    )


def fingerprint(addresses: Mapping[str, str]) -> str:
    """Tell sets of addresses apart, and which of them differ, without showing them, since one holds a token."""
    return json.dumps(
        {name: hashlib.sha256(value.encode()).hexdigest()[:16] for name, value in sorted(addresses.items())}
    )


def changed(former: str, addresses: Mapping[str, str]) -> str:
    """The names of the variables in which `addresses` differ from those of the fingerprint `former`; "" if in none.

    Args:
        former: what `fingerprint` gave at the start; that of an earlier release tells no names.
        addresses: those of today.
    """
    now = fingerprint(addresses)
    if now == former:
        return ""
    if not former.startswith("{"):
        return "its environment"
    old, new = json.loads(former), json.loads(now)
    return ", ".join(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


def web_answers(port: int) -> bool:
    """Whether a Dagster UI answers on this loopback port."""
    try:
        with _OPENER.open(f"http://{LOOPBACK}:{port}/server_info", timeout=2.0) as answer:
            return b"dagster_webserver_version" in answer.read(4096)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def reload(address: str) -> None:
    """Have a running UI reload its code. The daemon does so by itself, within a minute.

    Args:
        address: of the UI, `http://host:port`.

    Raises:
        ConfigurationError: the UI did not answer, or the code cannot be loaded; the services go on with the former.
    """
    body = json.dumps({"query": _RELOAD}).encode()
    request = urllib.request.Request(f"{address}/graphql", body, {"Content-Type": "application/json"})
    try:
        with _OPENER.open(request, timeout=RELOAD_TIMEOUT_SECONDS) as answer:
            found = json.load(answer)["data"]["reloadWorkspace"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{address} did not reload its definitions ({error}): press Reload on its page Deployment, or restart it"
        ) from error
    entries = found.get("locationEntries")
    failures = [found] if entries is None else [entry["locationOrLoadError"] for entry in entries]
    for failure in failures:
        if "message" in failure:
            # The last of the chain is what the code itself raised.
            causes = [link["error"]["message"] for link in failure["errorChain"]]
            reason = (causes or [failure["message"]])[-1].strip()
            raise ConfigurationError(
                f"the edited definitions cannot be loaded: {reason}\nCorrect them, then run the command again."
            )


def _create_storage(home: Home) -> None:
    # Imported here: it takes a second, and only the first start needs it.
    from dagster import DagsterError, DagsterInstance

    try:
        with DagsterInstance.from_config(str(home.dagster)) as instance:
            # One question to each of its three stores.
            instance.get_runs_count()
            instance.all_asset_keys()
            instance.all_instigator_state()
    except DagsterError as error:
        raise ConfigurationError(f"Dagster does not take {home.dagster / 'dagster.yaml'}: {error}") from error


def _environment(home: Home, addresses: Mapping[str, str]) -> dict[str, str | None]:
    return {
        **addresses,
        "DAGSTER_HOME": str(home.dagster),
        "PLATFORM_HOME": str(home.root),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "PYTHONUNBUFFERED": "1",
    }
