"""Schemas that were read once, kept in files: a registry never changes what an id means, so they hold when it has gone."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from platform_assets.decoding.registry.schemas import Registered
from platform_assets.errors import LakeNotWritableError, LakeUnavailableError


class KeptFiles(Protocol):
    """The files of one folder, on a file system or in an object store. What goes wrong is an OSError."""

    def make(self) -> None:
        """Create the folder where it is missing."""

    def read(self, name: str) -> bytes:
        """A file's content. Raises FileNotFoundError."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole: a reader sees the former content or this one."""


Schemas = Callable[[str], KeptFiles]
"""Gives the files of a folder by its name, which is one registry's."""


class SchemaCache:
    """A file for each id, in the folder of one registry, `digest`."""

    def __init__(self, schemas: Schemas, digest: str) -> None:
        self._files, self._folder = schemas(digest), digest

    def read(self, number: int) -> Registered | None:
        """The schema of an id; None where it is not here, or the file is damaged: it is asked for and written again then.

        Raises LakeNotWritableError and LakeUnavailableError.
        """
        try:
            with self._named():
                return Registered.from_json(self._files.read(_name(number)).decode())
        except (FileNotFoundError, ValueError, RecursionError):
            return None

    def write(self, number: int, schema: Registered) -> None:
        """Keep a schema; its file appears whole. Raises LakeNotWritableError and LakeUnavailableError."""
        with self._named():
            self._files.make()
            self._files.write(_name(number), schema.to_json().encode())

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            place = error.filename if isinstance(error.filename, str) else self._folder
            reason = error.strerror or str(error)
            # A file system refuses; a store may also be out of reach.
            unreachable = error.errno == errno.EIO
            raise (LakeUnavailableError if unreachable else LakeNotWritableError)(place, reason) from error


def _name(number: int) -> str:
    return f"{int(number)}.json"
