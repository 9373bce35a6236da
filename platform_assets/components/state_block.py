"""The `state:` block of a topic's YAML."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.lake import changes_table, decoded_table
from platform_assets.model import debezium
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.keeping import keep_of
from platform_assets.model.state import POSITION, StateDeclaration

_FIELDS: Final = ("key", "order", "deletes", "keep", "history", "deletes_kept", "snapshots")


def state_declaration(block: Mapping[str, Any], decode: DecodeDeclaration | None = None) -> StateDeclaration:
    """Parse the block into a declaration. With `decode`, compare it with the columns of the decoded table. Raises
    ConfigurationError, which gives the field, its value and the allowed values."""
    for name in block:
        if name not in _FIELDS:
            close = difflib.get_close_matches(str(name), _FIELDS, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(_FIELDS)}"
            raise ConfigurationError(f"state: unknown field {name!r}: {hint}")
    key = block.get("key")
    if not isinstance(key, list | tuple) or any(not isinstance(name, str) for name in key):
        raise ConfigurationError(f"key: must be a list of columns such as [id], not {key!r}")
    rest = {
        name: block.get(name, default)
        for name, default in (("order", POSITION), ("keep", "last"), ("snapshots", "partial"))
    }
    is_debezium = decode is not None and decode.value.format == debezium.FORMAT
    rest["deletes"] = block.get("deletes", "debezium" if is_debezium else "tombstone")
    for name, given in rest.items():
        if not isinstance(given, str):
            raise ConfigurationError(f"{name}: must be text, not {given!r}")
    history = block.get("history", False)
    if not isinstance(history, bool):
        raise ConfigurationError(f"history: must be true or false, not {history!r}")
    kept = block.get("deletes_kept")
    deletes_kept = keep_of(kept) if isinstance(kept, str) else None
    if kept is not None and deletes_kept is None:
        raise ConfigurationError(
            f"deletes_kept: {kept!r} is not a number of days or weeks: write `7 days` or `2 weeks`, from 1 day to 36500 days"
        )
    if decode is not None:
        _check_deletes(rest["deletes"], decode.value)
        if is_debezium:
            for fact in (debezium.OPERATION, debezium.LSN, debezium.SNAPSHOT):
                rest[fact] = debezium.column_of(decode.value, fact)
    state = StateDeclaration(tuple(key), **rest, history=history, deletes_kept=deletes_kept)
    if decode is not None:
        of_key = None if decode.key is None else decoder_of(decode.key).fields
        changes_table.columns(decoded_table.columns(of_key, decoder_of(decode.value).fields), state)
    return state


def _check_deletes(deletes: object, value: FormatSpec) -> None:
    """Change events have operations, which no other format has, and which no other `deletes` reads."""
    if value.format == debezium.FORMAT and deletes in ("tombstone", "none"):
        raise ConfigurationError(
            f"deletes: with `{deletes}`, a change event that deletes a row of the database would be a row of the state: use "
            "`deletes: debezium`, or leave `deletes` out"
        )
    if value.format != debezium.FORMAT and deletes == "debezium":
        raise ConfigurationError(
            f"deletes: 'debezium' reads the operation of change events, which `format: {value.format}` does not have: use "
            "`format: debezium` in `decode: value`, or `deletes: tombstone`"
        )
