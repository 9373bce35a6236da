"""The decoder of a declaration: the one place that knows all formats.

A format is a function from its spec to a decoder. To add a format, write the function and name it here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from platform_assets.decoding.decoder import Decoder
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec

if TYPE_CHECKING:
    from platform_assets.decoding.registry.cache import Schemas

_FORMATS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "avro": "avro",
        "csv": "csv",
        "json": "json",
        "patterns": "patterns",
        "protobuf": "protobuf",
        "string": "text",
    }
)
"""By format, the module below this package whose function `decoder(spec)` makes one; imported on first use."""
_REGISTRY: Final = "registry"
"""The option of any format whose values name their schema."""


def decoder_of(spec: FormatSpec, schemas: Schemas | None = None, registry: str = "") -> Decoder:
    """Return the decoder of one side of a record. Raises ConfigurationError, which names the option at fault.

    `schemas` returns the files that keep schemas read from a registry; without it, the registry is asked each time. `registry` is its
    address, used if the environment of the decoding process has none.
    """
    if spec.format not in _FORMATS:
        raise ConfigurationError(f"{spec.format!r} is not a format; use one of: {', '.join(sorted(_FORMATS))}")
    if _REGISTRY in spec.options:
        from platform_assets.decoding.registry import decoder

        return decoder(spec).at(schemas, registry)
    module = importlib.import_module(f"{__package__}.{_FORMATS[spec.format]}")
    return cast(Callable[[FormatSpec], Decoder], module.decoder)(spec)
