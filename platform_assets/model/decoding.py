"""The declaration of how a topic's records become typed rows, as plain values, and the digest that identifies the
declaration. No I/O."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from platform_assets.errors import ConfigurationError
from platform_assets.model.expectations import Expectation

CODE_VERSION: Final = 5
"""Version of the decoders' results: of values, and of the texts in dead letters, which the digests cover too.

A release that changes results raises this version, so that windows are deliberately decoded again.
"""


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """The format of a record's key or value, and the format's options from YAML. `options` are plain JSON values, which
    the format's module checks."""

    format: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_fields(self) -> dict[str, Any]:
        """Return the format in the form that the digest and the metadata use."""
        return {"format": self.format, **dict(self.options)}


@dataclass(frozen=True, slots=True)
class Repair:
    """A value to decode instead of the value of a known bad record, which is at `offset` of `partition` in a window.

    `value` is text, or base64 if `binary` is true.
    """

    window: str
    partition: int
    offset: int
    value: str
    binary: bool = False

    @property
    def content(self) -> bytes:
        """The bytes to decode."""
        return base64.b64decode(self.value) if self.binary else self.value.encode()

    def to_fields(self) -> list[Any]:
        """Return the repair, without its window, in the form that digests use."""
        return [self.partition, self.offset, self.value, *(["base64"] if self.binary else [])]


@dataclass(frozen=True, slots=True)
class DecodeDeclaration:
    """The declaration of how a topic's records are decoded. Without `key`, keys are not decoded.

    `warn_share` and `fail_share` are shares of a window's records, from 0 to 1. If the share of dead letters exceeds
    one of them, the check reports a warning or an error, respectively. If `revision` is raised, windows are decoded
    again although nothing else has changed. `replaces` is the fingerprint of the columns of an existing table, which
    the columns declared here replace. With `loses_rows`, the existing columns are replaced even if this loses rows of
    earlier windows. `expect` does not affect the rows. Upkeep sorts the rows in merged files by the columns
    `cluster_by`.
    """

    value: FormatSpec
    key: FormatSpec | None = None
    warn_share: float = 0.0
    fail_share: float = 0.05
    revision: int = 1
    replaces: str | None = None
    loses_rows: bool = False
    repairs: tuple[Repair, ...] = ()
    expect: tuple[Expectation, ...] = ()
    cluster_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.warn_share <= self.fail_share <= 1:
            raise ConfigurationError(
                f"dead_letters: warn ({self.warn_share:g}) and fail ({self.fail_share:g}) must be shares of a window's "
                "records, with 0 ≤ warn ≤ fail ≤ 1"
            )

    @property
    def by_registry(self) -> bool:
        """True if values or keys refer to schemas in a registry."""
        return any(side is not None and bool(side.options.get("registry")) for side in (self.value, self.key))

    @property
    def digest(self) -> str:
        """Digest of everything that determines a record's rows, except for repairs. Expectations and the thresholds of
        checks do not affect this digest."""
        what = {
            "code": CODE_VERSION,
            "revision": self.revision,
            "value": self.value.to_fields(),
            "key": None if self.key is None else self.key.to_fields(),
        }
        return _digest(what)

    def digest_of(self, window: str) -> str:
        """Return the digest for one window, including the window's repairs. A new repair therefore causes only that
        window to be decoded again."""
        repairs = [r.to_fields() for r in sorted(self.repairs_of(window), key=lambda r: (r.partition, r.offset))]
        return self.digest if not repairs else _digest({"declared": self.digest, "repairs": repairs})

    @property
    def fingerprint(self) -> str:
        """Fingerprint of everything that determines whether windows can be decoded: the digest, repairs, and replaced
        columns.
        """
        repairs = [[r.window, *r.to_fields()] for r in self.repairs]
        loses = {"loses_rows": True} if self.loses_rows else {}
        return _digest({"declared": self.digest, "replaces": self.replaces, "repairs": repairs, **loses})

    def repairs_of(self, window: str) -> tuple[Repair, ...]:
        """Return the repairs of one window."""
        return tuple(r for r in self.repairs if r.window == window)


def _digest(what: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
