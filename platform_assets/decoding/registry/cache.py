"""Schemas that were read once, on disk: a registry never changes what an id means, so they hold when it has gone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from platform_assets.decoding.registry.client import MOST_BYTES, MOST_REFERENCES
from platform_assets.decoding.registry.schemas import Registered
from platform_assets.errors import LakeNotWritableError


class SchemaCache:
    """A folder with a file for each id, below one for each registry."""

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder = folder / digest

    def read(self, number: int) -> Registered | None:
        """The schema of an id; None where it is not here, or the file is damaged: it is asked for and written again then."""
        try:
            with self._path(number).open("rb") as stream:
                return Registered.from_json(stream.read(MOST_BYTES * MOST_REFERENCES).decode())
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        except OSError as error:
            raise LakeNotWritableError(str(self._folder), error.strerror or str(error)) from error

    def write(self, number: int, schema: Registered) -> None:
        """Keep a schema; its file appears whole. Raises LakeNotWritableError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    stream.write(schema.to_json())
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(name, self._path(number))
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise LakeNotWritableError(str(self._folder), error.strerror or str(error)) from error

    def _path(self, number: int) -> Path:
        return self._folder / f"{int(number)}.json"
