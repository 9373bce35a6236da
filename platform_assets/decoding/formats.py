"""Which decoder a declaration names: the one place that knows all formats.

A format is a function from its spec to a decoder. To add one: write it, and name it here.
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
"""By name, the module below this package whose function `decoder(spec)` makes one; imported when first asked for."""
_REGISTRY: Final = "registry"
"""The option by which values of any format say that they name their schema."""


def decoder_of(spec: FormatSpec, schemas: Schemas | None = None, registry: str = "") -> Decoder:
    """The decoder of one side of a record. Raises ConfigurationError, which names the option that is at fault.

    `schemas` gives files that keep what was read of a schema registry; without them it is asked each time. `registry` is its address
    where the environment of the process that decodes has none.
    """
    if spec.format not in _FORMATS:
        raise ConfigurationError(f"{spec.format!r} is no format; there are: {', '.join(sorted(_FORMATS))}")
    if _REGISTRY in spec.options:
        from platform_assets.decoding.registry import decoder

        return decoder(spec).at(schemas, registry)
    module = importlib.import_module(f"{__package__}.{_FORMATS[spec.format]}")
    return cast(Callable[[FormatSpec], Decoder], module.decoder)(spec)
