"""Decoder that reads values with any number of registered schemas into the declared columns."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.decoding.avro.types import BadSchema, OtherRecord
from platform_assets.decoding.decoder import DeadLetter, Decoded, Decoder, Reason, dead_letters
from platform_assets.decoding.registry import wire
from platform_assets.decoding.registry.cache import (
    LARGEST_ID,
    BadReferences,
    Registered,
    SchemaCache,
    Schemas,
    UnknownId,
)
from platform_assets.decoding.registry.client import HURRIED, RegistryClient
from platform_assets.decoding.registry.readers import Reader
from platform_assets.decoding.registry.settings import URL_VARIABLE, RegistrySettings
from platform_assets.errors import RegistryChangedError, RegistryRefusedError, RegistryUnreachableError

Order = npt.NDArray[np.int64]
MOST_UNKNOWN: Final = 1_000
"""Maximum number of unknown ids for which a decoder queries the registry. A decoder exists for the duration of a task.
"""


@dataclass(frozen=True, slots=True)
class _Fault:
    """The reason why values with an id cannot be read."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class _Readable:
    """The decoder for values with an id."""

    decoder: Decoder


@dataclass(frozen=True)
class RegistryDecoder:
    """Groups a block's values by the ids with which they begin, and decodes each group with the schema for its id.

    `schemas` returns the files in which schemas are stored; if it is None, schemas are not stored. Each decoder object
    queries the registry once for each id, even if the schema is stored. If the registry returns another schema, nothing
    is decoded (RegistryChangedError). If the registry does not answer, the stored schema is used. Settings come from
    the environment of the decoding process. Only `url` is part of this object, and it is used if that environment does
    not set an address.
    """

    reader: Reader
    schemas: Schemas | None = None
    url: str = ""
    id_from: wire.IdFrom = "prefix"
    _known: dict[wire.Key, _Readable | _Fault] = field(default_factory=dict, repr=False, compare=False)
    unknown: list[wire.Key] = field(default_factory=list, repr=False, compare=False)
    """Ids that the decoder requested and the registry does not have."""

    @property
    def fields(self) -> pa.Schema:
        """See `Decoder.fields`."""
        return self.reader.fields

    def at(self, schemas: Schemas | None, url: str) -> RegistryDecoder:
        """Return a copy that stores schemas in these files and uses the registry at this address."""
        return replace(self, schemas=schemas, url=url, _known={}, unknown=[])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "unknown": []}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`. Raises RegistryUnreachableError, RegistryRefusedError, RegistryChangedError,
        SchemaCompilerError, ConfigurationError, LakeNotWritableError, LakeUnavailableError."""
        return self._decoded(values, wire.heads_of(values, self.id_from), lambda decoder: decoder.decode)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode_exactly`. Raises the same errors as `decode`."""
        return self._decoded(values, wire.heads_exactly(values, self.id_from), lambda decoder: decoder.decode_exactly)

    def decode_records(self, values: pa.BinaryArray, headers: pa.ListArray, side: wire.Side) -> Decoded:
        """See `ReadsHeaders.decode_records`. Raises the same errors as `decode`."""
        framed = wire.framed(values, headers, side, self.id_from)
        found = self.decode(framed.values)
        if not found.dead.num_rows:
            return found
        by_apicurio = self.id_from in ("apicurio", "apicurio_global")
        foreign = np.zeros(len(values), bool) if by_apicurio else wire.apicurio_rows(headers, side)
        letters = [
            DeadLetter(
                **{
                    **letter,
                    "detail": self._detail(framed, letter, values) + _hint(foreign, letter["row"]),
                }
            )
            for letter in found.dead.to_pylist()
        ]
        return replace(found, dead=dead_letters(letters))

    def _detail(self, framed: wire.Framed, letter: dict[str, Any], values: pa.BinaryArray) -> str:
        fault = framed.faults.get(letter["row"])
        return str(letter["detail"]) if fault is None else fault + self.reader.hint(values[letter["row"]].as_py())

    def _decoded(
        self, values: pa.BinaryArray, heads: wire.Heads, way: Callable[[Decoder], Callable[[pa.BinaryArray], Decoded]]
    ) -> Decoded:
        ids = heads.numbers
        self._learn(heads)
        numbers = np.unique(ids).tolist()
        if len(numbers) == 1 and isinstance(known := self._known.get(heads.key(numbers[0])), _Readable):
            return way(known.decoder)(wire.data_of(values, heads.key(numbers[0])))
        groups, dead = [self._nothing()], []
        order = np.zeros(len(values), np.int64)  # row 0 of all groups is an empty row, used until a value was read
        begin = 1
        for number in numbers:
            rows = np.flatnonzero(ids == number)
            group = values.take(pa.array(rows))
            known = self._known.get(heads.key(number))
            if isinstance(known, _Readable):
                found = way(known.decoder)(wire.data_of(group, heads.key(number)))
                groups.append(found)
                order[rows] = begin + np.arange(rows.size)
                begin += rows.size
                dead += [DeadLetter(**{**letter, "row": int(rows[letter["row"]])}) for letter in found.dead.to_pylist()]
            elif known is not None:
                dead += [DeadLetter(row, known.reason, None, known.detail) for row in rows.tolist()]
            else:
                letters = zip(rows.tolist(), group.to_pylist(), strict=True)
                dead += [
                    DeadLetter(row, "malformed", None, wire.fault_of(value) + self.reader.hint(value))
                    for row, value in letters
                    if value is not None
                ]
        taken = pa.array(order)
        columns = [
            pa.concat_arrays([group.columns.column(at) for group in groups]).take(taken)
            for at in range(len(self.fields))
        ]
        return Decoded(
            pa.RecordBatch.from_arrays(columns, schema=self.fields),
            pa.concat_arrays([group.rescued for group in groups]).take(taken),
            dead_letters(sorted(dead, key=lambda letter: letter.row)),
        )

    def _nothing(self) -> Decoded:
        """Return a row of nulls."""
        columns = pa.RecordBatch.from_arrays([pa.nulls(1, each.type) for each in self.fields], schema=self.fields)
        return Decoded(columns, pa.nulls(1, pa.string()), dead_letters([]))

    def _learn(self, heads: wire.Heads) -> None:
        """For each id in `heads`, find the decoder, or the reason why values with the id cannot be read.

        The most frequent ids come first. After `MOST_UNKNOWN` unknown ids, only ids that the lake knows are looked up.
        Writers to the topic therefore cannot cause endless requests to the registry.
        """
        numbers, rows = np.unique(heads.numbers, return_counts=True)
        ordered = [heads.key(n) for n in numbers[np.argsort(-rows, kind="stable")].tolist()]
        missing = [key for key in ordered if key not in self._known and key != wire.NONE]
        for key in missing:
            if isinstance(key, int) and not 1 <= key <= LARGEST_ID:
                self._known[key] = _Fault("unknown_schema", _no_id(key))
        asked = [key for key in missing if key not in self._known]
        if not asked:
            return
        settings = RegistrySettings.of({URL_VARIABLE: self.url} | dict(os.environ))
        cache = None if self.schemas is None else SchemaCache(self.schemas, settings.digest, settings.url)
        asking = _Asking(settings, cache, self.unknown, self.reader.kind)
        try:
            for key in asked:
                self._known[key] = self._known_as(key, asking)
        finally:
            asking.close()

    def _known_as(self, number: wire.Key, asking: _Asking) -> _Readable | _Fault:
        try:
            schema = asking.schema(number)
            return _Readable(self.reader.decoder_for(schema))
        except UnknownId as error:
            return _Fault("unknown_schema", str(error))
        except OtherRecord as error:
            return _Fault("wrong_type", f"schema {number}: {error}")
        except (BadReferences, BadSchema) as error:
            return _Fault("bad_schema", f"schema {number}: {error}")


class _Asking:
    """Looks up the new ids of one block, in the lake's files and in the registry. `unknown` contains the ids without a
    schema."""

    def __init__(
        self, settings: RegistrySettings, cache: SchemaCache | None, unknown: list[wire.Key], kind: str
    ) -> None:
        self._settings, self._cache, self._unknown, self._kind = settings, cache, unknown, kind
        self._client = RegistryClient(settings)
        self._hurried: RegistryClient | None = RegistryClient(settings, patience=HURRIED)

    def close(self) -> None:
        """Close the connections."""
        for client in (self._client, self._hurried):
            if client is not None:
                client.close()

    def schema(self, number: wire.Key) -> Registered:
        """Return the schema of an id, and store the schema.

        Raises UnknownId, BadReferences, RegistryChangedError, and the errors of `RegistryClient.schema` and
        `SchemaCache`.
        """
        kept = None if self._cache is None else self._cache.read(number)
        if kept is not None:
            found = self._confirmed(number)
            if found is not None:
                self._compare(number, self._settings.url, kept, found)
            return kept
        if len(self._unknown) >= MOST_UNKNOWN:
            raise UnknownId(
                number, f"it was not looked up, because {MOST_UNKNOWN} other ids were already missing from the registry"
            )
        try:
            found = self._client.schema(number, self._kind)
        except UnknownId:
            self._unknown.append(number)
            raise
        if self._cache is not None:
            other = self._cache.elsewhere(number)
            if other is not None:
                self._compare(number, other.origin, other.schema, found)
            self._cache.write(number, found)
        return found

    def _confirmed(self, number: wire.Key) -> Registered | None:
        """Return the registry's current schema for a stored id, or None if the registry does not answer or no longer
        has the id. If the registry does not answer, it is not queried again.

        If the registry is unavailable or has lost the id, windows are still decoded with the stored schema.
        """
        if self._hurried is None:
            return None
        try:
            return self._hurried.schema(number, self._kind)
        except UnknownId:
            return None
        except (BadReferences, RegistryUnreachableError, RegistryRefusedError):
            self._hurried.close()
            self._hurried = None
            return None

    def _compare(self, number: wire.Key, origin: str, known: Registered, found: Registered) -> None:
        if known.fingerprint != found.fingerprint:
            raise RegistryChangedError(self._settings.url, number, origin, known.fingerprint, found.fingerprint)


def _no_id(number: int) -> str:
    text = f"{number} is not a schema id; schema ids are 1 to {LARGEST_ID}"
    return text + ("; Apicurio's 8-byte ids begin like this: declare `id: apicurio`" if number == 0 else "")


def _hint(foreign: npt.NDArray[np.bool_], row: int) -> str:
    return "; the record names its schema in an Apicurio header: declare `id: apicurio`" if foreign[row] else ""
