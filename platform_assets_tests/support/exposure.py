"""Addresses on which processes listen, as reported by the kernel, and files that other users can reach.

`python -m platform_assets_tests.support.exposure` starts each service that `up` and `make test-cluster` start, one
kind of service after the other, and prints a table.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import psutil

from platform_assets.engines.shared.session import connect, end
from platform_assets.services import platform, state
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.platform import UpOptions
from platform_assets.services.process import family
from testbed import postgres
from testbed.homes import home_at, service_environment
from testbed.object_store import object_store
from testbed.spark_cluster import spark_cluster

_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH
_WORKSPACE: Final = "import dagster as dg\n\ndefs = dg.Definitions()\n"


@dataclass(frozen=True, slots=True)
class Exposure:
    """Listening ports of a service's processes, and the files in the service's folder that other users can read or
    write. `sockets` are the Unix sockets to which other users can connect."""

    service: str
    processes: int
    listens: frozenset[str]
    sockets: frozenset[str]
    files: int
    readable: frozenset[Path]

    @property
    def beyond(self) -> list[str]:
        """Listening addresses that are not on loopback."""
        return sorted(each for each in self.listens if not ip_address(each.rpartition(":")[0]).is_loopback)

    @property
    def is_private(self) -> bool:
        """True if other machines and users can reach only the service's loopback ports."""
        return not self.beyond and not self.sockets and not self.readable

    def line(self) -> str:
        """Return a row of a Markdown table."""
        hosts = sorted({each.rpartition(":")[0] for each in self.listens})
        ports = ", ".join(f"{sum(e.rpartition(':')[0] == h for e in self.listens)} ports of {h}" for h in hosts)
        open_to_others = sorted(map(str, self.readable))
        return (
            f"| {self.service} | {self.processes} | {ports or 'nothing'} | {', '.join(self.beyond) or 'none'} | {self.files} | "
            f"{len(open_to_others)} {', '.join(open_to_others[:3])} |"
        )


HEADER: Final = (
    "| service | processes | listens on | beyond loopback | files | open to others |\n|---|--:|---|---|--:|---|"
)


def exposure(service: str, processes: Iterable[psutil.Process], folder: Path) -> Exposure:
    """Return everything that processes and a folder expose to other users.

    Descendants of the processes count too. Assumes that every user can enter `folder` itself.
    """
    found = {each.pid: each for one in processes for each in (one, *one.children(recursive=True))}
    listens: set[str] = set()
    sockets: set[str] = set()
    for each in found.values():
        with suppress(psutil.NoSuchProcess):
            for connection in each.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    listens.add(f"{connection.laddr.ip.removeprefix('::ffff:')}:{connection.laddr.port}")
            for unix in each.net_connections("unix"):
                # Of a Unix socket this is its path, or empty.
                if _others_connect(str(unix.laddr)):
                    sockets.add(str(unix.laddr))
    reached = list(reachable(folder))
    total = sum(len(folders) + len(files) for _, folders, files in os.walk(folder))
    return Exposure(service, len(found), frozenset(listens), frozenset(sockets), total, frozenset(reached))


def reachable(folder: Path) -> Iterator[Path]:
    """Yield the files and folders below a folder that other users can reach, and can read or write."""
    for path in sorted(folder.iterdir()):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(mode):
            continue
        if mode & _OTHERS:
            yield path
        if stat.S_ISDIR(mode) and mode & stat.S_IXOTH:
            yield from reachable(path)


def _others_connect(path: str) -> bool:
    with suppress(OSError):
        return bool(os.stat(path).st_mode & stat.S_IWOTH)
    return False


def of_the_object_store(root: Path) -> Exposure:
    """Return the exposure of s3proxy, started in the same way as by `make test-cluster`."""
    with object_store(home_at(root / "home"), root, "a secret") as store:
        return exposure("object store", [psutil.Process(store.pid)], root)


def of_postgres(root: Path) -> Exposure:
    """Return the exposure of PostgreSQL, started in the same way as by `make test-cluster`.

    `root` must be a folder that every user can enter.
    """
    with postgres.server(root) as server:
        return exposure("PostgreSQL", [server.main_process()], root)


def of_the_spark_cluster(root: Path) -> list[Exposure]:
    """Return the exposure of a cluster: master, workers with one executor each, and Connect server."""
    with spark_cluster(root) as cluster, cluster.server(root / "connect") as server:
        session = connect(server.remote)
        try:
            # A Python task makes each executor start the processes that run such tasks.
            assert len(session.range(64, numPartitions=8).mapInPandas(lambda frames: frames, "id long").collect()) == 64
        finally:
            end(session)
        assert {*cluster.records} == {"master", "worker-0", "worker-1"}
        found = [
            exposure(f"Spark cluster: {name}", family(record), root) for name, record in sorted(cluster.records.items())
        ]
        return [*found, exposure("Spark cluster: Connect server", family(server.record), root)]


def of_the_platform(root: Path, services: Sequence[platform.Service], *, three: bool = False) -> list[Exposure]:
    """Return the exposure of these services, started in the same way as by `up --registry`. The brokers can be three
    secured brokers."""
    home = home_at(root / "home")
    workspace = root / "workspace"
    workspace.mkdir(mode=0o700)
    (workspace / "one.py").write_text(_WORKSPACE)
    (workspace / "workspace.yaml").write_text("load_from:\n  - python_file: one.py\n")
    options = UpOptions(
        services=services,
        workspace=workspace / "workspace.yaml",
        broker=BrokerSettings(heap="384m", brokers=3 if three else 1, secure="password" if three else None),
    )
    try:
        platform.up(home, options, report=lambda _: None, environ=service_environment())
        prefix = "up --secure --brokers 3" if three else "up --registry"
        return [
            exposure(f"{prefix}: {name}", family(record), root)
            for name, record in sorted(state.read_records(home).items())
        ]
    finally:
        platform.down(home, report=lambda _: None)


def main() -> int:
    """Start each kind of service, and print the table. Return 1 if anything is accessible to other users."""
    os.umask(0o022)
    found: list[Exposure] = []
    with ExitStack() as stack:

        def folder(name: str) -> Path:
            made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"exposure-{name}-")))
            # Otherwise others could reach nothing below it.
            made.chmod(0o755)
            return made

        found += of_the_platform(folder("up"), (*platform.SERVICES, "registry"))
        found += of_the_platform(folder("secure"), ("kafka",), three=True)
        found.append(of_the_object_store(folder("store")))
        if postgres.programs() is not None:
            found.append(of_postgres(folder("postgres")))
        found += of_the_spark_cluster(folder("cluster"))
    print("\n".join([HEADER, *(each.line() for each in found)]))
    return int(not all(each.is_private for each in found))


if __name__ == "__main__":
    sys.exit(main())
