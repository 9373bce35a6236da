"""The run state: the services that were started, in one JSON file that only its owner can read."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from platform_assets.services.errors import BusyError, ConfigurationError
from platform_assets.services.home import Home
from platform_assets.services.process import ProcessRecord

VERSION: Final = 1

_mutex = threading.Lock()


def read_records(home: Home) -> dict[str, ProcessRecord]:
    """Return the services that were started, by name. The result is empty if no service was ever started.

    Raises:
        ConfigurationError: the file is damaged. The error says what to do.
    """
    try:
        text = home.state_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"the run state {home.state_file} cannot be read: {error}") from error
    try:
        value: Any = json.loads(text)
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']}")
        return {str(name): ProcessRecord.from_json(record) for name, record in value["services"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"the run state {home.state_file} is damaged ({error}). Processes listed in it may still be running: read the logs "
            f"in {home.logs}, end these processes by pid, then delete the run state."
        ) from error


def write_record(home: Home, record: ProcessRecord) -> None:
    """Add or replace one service's record."""
    with _mutex:
        _write(home, read_records(home) | {record.service: record})


def remove_record(home: Home, service: str) -> None:
    """Remove one service's record, if there is one."""
    with _mutex:
        records = read_records(home)
        if records.pop(service, None) is not None:
            _write(home, records)


def remembered_ports(home: Home, service: str) -> tuple[int, ...]:
    """Return the ports that a service used at its last start. The result is empty if the service never ran."""
    try:
        value = json.loads(_ports_file(home).read_text(encoding="utf-8"))
        return tuple(int(port) for port in value.get(service, ()))
    except (OSError, ValueError, AttributeError, TypeError):
        # The stored ports are only a convenience: without them, other free ports are chosen.
        return ()


def remember_ports(home: Home, service: str, ports: tuple[int, ...]) -> None:
    """Save a service's ports for the next start."""
    with _mutex:
        path = _ports_file(home)
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            value = {}
        write_private(path, json.dumps({**value, service: list(ports)}) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically with a new file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def exclusive(home: Home, wait_seconds: float = 180.0) -> Iterator[None]:
    """Hold the home's lock, so that only one command at a time starts or ends services.

    Raises:
        BusyError: another command held the lock for the whole time.
    """
    home.prepare()
    # The file is opened close-on-exec, so a started service does not inherit the lock.
    with os.fdopen(os.open(home.run / "lock", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as handle:
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BusyError(str(home.root), wait_seconds) from None
                time.sleep(0.1)
        yield


def _ports_file(home: Home) -> Path:
    return home.run / "ports.json"


def _write(home: Home, records: Mapping[str, ProcessRecord]) -> None:
    value = {"version": VERSION, "services": {name: record.to_json() for name, record in records.items()}}
    write_private(home.state_file, json.dumps(value, indent=2) + "\n")
