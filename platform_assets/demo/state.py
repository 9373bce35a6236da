"""State of the demo in a data folder: the time of its first start there, and the services that the demo must stop."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from platform_assets.demo.schedule import first_edge
from platform_assets.errors import ConfigurationError
from platform_assets.services.home import Home

START_VARIABLE: Final = "DEMO_START"
"""Environment variable that contains the first window boundary of the demo's topics, as ISO 8601 in UTC;
`defs/flights/defs.yaml` reads it."""

_FILE: Final = "demo.json"
_LOCK: Final = "demo.lock"
_SERVICES: Final = "demo-services.json"

S = TypeVar("S", bound=str)


def remembered_start(root: Path, now: datetime | None = None) -> datetime:
    """Return the time, timezone-aware, when the demo first started in the data folder `root`. If this is the first
    start, return the present time.

    Raises:
        ConfigurationError: the file with the start time is damaged.
    """
    path = root / _FILE
    try:
        start = datetime.fromisoformat(json.loads(path.read_text(encoding="utf-8"))["start"])
    except FileNotFoundError:
        start = (now or datetime.now(UTC)).replace(microsecond=0)
        _replace(path, json.dumps({"start": start.isoformat()}) + "\n")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error}). The file records when the demo first started. Delete the data folder {root} "
            "to start the demo from the beginning."
        ) from error
    if start.tzinfo is None:
        raise ConfigurationError(
            f"the start time in {path} has no time zone: delete the data folder {root} to start from the beginning."
        )
    return start


def start_setting(start: datetime) -> str:
    """Return the value of `DEMO_START` for a demo whose first start was at `start`."""
    return first_edge(start).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def publish_start(home: Home, setting: str) -> bool:
    """Publish the start time to every later process of the platform. Return True if another start time, or none, was
    published before.

    The start time is stored in this process's environment, which services inherit, and in `platform.env` in the data
    folder. From that file, `platform_assets.services.platform.variables` reads it for other commands.
    """
    os.environ[START_VARIABLE] = setting
    path = home.variables_file
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    line = f"{START_VARIABLE}={setting}"
    if line in lines:
        return False
    kept = [other for other in lines if not other.startswith(f"{START_VARIABLE}=")]
    _replace(path, "".join(f"{text}\n" for text in [*kept, line]))
    return True


def remember_services(root: Path, services: Mapping[str, int | None]) -> None:
    """Record the services that this demo starts, with their pids, in case the demo is killed. The pid None stands for a
    service that is still starting."""
    _replace(root / _SERVICES, json.dumps(dict(services)) + "\n")


def left_services(root: Path, running: Mapping[S, int | None]) -> set[S]:
    """Return those of the `running` services, identified by pid, that a killed demo left behind.

    Raises:
        ConfigurationError: the file that lists them is damaged.
    """
    path = root / _SERVICES
    try:
        left = dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}): delete the file.") from error
    return {service for service, pid in running.items() if service in left and left[service] in (None, pid)}


@contextmanager
def exclusive_demo(root: Path) -> Iterator[None]:
    """Prevent a second demo from using the data folder while this demo runs. If the process is killed, its lock is
    released.

    Raises:
        ConfigurationError: another demo is running.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / _LOCK).open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another demo is using the data folder {root}: end that demo, or set PLATFORM_HOME to another folder."
            ) from None
        yield


def _replace(path: Path, text: str) -> None:
    """Write a file atomically, so that neither a reader nor a later run sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
