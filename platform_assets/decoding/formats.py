"""The decoder for a declaration, and the table of all formats.

A format is a function from its spec to a decoder. To add a format, write the function and add it to `FORMATS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from platform_assets.decoding.decoder import Decoder
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec

if TYPE_CHECKING:
    from platform_assets.decoding.registry.cache import Schemas


@dataclass(frozen=True, slots=True)
class Format:
    """One format. The `module` in this package contains the function `decoder(spec)`. The module is imported on first
    use.

    Values of a `binary` format cannot be written as text. If `registry` is true, values can name their schema; the
    readers for such values are in `registry/__init__`. `other_reader` names the reader in `checks/other_readers` that
    shares no code with this decoder. That reader supports only the options in `its_options`.
    """

    module: str
    binary: bool = False
    registry: bool = False
    other_reader: str | None = None
    its_options: frozenset[str] = frozenset()


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        "avro": Format(
            "avro",
            binary=True,
            registry=True,
            other_reader="fastavro",
            its_options=frozenset({"schema", "writer_schema", "maps", "max_bytes", "registry"}),
        ),
        "csv": Format(
            "csv",
            other_reader="Python's csv",
            its_options=frozenset({"schema", "delimiter", "quote", "escape", "null", "timestamps", "max_bytes"}),
        ),
        "debezium": Format("debezium", registry=True),
        "json": Format(
            "json",
            registry=True,
            other_reader="Python's json",
            its_options=frozenset({"schema", "json_schema", "timestamps", "max_depth", "max_bytes", "registry"}),
        ),
        "patterns": Format("patterns"),
        "protobuf": Format("protobuf", binary=True, registry=True),
        "string": Format("text"),
    }
)
_REGISTRY: Final = "registry"
"""Name of the option, the same in each format, for values that name their own schema."""


def decoder_of(spec: FormatSpec, schemas: Schemas | None = None, registry: str = "") -> Decoder:
    """Return the decoder for one side of a record. Raises ConfigurationError, which names the faulty option.

    `schemas` returns the files that store schemas read from a registry. Without `schemas`, the registry is queried each
    time. `registry` is the address of the registry. This address is used if the environment of the decoding process
    does not set one.
    """
    if spec.format not in FORMATS:
        raise ConfigurationError(f"{spec.format!r} is not a format; use one of: {', '.join(sorted(FORMATS))}")
    known = FORMATS[spec.format]
    if _REGISTRY in spec.options:
        if not known.registry:
            *some, last = sorted(name for name, other in FORMATS.items() if other.registry)
            raise ConfigurationError(
                f"format {spec.format!r} does not support `registry`; only {', '.join(some)} and {last} do: leave out 'registry'"
            )
        from platform_assets.decoding.registry import decoder

        return decoder(spec).at(schemas, registry)
    module = importlib.import_module(f"{__package__}.{known.module}")
    return cast(Callable[[FormatSpec], Decoder], module.decoder)(spec)
