"""Values of any number of registered schemas, as the declared columns."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.decoding.avro.types import BadSchema
from platform_assets.decoding.decoder import DeadLetter, Decoded, Decoder, Reason, dead_letters
from platform_assets.decoding.registry import wire
from platform_assets.decoding.registry.cache import SchemaCache, Schemas
from platform_assets.decoding.registry.client import RegistryClient
from platform_assets.decoding.registry.readers import Reader
from platform_assets.decoding.registry.schemas import LARGEST_ID, BadReferences, Registered, UnknownId
from platform_assets.decoding.registry.settings import URL_VARIABLE, RegistrySettings

Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why no value of an id can be read."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class _Readable:
    """What values of an id are read by."""

    decoder: Decoder


@dataclass(frozen=True)
class RegistryDecoder:
    """Groups a block's values by the ids that they begin with, and has each group decoded by its schema.

    `schemas` gives the files that schemas which were read are kept in; None keeps none. The registry is asked for those that are not
    there, each once in the life of this object, by settings of the environment of the process that decodes; none of them is part of it
    but `url`, which stands in where that environment has no address.
    """

    reader: Reader
    schemas: Schemas | None = None
    url: str = ""
    _known: dict[int, _Readable | _Fault] = field(default_factory=dict, repr=False, compare=False)

    @property
    def fields(self) -> pa.Schema:
        """See `Decoder.fields`."""
        return self.reader.fields

    def at(self, schemas: Schemas | None, url: str) -> RegistryDecoder:
        """The same, with schemas kept in these files, and the registry at this address."""
        return replace(self, schemas=schemas, url=url, _known={})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`. Raises RegistryUnreachableError, RegistryRefusedError, SchemaCompilerError,
        ConfigurationError, LakeNotWritableError, LakeUnavailableError."""
        return self._decoded(values, wire.ids_of(values), lambda decoder: decoder.decode)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode_exactly`; raises as `decode`."""
        ids = [wire.NONE if value is None else wire.id_of(value) for value in values.to_pylist()]
        return self._decoded(values, np.array(ids, np.int64), lambda decoder: decoder.decode_exactly)

    def _decoded(
        self, values: pa.BinaryArray, ids: Order, way: Callable[[Decoder], Callable[[pa.BinaryArray], Decoded]]
    ) -> Decoded:
        numbers = np.unique(ids).tolist()
        self._learn(numbers)
        if len(numbers) == 1 and isinstance(known := self._known.get(numbers[0]), _Readable):
            return way(known.decoder)(wire.data_of(values))
        groups, dead = [self._nothing()], []
        order = np.zeros(len(values), np.int64)  # row 0 of all groups, which is nothing, until something was read
        begin = 1
        for number in numbers:
            rows = np.flatnonzero(ids == number)
            group = values.take(pa.array(rows))
            known = self._known.get(number)
            if isinstance(known, _Readable):
                found = way(known.decoder)(wire.data_of(group))
                groups.append(found)
                order[rows] = begin + np.arange(rows.size)
                begin += rows.size
                dead += [DeadLetter(**{**letter, "row": int(rows[letter["row"]])}) for letter in found.dead.to_pylist()]
            elif known is not None:
                dead += [DeadLetter(row, known.reason, None, known.detail) for row in rows.tolist()]
            else:
                letters = zip(rows.tolist(), group.to_pylist(), strict=True)
                dead += [
                    DeadLetter(row, "malformed", None, wire.fault_of(value))
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
        """One row of nulls."""
        columns = pa.RecordBatch.from_arrays([pa.nulls(1, each.type) for each in self.fields], schema=self.fields)
        return Decoded(columns, pa.nulls(1, pa.string()), dead_letters([]))

    def _learn(self, numbers: list[int]) -> None:
        """Know of each of these ids what its values are read by, or why they are not."""
        missing = [number for number in numbers if number != wire.NONE and number not in self._known]
        for number in missing:
            if not 1 <= number <= LARGEST_ID:
                self._known[number] = _Fault(
                    "unknown_schema", f"{number} is no id of a schema: those are 1 to {LARGEST_ID}"
                )
        asked = [number for number in missing if number not in self._known]
        if not asked:
            return
        settings = RegistrySettings.of({URL_VARIABLE: self.url} | dict(os.environ))
        cache = None if self.schemas is None else SchemaCache(self.schemas, settings.digest)
        client = RegistryClient(settings)
        try:
            for number in asked:
                self._known[number] = self._known_as(number, cache, client)
        finally:
            client.close()

    def _known_as(self, number: int, cache: SchemaCache | None, client: RegistryClient) -> _Readable | _Fault:
        schema: Registered | None = None if cache is None else cache.read(number)
        if schema is None:
            try:
                schema = client.schema(number)
            except UnknownId as error:
                return _Fault("unknown_schema", str(error))
            except BadReferences as error:
                return _Fault("bad_schema", f"schema {number}: {error}")
            if cache is not None:
                cache.write(number, schema)
        try:
            return _Readable(self.reader.decoder_for(schema))
        except BadSchema as error:
            return _Fault("bad_schema", f"schema {number}: {error}")
