"""Debezium's PostgreSQL connector for tests: one Kafka Connect worker on loopback, which runs one connector."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from platform_assets.services import jars
from platform_assets.services.home import Home
from platform_assets.services.inherited import SYSTEM, inherited
from platform_assets.services.java import UNICODE_PATHS, find_java
from platform_assets.services.ports import LOOPBACK, choose_ports
from testbed.loads import wait_until

PREFIX: Final = "db"
"""Start of the names of the connector's topics: the table `public.orders` has the topic `db.public.orders`."""
_WORKER: Final = "org.apache.kafka.connect.cli.ConnectStandalone"
_STREAMING: Final = "Starting streaming"
"""Text in the log of a connector whose snapshot is complete."""
_FAILED: Final = "Task is being killed and will not recover until manually restarted"
"""Text in the log of a worker whose task has failed."""


def avro_converter(registry: str) -> dict[str, str]:
    """Return the settings of a converter that writes Avro in the form of Confluent's. `registry` is the address of the
    API of Apicurio's registry that is compatible with Confluent's; the converter uses another one of it."""
    of = ".apicurio.registry"
    return {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        f"{of}.url": registry.removesuffix("/apis/ccompat/v7") + "/apis/registry/v2",
        f"{of}.auto-register": "true",
        f"{of}.as-confluent": "true",
        f"{of}.use-id": "contentId",
        f"{of}.headers.enabled": "false",
    }


@dataclass
class Connector:
    """A worker with its connector. `settings` are the connector's own. The worker's offsets, and so its position in
    PostgreSQL's log, are in `folder`, and a second start continues there."""

    home: Home
    folder: Path
    bootstrap: str
    database: str
    settings: Mapping[str, str] = field(default_factory=dict)
    converter: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    _seen: int = 0
    _failed: int = 0

    @property
    def log(self) -> Path:
        """The worker's log."""
        return self.folder / "connect.log"

    @property
    def pid(self) -> int:
        """The process id of the worker while it is running."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start the worker. Return when the connector has completed its snapshot and streams changes."""
        self.begin()
        self.wait_for_stream()

    def begin(self) -> None:
        """Start the worker, and do not wait until the connector runs."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (port,) = choose_ports(1, "CONNECT_PORT", remembered=(), environ={})
        files = [self._file("worker.properties", self._worker(port)), self._file("connector.properties", self._own())]
        self._seen, self._failed = self._count(_STREAMING), self._count(_FAILED)
        class_path = os.pathsep.join(map(str, jars.class_path(self.home, "connect")))
        command = [
            str(find_java(os.environ).executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path, _WORKER,
            *map(str, files),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                env={**inherited(os.environ, SYSTEM), **UNICODE_PATHS},
            )  # fmt: skip

    def wait_for_stream(self) -> None:
        """Wait until the connector has completed its snapshot and streams changes."""
        wait_until("the connector streams changes", self._streams, 240)

    @property
    def has_failed(self) -> bool:
        """True if the worker has ended, or its task has failed and needs a restart."""
        return self.process is None or self.process.poll() is not None or self._count(_FAILED) > self._failed

    def end(self, *, kill: bool = False) -> None:
        """End the worker. With `kill`, no handler runs, as after a failure of the machine."""
        if self.process is not None:
            (self.process.kill if kill else self.process.terminate)()
            self.process.wait(60)
            self.process = None

    def _streams(self) -> bool:
        assert not self.has_failed, f"the worker ended, or its task failed: see {self.log}"
        return self._count(_STREAMING) > self._seen

    def _count(self, text: str) -> int:
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0

    def _worker(self, port: int) -> dict[str, str]:
        converter = {"": "org.apache.kafka.connect.json.JsonConverter", ".schemas.enable": "false", **self.converter}
        return {
            "bootstrap.servers": self.bootstrap,
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "offset.flush.interval.ms": "500",
            "listeners": f"http://{LOOPBACK}:{port}",
            "plugin.discovery": "only_scan",
            **{f"{side}.converter{name}": value for side in ("key", "value") for name, value in converter.items()},
        }

    def _own(self) -> dict[str, str]:
        url = make_url(self.database)
        return {
            "name": "tests",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": "1",
            "database.hostname": str(url.host),
            "database.port": str(url.port),
            "database.user": str(url.username),
            "database.password": str(url.password),
            "database.dbname": str(url.database),
            "topic.prefix": PREFIX,
            "plugin.name": "pgoutput",
            "skipped.operations": "none",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
            **self.settings,
        }

    def _file(self, name: str, content: Mapping[str, str]) -> Path:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in content.items()))
        return path


@contextmanager
def connector(
    home: Home,
    folder: Path,
    bootstrap: str,
    database: str,
    settings: Mapping[str, str] | None = None,
    converter: Mapping[str, str] | None = None,
) -> Iterator[Connector]:
    """Run a connector for `database`, whose address includes the password, until the block ends. The jars are fetched
    if `home` lacks them."""
    jars.install(home, ["connect"], report=lambda _: None)
    made = Connector(home, folder, bootstrap, database, settings or {}, converter or {})
    try:
        made.start()
        yield made
    finally:
        made.end()
