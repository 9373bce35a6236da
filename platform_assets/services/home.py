"""The platform's data folder, and everything in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platform_assets.services.errors import ConfigurationError

CHECKOUT: Final = Path(__file__).resolve().parents[2]
"""The folder that contains `platform_assets/`. It also contains `workspace.yaml`, unless it is a folder of installed
packages."""

HOME_VARIABLE: Final = "PLATFORM_HOME"
JARS_VARIABLE: Final = "PLATFORM_JARS"
LAKE_VARIABLE: Final = "LAKE_ROOT"
DAGSTER_VARIABLE: Final = "DAGSTER_HOME"

WORKSPACE: Final = "workspace.yaml"

_SEPARATORS: Final = frozenset({os.pathsep, ",", "\n"})


@dataclass(frozen=True, slots=True)
class Home:
    """Absolute paths of one platform. Two homes share nothing except their jars.

    Attributes:
        root: the data folder.
        jars: the folder of the verified jars, which has one subfolder per set. It is in the user's cache, so each jar
            is fetched only once.
        lake: the lake root. It is a string, because it can be the URI of an object store.
        dagster: the `DAGSTER_HOME` folder.
    """

    root: Path
    jars: Path
    lake: str
    dagster: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Home:
        """Read `PLATFORM_HOME`, `PLATFORM_JARS`, `LAKE_ROOT` and `DAGSTER_HOME`. If a variable is not set, the folder
        that it would set is in the data folder.

        The jars are in the user's cache (`XDG_CACHE_HOME`, or `.cache` in `HOME`), unless the data folder has its own
        jars.

        Args:
            environ: the environment to read; the process's own by default.

        Returns:
            The home with absolute paths. Nothing is created.

        Raises:
            ConfigurationError: `PLATFORM_HOME` is not set, and the platform does not run from a checkout.
        """
        env = os.environ if environ is None else environ
        root = absolute(env.get(HOME_VARIABLE) or checkout(HOME_VARIABLE) / ".platform")
        return cls(
            root=root,
            jars=absolute(env.get(JARS_VARIABLE) or _default_jars(root, env)),
            lake=env.get(LAKE_VARIABLE) or str(root / "lake"),
            dagster=absolute(env.get(DAGSTER_VARIABLE) or root / "dagster"),
        )

    @property
    def is_in_store(self) -> bool:
        """True if the lake is in an object store."""
        return self.lake.startswith("s3://")

    @property
    def kafka(self) -> Path:
        """Kafka's log directory."""
        return self.root / "kafka"

    @property
    def spark(self) -> Path:
        """Spark's scratch folder: its warehouse, shuffle files and working directory."""
        return self.root / "spark"

    @property
    def logs(self) -> Path:
        """The folder of the log files, one for each service."""
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """The folder that contains the run state and the secrets."""
        return self.root / "run"

    @property
    def state_file(self) -> Path:
        """The file that contains the run state: addresses and process records, as JSON."""
        return self.run / "state.json"

    @property
    def variables_file(self) -> Path:
        """The file that contains variables for the definitions, one `NAME=value` per line; see `platform.variables`."""
        return self.root / "platform.env"

    @property
    def token_file(self) -> Path:
        """The file that contains the Spark Connect token."""
        return self.run / "spark.token"

    def log_file(self, service: str) -> Path:
        """Return the log file of one service."""
        return self.logs / f"{service}.log"

    def prepare(self) -> None:
        """Create the folders that every service needs. Only the owner of these folders can open them.

        Raises:
            ConfigurationError: a path contains a character that Java or Kafka treats as the end of a path.
            OSError: the data folder cannot be written.
        """
        for variable, path in ((HOME_VARIABLE, self.root), (JARS_VARIABLE, self.jars)):
            if bad := sorted(set(str(path)) & _SEPARATORS):
                raise ConfigurationError(
                    f"{str(path)!r} must not contain {bad[0]!r}: set {variable} to another folder."
                )
        for folder in (self.root, self.logs, self.spark, self.run):
            private(folder)


def _default_jars(root: Path, env: Mapping[str, str]) -> Path:
    own, user, cache = root / "jars", env.get("HOME"), env.get("XDG_CACHE_HOME", "")
    # The XDG specification says that relative paths must be ignored.
    if not cache.startswith("/"):
        cache = f"{user}/.cache" if user else ""
    # Earlier releases kept the jars in the data folder. They stay there, so an upgrade does not fetch them again.
    return own if own.is_dir() or not cache else Path(cache, "platform-assets", "jars")


def private(folder: Path) -> None:
    """Create a folder that only its owner can open. If the folder exists and belongs to this user, close it to other
    users.

    If another user created the folder, for example a volume of a container, the folder keeps its mode. The folders
    inside it belong to this user.

    Raises:
        OSError: the folder cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    # mkdir's mode is subject to the umask, and does not apply to an existing folder.
    if found.st_uid == os.getuid() and found.st_mode & 0o777 != 0o700:
        folder.chmod(0o700)


def absolute(path: str | Path) -> Path:
    """Expand `~` and make the path absolute. Links are not followed."""
    return Path(os.path.abspath(Path(path).expanduser()))


def is_checkout() -> bool:
    """Return True if the platform runs from a checkout, or False if it was installed from a wheel."""
    return (CHECKOUT / WORKSPACE).is_file()


def checkout(variable: str) -> Path:
    """Return the checkout from which the platform runs. Its folders are the defaults for `variable`.

    Raises ConfigurationError if the platform was installed without a checkout.
    """
    if not is_checkout():
        raise ConfigurationError(
            f"No project was found: {Path.cwd()} is not a project folder, and {variable} is not set. Change to a "
            "folder that `platform-assets init` created, or create a project: platform-assets init shop && cd shop"
        )
    return CHECKOUT
