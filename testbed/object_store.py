"""An object store for a test: s3proxy on loopback. It keeps objects as files and checks signatures."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platform_assets.services import jars
from platform_assets.services.home import Home
from platform_assets.services.inherited import SYSTEM, inherited
from platform_assets.services.java import UNICODE_PATHS, find_java
from platform_assets.services.ports import LOOPBACK, choose_ports
from testbed.loads import wait_until

KEY_ID: Final = "tests-of-the-lake"
BUCKET: Final = "lakes"
_LOGGING: Final = """\
<configuration>
  <appender name="log" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %logger: %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="log"/></root>
</configuration>
"""


@dataclass
class _Server:
    """The process of the store. It can be stopped, and restarted with the same content."""

    command: Sequence[str]
    log: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.log.touch(mode=0o600)
        environment = {**inherited(os.environ, SYSTEM), **UNICODE_PATHS}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        process = self.process
        wait_until("s3proxy answers", lambda: _answers(process, self.port), 120)

    def end(self, *, kill: bool = False) -> None:
        if self.process is not None:
            (self.process.kill if kill else self.process.terminate)()
            self.process.wait(30)


@dataclass(frozen=True)
class ObjectStore:
    """A running store. `secret` is its secret key, which only environments contain."""

    port: int
    secret: str
    folder: Path
    _server: _Server

    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the environment for a client. `port` is the port of a proxy in front of the store, if there is one."""
        return {
            "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{port or self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    @property
    def pid(self) -> int:
        """The process id of the store while it is running."""
        assert self._server.process is not None
        return self._server.process.pid

    def kill(self) -> None:
        """Kill the store, as the system would."""
        self._server.end(kill=True)

    def start(self) -> None:
        """Restart the store on the same port with the same content. Return when it answers."""
        self._server.start()

    def root(self, name: str) -> str:
        """Return the root of a lake in the store."""
        return f"s3://{BUCKET}/{name}"

    @property
    def bucket(self) -> Path:
        """Folder that contains the bucket's objects as files. The name of each file is the key of its object."""
        return self.folder / BUCKET

    def address_of(self, path: Path) -> str | None:
        """Return the address of the object at a path, or None if the path is not in the bucket."""
        return self.root(path.relative_to(self.bucket).as_posix()) if self.bucket in path.parents else None

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of all objects below `prefix`, from the names of their files."""
        bucket = self.bucket
        return sorted(
            key
            for path in bucket.rglob("*")
            if path.is_file() and (key := path.relative_to(bucket).as_posix()).startswith(prefix)
        )


@contextmanager
def object_store(home: Home, root: Path, secret: str) -> Iterator[ObjectStore]:
    """Run a store within the block. Its jars are fetched if `home` lacks them. All files of the store are below
    `root`."""
    jars.install(home, ["s3proxy"], report=lambda _: None)
    (port,) = choose_ports(1, "S3_PORT", environ={})
    folder = root / "objects"
    folder.mkdir(parents=True, mode=0o700)
    (folder / BUCKET).mkdir()
    settings = root / "s3proxy.properties"
    settings.touch(mode=0o600)
    settings.write_text("".join(f"{name}={value}\n" for name, value in _properties(port, folder, secret).items()))
    # Without a configuration, the store logs each step of each request, which costs more than the request.
    logging = root / "s3proxy-logback.xml"
    logging.write_text(_LOGGING)
    class_path = os.pathsep.join(map(str, jars.class_path(home, "s3proxy")))
    command = [
        str(find_java(os.environ).executable), "-Xmx256m", "-XX:TieredStopAtLevel=1",
        f"-Dlogback.configurationFile={logging.as_uri()}", "-cp", class_path, "org.gaul.s3proxy.Main",
        "--properties", str(settings),
    ]  # fmt: skip
    server = _Server(command, root / "s3proxy.log", port)
    try:
        server.start()
        yield ObjectStore(port, secret, folder, server)
    finally:
        server.end()


def _properties(port: int, folder: Path, secret: str) -> Mapping[str, str]:
    return {
        "s3proxy.endpoint": f"http://{LOOPBACK}:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": KEY_ID,
        "s3proxy.credential": secret,
        "jclouds.provider": "filesystem-nio2",
        "jclouds.identity": "unused",
        "jclouds.credential": "unused",
        "jclouds.filesystem.basedir": str(folder),
    }


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "s3proxy ended: see s3proxy.log"
    try:
        urllib.request.urlopen(f"http://{LOOPBACK}:{port}/", timeout=2).close()
    except urllib.error.HTTPError:
        return True  # it asks who we are
    except OSError:
        return False
    return True
