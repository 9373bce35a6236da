"""Parking windows: a window that cannot be loaded is set aside, so that no run is requested for it until it is
unparked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from platform_assets.errors import ConfigurationError, UnknownWindowError
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Author, Decision
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef


def park(table: TableRef, keys: Sequence[str], author: Author, ledger: Ledger) -> None:
    """Stop requesting runs for the windows `keys`. Either all of them are parked, or none.

    Raises UnknownWindowError for a window that is not sealed, and ConfigurationError for a loaded window, for which no
    runs are requested anyway.
    """
    for key in keys:
        try:
            sealed = ledger.window(table.topic, key)
        except ValueError as e:
            raise UnknownWindowError(table.topic, key, "a key has the form YYYY-MM-DD-HH:MM, in UTC") from e
        if sealed is None:
            raise UnknownWindowError(table.topic, key, "the ledger has no sealed window with that key")
    loaded = sorted(ledger.receipts(table, list(keys)))
    if loaded:
        raise ConfigurationError(
            f"{', '.join(loaded)} of {table}: already loaded, and loaded windows cannot be parked; nothing was parked"
        )
    _record("park", table, keys, author, ledger)


def unpark(table: TableRef, keys: Sequence[str], author: Author, ledger: Ledger) -> None:
    """Resume requesting runs for the windows `keys`. If one of them is not parked, raises ConfigurationError and
    changes nothing."""
    parked = decisions.parking(ledger.lake, table).parked
    others = sorted(set(keys) - set(parked))
    if others:
        known = ", ".join(parked) or "none"
        raise ConfigurationError(
            f"{', '.join(others)} of {table}: not parked (parked windows: {known}); nothing was changed"
        )
    _record("unpark", table, keys, author, ledger)


def _record(
    kind: Literal["park", "unpark"], table: TableRef, keys: Sequence[str], author: Author, ledger: Ledger
) -> None:
    details = {} if table == TableRef.raw(table.topic) else {decisions.TABLE: table.name}
    decisions.record(ledger.lake, Decision(table.topic, kind, tuple(keys), author.name, author.reason, details))
