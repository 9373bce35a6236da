"""PostgreSQL and a broker of their own, for tests of Debezium's connector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from platform_assets.services import brokers, platform
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from testbed import postgres
from testbed.homes import home_at, service_environment
from testbed.postgres import Postgres


@dataclass(frozen=True)
class DatabaseServices:
    """A server that writes its log for replication, a folder for anything, and the address of a broker."""

    server: Postgres
    folder: Path
    bootstrap: str

    @property
    def home(self) -> Home:
        """The home of the broker, which also keeps the connector's jars."""
        return home_at(self.folder / "home")

    def registry(self) -> str:
        """Return the address of a registry, which is started if it does not run."""
        return platform.start_service("registry", self.home, environ=service_environment()).address


@contextmanager
def database_services() -> Iterator[DatabaseServices]:
    """Run both services until the block ends."""
    with TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        home = home_at(root / "home")
        try:
            options = UpOptions(services=("kafka",), broker=BrokerSettings())
            platform.up(home, options, report=lambda _: None, environ=service_environment())
            with postgres.server(root, wal_level="logical") as server:
                yield DatabaseServices(server, root, brokers.remembered_addresses(home))
        finally:
            platform.down(home, report=lambda _: None)
