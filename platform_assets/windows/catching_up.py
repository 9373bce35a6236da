"""Loading many windows: those that were never loaded are written by one job of the engine, and committed one by one, in order.

What is decided of a window is what `loading` decides of one that comes alone. Windows that need more than reading Kafka, such
as those that were loaded before, do come alone, at their turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime

from platform_assets.engines.batching import read_together
from platform_assets.engines.protocol import Order, Written
from platform_assets.errors import ConcurrentLoadError, PlatformError
from platform_assets.lake import raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.erased import erased_of
from platform_assets.model.windows import edge_of, window_starting_at
from platform_assets.windows import sealing
from platform_assets.windows.loading import Loader
from platform_assets.windows.replacing import Loaded

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A window that is to be loaded for the first time."""

    sealed: SealedWindow
    metadata: LoadMetadata
    commit: WindowCommit
    order: Order
    check: Callable[[], None]


def load_many(loader: Loader, keys: Sequence[str]) -> Iterator[tuple[str, Loaded | PlatformError]]:
    """Load each window of `keys`, which differ, in this order; gives what became of it, as soon as it is known.

    A window that fails holds up no other. Errors are those of `Loader.load`.
    """
    sealed = _sealed(loader, keys)
    for batch in read_together(keys, lambda key: sealed[key].ranges.size if key in sealed else 0):
        yield from _load_batch(loader, batch, sealed)


def _load_batch(
    loader: Loader, keys: Sequence[str], sealed: Mapping[str, SealedWindow]
) -> Iterator[tuple[str, Loaded | PlatformError]]:
    try:
        prepared = _prepared(loader, [sealed[key] for key in keys if key in sealed])
    except PlatformError as e:
        # Whatever it is, each window meets it by itself, and some may not.
        _log.info("windows are loaded one by one: %s", e)
        prepared = {}
    orders = [p.order for p in prepared.values() if isinstance(p, _Prepared)]
    with closing(loader.engine.write_many(orders, loader.declaration.records_per_file)) as written:
        for key in keys:
            window = prepared.get(key)
            outcome: Loaded | PlatformError
            try:
                if window is None:
                    outcome = loader.load(key)
                else:
                    outcome = _load_prepared(loader, window, written) if isinstance(window, _Prepared) else window
            except PlatformError as e:
                outcome = e
            yield key, outcome


def _load_prepared(loader: Loader, window: _Prepared, written: Iterator[Written | PlatformError]) -> Loaded:
    def write(load_id: str) -> Written:
        outcome = next(written)
        if isinstance(outcome, PlatformError):
            raise outcome
        return outcome

    try:
        return loader.replacer.first(window.commit, window.metadata, write, window.check)
    except ConcurrentLoadError as e:
        _log.info("%s Comparing with it now.", e)
        return loader.load(window.sealed.key)


def _sealed(loader: Loader, keys: Sequence[str]) -> dict[str, SealedWindow]:
    """Those of the windows that are in the ledger, by key; the others are sealed when it is their turn."""
    edges: list[datetime] = []
    for key in keys if len(keys) > 1 else ():
        with suppress(ValueError):  # no key of a window, which is an error when it is its turn
            edges.append(edge_of(key))
    if not edges:
        return {}
    last = window_starting_at(loader.declaration.schedule, max(edges))
    wanted, topic = set(keys), loader.declaration.topic
    windows = loader.ledger.windows(topic, min(edges), None if last is None else last.end)
    return {w.key: w for w in windows if w.key in wanted}


def _prepared(loader: Loader, windows: Sequence[SealedWindow]) -> dict[str, _Prepared | PlatformError]:
    """Those of the windows that an engine may read together: with offsets, of one generation, and without rows or receipt.

    The error is there instead where the brokers no longer have a window's offsets.
    """
    if len(windows) < 2:
        return {}
    table, topic = loader.declaration.raw_table, loader.declaration.topic
    loader.ledger.create()
    sealing.check_ledger_knows_table(table, loader.ledger.lake, loader.ledger.newest_cut(topic))
    raw_table.create(loader.table, topic)
    # Opened before the receipts are read, as for each window alone.
    opened = loader.replacer.open()
    held = opened.held()
    receipts = loader.ledger.receipts(table, [w.key for w in windows])
    decided = loader.decided()
    accepted = loader.ledger.accepted_losses_of(table, [w.key for w in windows])
    erased = erased_of(loader.ledger, topic, list(accepted)) if accepted else {}
    ends: dict[int, int] = {}
    for window in windows:
        ends |= {p: max(r.end, ends.get(p, 0)) for p, r in window.ranges.items() if r.size}
    bounds, first_cut = loader.bounds(topic, ends), loader.first_cut(windows[0])
    found: dict[str, _Prepared | PlatformError] = {}
    for window in windows:
        known = receipts.get(window.key)
        is_new = (known is None or known.kind == "empty") and window.key not in held
        if not is_new or not window.ranges.size or window.generation != windows[0].generation:
            continue
        without = accepted.get(window.key, {})
        try:
            loader.check_held(window, window.ranges.non_empty(), without, bounds)
        except PlatformError as e:
            found[window.key] = e
            continue
        metadata = replace(loader.metadata(window, first_cut), erased=erased.get(window.key, {}))
        order = Order(loader.records(window, without), metadata.load_id, table)
        check = loader.last_check(window, without, decided)
        found[window.key] = _Prepared(window, metadata, opened.of_new_window(), order, check)
    return found
