"""The options of a format, as YAML has them: each is checked when the declaration is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec

MOST_BYTES: Final = 16 << 20
"""Of a value, where option `max_bytes` says no other number."""
_LARGEST: Final = 1 << 30


class Options:
    """Options of one side of a record. Each method takes one and raises ConfigurationError, which says what it may be."""

    def __init__(self, spec: FormatSpec, known: Iterable[str]) -> None:
        self._spec = spec
        known = sorted(known)
        for name in spec.options:
            if name not in known:
                raise ConfigurationError(
                    f"format {spec.format!r} has no option {name!r}; there are: {', '.join(known)}"
                )

    def text(self, name: str, default: str | None = None) -> str:
        """A text that is not empty; required where there is no default."""
        found = self._spec.options.get(name, default)
        if not isinstance(found, str) or not found:
            raise self.wrong(name, "a text that is not empty")
        return found

    def any_text(self, name: str, default: str) -> str:
        """A text, which may be empty."""
        found = self._spec.options.get(name, default)
        if not isinstance(found, str):
            raise self.wrong(name, "a text; put it into quotes")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        found = self._spec.options.get(name, default)
        if not isinstance(found, bool):
            raise self.wrong(name, "true or false")
        return found

    def one_of(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of a few texts."""
        found = self._spec.options.get(name, default)
        choices = list(choices)
        if found not in choices:
            raise self.wrong(name, f"one of: {', '.join(choices)}")
        return str(found)

    def items(self, name: str) -> list[Any]:
        """A list that is not empty."""
        found = self._spec.options.get(name)
        if not isinstance(found, list) or not found:
            raise self.wrong(name, "a list that is not empty")
        return found

    def map_columns(self) -> bool:
        """True if maps become MAP columns, false if they become arrays of pairs."""
        return self.one_of("maps", ("array", "map"), "array") == "map"

    def max_bytes(self) -> int:
        """The size above which a value is a dead letter."""
        found = self._spec.options.get("max_bytes", MOST_BYTES)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= _LARGEST:
            raise self.wrong("max_bytes", f"a number of bytes from 1 to {_LARGEST}")
        return found

    def wrong(self, name: str, wanted: str) -> ConfigurationError:
        """What `name` is, and what it may be."""
        what = f"is {self._spec.options[name]!r}" if name in self._spec.options else "is missing"
        return ConfigurationError(f"option {name!r} of format {self._spec.format!r} {what}; it has to be {wanted}")
