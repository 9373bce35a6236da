"""A registry's schemas by id, in its own form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
LARGEST_ID: Final = (1 << 31) - 1
"""Ids are from 1 to this."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema, with the schemas that it refers to by their names in it; each comes after its own references."""

    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return it in the form of the cache."""
        return json.dumps({"schemaType": self.kind, "schema": self.text, "references": dict(self.references)})

    @property
    def fingerprint(self) -> str:
        """Return sixteen hexadecimal digits that identify the schema and its references, ignoring white space in JSON."""
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
            raise ValueError("a part of the schema is no text")
        return cls(kind, schema, references)


def _canonical(text: str) -> str:
    """Return JSON without white space and with sorted names; any other text unchanged."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


class UnknownId(Exception):
    """An id has no schema in the registry or, for the given reason, was not looked up."""

    def __init__(self, number: int | str, reason: str = "the registry has no schema of it") -> None:
        self.number = number
        super().__init__(f"schema id {number}: {reason}")


class BadReferences(Exception):
    """A schema's references have no end: it can never be read."""
