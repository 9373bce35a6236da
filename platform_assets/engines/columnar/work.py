"""What tasks are sent out with: plain values, and no secret among them, since Spark keeps and shows plans."""

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
"""All that a worker imports of the project; of `decoding` also the packages below it."""


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
"""Names the code that a worker runs, as this process has it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A life of a topic, and the table that it is loaded into: `table` is a path on the worker."""

    topic: str
    topic_id: str
    table: str


@dataclass(frozen=True, slots=True)
class Share:
    """What one task reads and where it writes it: `folder` is relative to the table's."""

    window: str
    folder: str
    pieces: tuple[Piece, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class Work:
    """All shares of a job, and how brokers are reached.

    `options` are the names of the client settings that are needed; their values are the worker's own, from its
    environment. `limits` are those of this process. `rows_apart` is the number of rows from which a partition gets a file of its own.
    """

    bootstrap: str
    options: tuple[str, ...]
    shares: tuple[Share, ...]
    rows_apart: int
    patience: float
    fetch_bytes: int
    limits: BatchLimits = field(default_factory=BatchLimits)

    def settings(self, environment: Mapping[str, str]) -> ClientSettings:
        """The client settings, taken from a worker's environment. Raises UnfitError where that cannot be."""
        try:
            found = ClientSettings.from_environment(environment, self.bootstrap)
        except ConfigurationError as error:
            raise UnfitError(f"the environment of Spark's workers is not fit for it ({error})") from None
        if missing := sorted(set(self.options) - set(found.options)):
            names = ["KAFKA_" + name.upper().replace(".", "_") for name in missing]
            raise UnfitError(f"the environment of Spark's workers lacks {names}")
        options = {name: found.options[name] for name in self.options}
        return ClientSettings(self.bootstrap, options, self.limits, found.cleartext_logins)
