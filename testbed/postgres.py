"""A PostgreSQL server for tests. It uses the binaries on this machine, runs on loopback, and has its own folder and
password."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from platform_assets.services.ports import LOOPBACK, choose_ports

HOW: Final = (
    "PostgreSQL's programs are not on this machine; on Debian: `apt-get install postgresql` (no server of it is used)"
)
_PLACES: Final = Path("/usr/lib/postgresql")
_USER: Final = "dagster"


def programs() -> Path | None:
    """Return the folder with `initdb` and `pg_ctl`, or None if there is no such folder."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    found = sorted(_PLACES.glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name.split(".")[0]))
    return found[-1].parent if found else None


@dataclass
class Postgres:
    """One PostgreSQL server. `initdb` refuses to run as root, so root runs it as `nobody`. `settings` are PostgreSQL's
    own, which it gets when it starts."""

    programs: Path
    folder: Path
    port: int
    password: str = field(repr=False, default_factory=lambda: secrets.token_urlsafe(12))
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The address of the server, including the password."""
        return f"postgresql://{_USER}:{self.password}@{LOOPBACK}:{self.port}/postgres"

    def database(self, name: str) -> str:
        """Create an empty database and return its address."""
        import sqlalchemy

        engine = sqlalchemy.create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(f'CREATE DATABASE "{name}"'))
        engine.dispose()
        return f"{self.url.rpartition('/')[0]}/{name}"

    def create(self) -> None:
        """Create the files of the server."""
        self.folder.mkdir(parents=True, mode=0o700)
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        if os.geteuid() == 0:
            owner = pwd.getpwnam("nobody")
            for path in (self.folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self._run(
            "initdb", "-D", str(self._data), "-U", _USER, "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync"
        )
        secret.unlink()

    def start(self) -> None:
        """Start the server. Return when it answers."""
        options = f"-p {self.port} -c listen_addresses={LOOPBACK} -c unix_socket_directories= -c fsync=off"
        options += "".join(f" -c {name}={value}" for name, value in self.settings.items())
        self._run(
            "pg_ctl", "-D", str(self._data), "-w", "-t", "120", "-l", str(self.folder / "log"), "-o", options, "start"
        )

    def stop(self) -> None:
        """Stop the server at once, like a failing machine. Connections break, and the server recovers at its next
        start."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "120", "-m", "immediate", "stop")

    def main_process(self) -> psutil.Process:
        """Return the parent of the server's other processes, while the server is running."""
        return psutil.Process(int((self._data / "postmaster.pid").read_text().split("\n", 1)[0]))

    def kill(self) -> None:
        """Kill all of the server's processes with SIGKILL. No handler runs, and the server's folder does not change."""
        main = self.main_process()
        found = [main, *main.children(recursive=True)]
        for each in found:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(found, timeout=30)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _run(self, program: str, *arguments: str) -> None:
        other = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        # The output goes to a file, because the server would hold a pipe open.
        with (self.folder / f"{program}.said").open("wb") as said:
            subprocess.run(
                [str(self.programs / program), *arguments],
                check=True,
                cwd=self.folder,
                stdout=said,
                stderr=said,
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                user=None if other is None else other.pw_uid,
                group=None if other is None else other.pw_gid,
            )


@contextmanager
def server(root: Path, **settings: str) -> Iterator[Postgres]:
    """Provide a server that runs until the block ends. `settings` are PostgreSQL's own, such as `wal_level`.

    `root` must be a folder that anyone can enter, such as a folder in /tmp.
    """
    found = programs()
    if found is None:
        raise RuntimeError(HOW)
    (port,) = choose_ports(1, "POSTGRES_PORT", remembered=(), environ={})
    made = Postgres(found, root / "postgres", port, settings=settings)
    made.create()
    try:
        made.start()
        yield made
    finally:
        with suppress(subprocess.CalledProcessError):
            made.stop()
