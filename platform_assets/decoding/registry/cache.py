"""Schemas that were read once and are stored in files, so that windows can be decoded while the registry is
unavailable.

An id belongs to one registry. Each registry has a folder, in which the registry's address is recorded. If a registry
returns another schema for a known id, `decoder` refuses the registry until `forget` deletes the known schema.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from platform_assets.errors import LakeNotWritableError, LakeUnavailableError

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
LARGEST_ID: Final = (1 << 31) - 1
"""The largest id. Ids begin with 1."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema, and the schemas to which it refers, in dependency order. `references` contains these schemas, keyed by
    the names that references use."""

    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the schema in the JSON form that the cache stores."""
        return json.dumps({"schemaType": self.kind, "schema": self.text, "references": dict(self.references)})

    @property
    def fingerprint(self) -> str:
        """Return sixteen hexadecimal digits that identify the schema and its references. White space in JSON does not
        matter."""
        texts = [self.text, *(part for pair in sorted(self.references.items()) for part in pair)]
        meant = [self.kind, *(_canonical(text) if self.kind != PROTOBUF else text for text in texts)]
        return hashlib.sha256(json.dumps(meant).encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, text: str) -> Registered:
        """Parse the result of `to_json`. Raises ValueError for anything else."""
        found: Any = json.loads(text)
        try:
            kind, schema, references = found["schemaType"], found["schema"], found["references"]
            texts = [kind, schema, *references, *references.values()]
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no schema: {error!r}") from error
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("a part of the schema is not text")
        return cls(kind, schema, references)


def _canonical(text: str) -> str:
    """Return JSON in a canonical form, with uniform white space and with sorted names. Return any other text
    unchanged."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


class UnknownId(Exception):
    """Raised if the registry has no schema for an id, or if the registry was not queried. `reason` states the reason."""

    def __init__(self, number: int | str, reason: str = "the registry does not have this schema") -> None:
        self.number = number
        super().__init__(f"schema id {number}: {reason}")


class BadReferences(Exception):
    """Raised if a schema's references never end. Such a schema can never be read."""


_ORIGIN: Final = "registry.json"
"""File in a folder of schemas that records the address of the registry."""


class KeptFiles(Protocol):
    """The files in one folder, on a file system or in an object store. Failures raise OSErrors."""

    def files(self, below: str) -> list[str]:
        """Return the names of the files in a subfolder, or in this folder if `below` is "". The result is empty if the
        folder is missing."""

    def folders(self, below: str) -> list[str]:
        """Return the names of the folders in a subfolder. The result is empty if the subfolder is missing."""

    def remove_files(self, names: Iterable[str]) -> None:
        """Delete files. Missing files are ignored."""

    def make(self) -> None:
        """Create the folder if it is missing."""

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically: a reader sees either the previous content or the new content."""


Schemas = Callable[[str], KeptFiles]
"""Function that takes the name of a folder and returns the files in the folder. Each registry has one folder. The name
"" stands for the folder that contains all these folders."""


@dataclass(frozen=True, slots=True)
class Known:
    """A schema that was read before, and the address of the registry that it was read from."""

    schema: Registered
    origin: str


class SchemaCache:
    """The stored schemas of one registry, with one file for each id. The files are in the folder `digest`, and `url` is
    the registry's address."""

    def __init__(self, schemas: Schemas, digest: str, url: str) -> None:
        self._schemas, self._digest, self._url = schemas, digest, url
        self._others: tuple[str, ...] | None = None

    def read(self, number: int | str) -> Registered | None:
        """Return the schema of an id, or None if the schema was never read or its file is damaged.

        Raises LakeNotWritableError and LakeUnavailableError.
        """
        return _read(self._schemas, self._digest, number)

    def elsewhere(self, number: int | str) -> Known | None:
        """Return the schema that this lake has read for this id from another registry, or None if there is no such
        schema.

        Raises LakeNotWritableError and LakeUnavailableError.
        """
        if self._others is None:
            with _named("schemas"):
                self._others = tuple(n for n in sorted(self._schemas("").folders("")) if n != self._digest)
        for folder in self._others:
            found = _read(self._schemas, folder, number)
            if found is not None:
                return Known(found, _origin(self._schemas, folder))
        return None

    def write(self, number: int | str, schema: Registered) -> None:
        """Store a schema. Its file appears atomically. Raises LakeNotWritableError and LakeUnavailableError."""
        files = self._schemas(self._digest)
        with _named(self._digest):
            files.make()
            files.write(_name(number), schema.to_json().encode())
            if _ORIGIN not in files.files(""):
                files.write(_ORIGIN, json.dumps({"url": self._url}).encode())


def kept(schemas: Schemas, number: int | str) -> list[Registered]:
    """Return the known schemas of an id in all registries, each distinct schema once.

    Raises LakeNotWritableError and LakeUnavailableError.
    """
    with _named("schemas"):
        folders = sorted(schemas("").folders(""))
    found = (_read(schemas, folder, number) for folder in folders)
    return [*{each.fingerprint: each for each in found if each is not None}.values()]


def forget(schemas: Schemas, numbers: Iterable[int | str], dry_run: bool = False) -> list[str]:
    """Delete the known schemas of these ids in every registry. Return a line for each schema. With `dry_run`, return
    the lines but delete nothing.

    Raises LakeNotWritableError and LakeUnavailableError.
    """
    lines = []
    wanted = {_name(number): number for number in numbers}
    with _named("schemas"):
        folders = sorted(schemas("").folders(""))
    for folder in folders:
        for name, number in wanted.items():
            found = _read(schemas, folder, number)
            if found is None:
                continue
            lines.append(
                f"{found.kind} schema {number}, fingerprint {found.fingerprint}, from {_origin(schemas, folder)}"
            )
            if not dry_run:
                with _named(folder):
                    schemas(folder).remove_files([name])
    return lines


def _read(schemas: Schemas, folder: str, number: int | str) -> Registered | None:
    try:
        with _named(folder):
            return Registered.from_json(schemas(folder).read(_name(number)).decode())
    except (FileNotFoundError, ValueError, RecursionError):
        return None


def _origin(schemas: Schemas, folder: str) -> str:
    """Return the address of a folder's registry. If the folder comes from an earlier release, return the folder's name
    instead."""
    try:
        with _named(folder):
            found = json.loads(schemas(folder).read(_ORIGIN))
        return str(found["url"])
    except (FileNotFoundError, ValueError, RecursionError, KeyError, TypeError):
        return f"another registry (_ledger/schemas/{folder})"


@contextmanager
def _named(folder: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else folder
        reason = error.strerror or str(error)
        # A file system raises permission errors. A store can also be unreachable.
        unreachable = error.errno == errno.EIO
        raise (LakeUnavailableError if unreachable else LakeNotWritableError)(place, reason) from error


def _name(number: int | str) -> str:
    """Return the file name for an id, which is a number or a GUID. The GUID was checked when it was parsed."""
    return f"{number}.json"
