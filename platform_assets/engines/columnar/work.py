"""The input of tasks: plain values without secrets, since Spark keeps and shows plans."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Final

from platform_assets.engines.columnar.pieces import Piece
from platform_assets.engines.columnar.reports import UnfitError
from platform_assets.errors import ConfigurationError
from platform_assets.kafka.settings import BatchLimits, ClientSettings

_PACKAGES: Final = (
    "platform_assets",
    "platform_assets.decoding",
    "platform_assets.engines",
    "platform_assets.engines.columnar",
    "platform_assets.engines.decoding",
    "platform_assets.kernels",
    "platform_assets.kafka",
    "platform_assets.kafka.batches",
    "platform_assets.lake",
    "platform_assets.model",
)
"""Packages of the project that a worker imports; for `decoding`, also its subpackages."""


def _digest_of_code() -> str:
    digest = hashlib.sha256()
    folders = [(package, files(package)) for package in _PACKAGES]
    for package, folder in folders:
        for entry in sorted(folder.iterdir(), key=lambda f: f.name):
            if entry.name.endswith(".py"):
                digest.update(f"{package}/{entry.name}\0".encode() + entry.read_bytes() + b"\0")
            elif package.startswith("platform_assets.decoding") and entry.joinpath("__init__.py").is_file():
                folders.append((f"{package}.{entry.name}", entry))
    return digest.hexdigest()[:16]


CODE: Final = _digest_of_code()
"""Version of the code that a worker runs, as in this process."""


@dataclass(frozen=True, slots=True)
class Source:
    """A topic with its id, and the table that it is loaded into: `table` is a path on the worker."""

    topic: str
    topic_id: str
    table: str


@dataclass(frozen=True, slots=True)
class Share:
    """The offsets that one task reads, and its output folder: `folder` is relative to the table's."""

    window: str
    folder: str
    pieces: tuple[Piece, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class Work:
    """All shares of a job, and the connection to the brokers.

    `options` are the names of the required client settings; their values come from the worker's own environment. `limits`
    are those of this process. `rows_apart` is the number of rows from which a partition gets its own file.
    """

    bootstrap: str
    options: tuple[str, ...]
    shares: tuple[Share, ...]
    rows_apart: int
    patience: float
    fetch_bytes: int
    limits: BatchLimits = field(default_factory=BatchLimits)

    def settings(self, environment: Mapping[str, str]) -> ClientSettings:
        """Return the client settings from a worker's environment. Raises UnfitError if that is not possible."""
        try:
            found = ClientSettings.from_environment(environment, self.bootstrap)
        except ConfigurationError as error:
            raise UnfitError(f"the environment of Spark's workers has invalid settings ({error})") from None
        if missing := sorted(set(self.options) - set(found.options)):
            names = ["KAFKA_" + name.upper().replace(".", "_") for name in missing]
            raise UnfitError(f"the environment of Spark's workers lacks {names}")
        options = {name: found.options[name] for name in self.options}
        return ClientSettings(self.bootstrap, options, self.limits, found.cleartext_logins)
