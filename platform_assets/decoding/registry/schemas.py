"""What a registry has: schemas by id, as it gives them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
LARGEST_ID: Final = (1 << 31) - 1
"""Ids are 1 to this."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema, with those that it refers to: by the name that it has for each, such that each comes after its own."""

    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """As a cache keeps it."""
        return json.dumps({"schemaType": self.kind, "schema": self.text, "references": dict(self.references)})

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that name the schema and its references, whatever white space JSON has."""
        texts = [self.text, *(part for pair in sorted(self.references.items()) for part in pair)]
        meant = [self.kind, *(_canonical(text) if self.kind != PROTOBUF else text for text in texts)]
        return hashlib.sha256(json.dumps(meant).encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, text: str) -> Registered:
        """Read what `to_json` wrote. Raises ValueError where it is something else."""
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
    """JSON without white space and by sorted names; any other text as it is."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


class UnknownId(Exception):
    """An id has no schema in the registry, or, for the reason given, was not looked up."""

    def __init__(self, number: int | str, reason: str = "the registry has no schema of it") -> None:
        self.number = number
        super().__init__(f"schema id {number}: {reason}")


class BadReferences(Exception):
    """What a schema refers to has no end: it cannot be read, today or later."""
