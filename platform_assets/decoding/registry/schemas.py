"""What a registry has: schemas by id, as it gives them."""

from __future__ import annotations

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


class UnknownId(Exception):
    """The registry answers, and has no schema of this id."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"the registry has no schema of id {number}")


class BadReferences(Exception):
    """What a schema refers to has no end: it cannot be read, today or later."""
