"""The exact path's first steps for all text formats: a value's size, and its characters."""

from __future__ import annotations

from platform_assets.decoding.decoder import Reason


class Unfit(Exception):
    """A value, or a part of it, cannot be decoded; decoders turn it into a dead letter."""

    def __init__(self, reason: Reason, detail: str, place: str | None = None) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.place = reason, detail, place


def text_of(value: bytes, max_bytes: int) -> str:
    """Decode `value` as UTF-8. Raises Unfit."""
    if len(value) > max_bytes:
        raise Unfit("too_large", f"{len(value)} bytes, and max_bytes is {max_bytes}")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unfit(
            "malformed", f"not UTF-8: {error.reason} at byte {error.start}, which is 0x{value[error.start]:02x}"
        ) from error
