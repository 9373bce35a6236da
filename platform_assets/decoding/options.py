"""The options of a format in YAML, which are checked when the declaration is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec

MOST_BYTES: Final = 16 << 20
"""Maximum number of bytes in a value, unless the option `max_bytes` sets another number."""
_LARGEST: Final = 1 << 30


class Options:
    """Options for one side of a record. Each method reads one option and raises ConfigurationError, which lists the
    allowed values."""

    def __init__(self, spec: FormatSpec, known: Iterable[str]) -> None:
        self._spec = spec
        known = sorted(known)
        for name in spec.options:
            if name not in known:
                raise ConfigurationError(
                    f"format {spec.format!r} has no option {name!r}; its options are: {', '.join(known)}"
                )

    def text(self, name: str, default: str | None = None) -> str:
        """Return a non-empty string. The option is required if there is no default."""
        found = self._spec.options.get(name, default)
        if not isinstance(found, str) or not found:
            raise self.wrong(name, "a non-empty string")
        return found

    def any_text(self, name: str, default: str) -> str:
        """Return a string, which can be empty."""
        found = self._spec.options.get(name, default)
        if not isinstance(found, str):
            raise self.wrong(name, "a string; put it in quotes")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """Return True or False."""
        found = self._spec.options.get(name, default)
        if not isinstance(found, bool):
            raise self.wrong(name, "true or false")
        return found

    def one_of(self, name: str, choices: Iterable[str], default: str) -> str:
        """Return one of `choices`."""
        found = self._spec.options.get(name, default)
        choices = list(choices)
        if found not in choices:
            raise self.wrong(name, f"one of: {', '.join(choices)}")
        return str(found)

    def items(self, name: str) -> list[Any]:
        """Return a non-empty list."""
        found = self._spec.options.get(name)
        if not isinstance(found, list) or not found:
            raise self.wrong(name, "a non-empty list")
        return found

    def map_columns(self) -> bool:
        """True if maps become MAP columns, false if they become arrays of pairs."""
        return self.one_of("maps", ("array", "map"), "array") == "map"

    def max_bytes(self) -> int:
        """Return the size above which a value becomes a dead letter."""
        found = self._spec.options.get("max_bytes", MOST_BYTES)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= _LARGEST:
            raise self.wrong("max_bytes", f"a number of bytes from 1 to {_LARGEST}")
        return found

    def wrong(self, name: str, wanted: str) -> ConfigurationError:
        """Return the error that shows the value of the option `name` and the allowed values."""
        what = f"is {self._spec.options[name]!r}" if name in self._spec.options else "is missing"
        return ConfigurationError(f"option {name!r} of format {self._spec.format!r} {what}; it must be {wanted}")
