"""Loading many windows: one engine job writes the windows that were never loaded, and they are committed one by one, in
order.

Each window is treated as `loading` treats a single window. Windows that need more than reading Kafka, for example
because they were loaded before, are loaded individually when it is their turn. The windows may belong to several
topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Final

from platform_assets.engines.batching import batched_windows
from platform_assets.engines.protocol import Order, StagedFiles
from platform_assets.errors import BrokerUnreachableError, ConcurrentLoadError, PlatformError
from platform_assets.lake import raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.ledger import erasure_rules
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.model.logs import logger
from platform_assets.model.windows import edge_of, window_starting_at
from platform_assets.windows.decide import carrying_out
from platform_assets.windows.load import sealing
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.load.replacing import Loaded

_log = logger(__name__)

RECEIPTS_AT_ONCE: Final = 50
"""Number of receipts per append when many topics are loaded together. An append costs as much as loading a small
window."""
TOPICS_IN_VAIN: Final = 3
"""Number of topics for which a service did not answer before it counts as unavailable. The number is small because each
topic may have waited for its timeout."""

_Item = tuple[Loader, str]
"""The loader of a window's topic, and the window's key."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A window to be loaded for the first time."""

    sealed: SealedWindow
    metadata: LoadMetadata
    commit: WindowCommit
    order: Order
    check: Callable[[], None]


def load_many(loader: Loader, keys: Sequence[str]) -> Iterator[tuple[str, Loaded | PlatformError]]:
    """Load each window of `keys`, which are distinct, in this order. Yield each outcome as soon as it is known.

    A window that fails does not block the others. Errors are those of `Loader.load`.
    """
    for _, key, outcome in _load([(loader, keys)], receipts_at_once=1):
        yield key, outcome


def load_group(
    wanted: Sequence[tuple[Loader, Sequence[str]]],
) -> Iterator[tuple[Loader, str, Loaded | PlatformError]]:
    """Load windows of several topics as `load_many` does. Loaders share one lake, and may share jobs of an engine.

    Loaders with the same engine must share one engine object. Receipts of up to `RECEIPTS_AT_ONCE` windows are recorded
    together, and a window's outcome is yielded once its receipt is recorded. A run that is killed before that leaves
    commits without a receipt. The next run finds these commits, as it does for a single window.
    """
    yield from _load(wanted, RECEIPTS_AT_ONCE)


def _load(
    wanted: Sequence[tuple[Loader, Sequence[str]]], receipts_at_once: int
) -> Iterator[tuple[Loader, str, Loaded | PlatformError]]:
    items = [(loader, key) for loader, keys in wanted for key in keys]
    sealed = {(_topic(loader), key): w for loader, keys in wanted for key, w in _sealed(loader, keys).items()}

    def rows(item: _Item) -> int:
        found = sealed.get((_topic(item[0]), item[1]))
        return 0 if found is None else found.ranges.size

    for batch in batched_windows(items, rows):
        for _, alike in groupby(batch, lambda i: (id(i[0].engine), i[0].declaration.records_per_file)):
            yield from _load_batch(list(alike), sealed, receipts_at_once)


def _topic(loader: Loader) -> str:
    return loader.declaration.topic


@dataclass(frozen=True, slots=True)
class _Unrecorded:
    """A committed load whose receipt is not recorded yet."""

    loader: Loader
    key: str
    loaded: Loaded


def _load_batch(
    batch: Sequence[_Item], sealed: Mapping[tuple[str, str], SealedWindow], receipts_at_once: int
) -> Iterator[tuple[Loader, str, Loaded | PlatformError]]:
    # A single window does not need this.
    prepared = _prepared_group(batch, sealed) if len(batch) > 1 else {}
    orders = [p.order for p in prepared.values() if isinstance(p, _Prepared)]
    first = batch[0][0]
    waiting: list[_Unrecorded] = []
    with closing(first.engine.write_many(orders, first.declaration.records_per_file)) as written:
        try:
            for loader, key in batch:
                outcome = _outcome(loader, key, prepared.get((_topic(loader), key)), written)
                if isinstance(outcome, _Unrecorded):
                    waiting.append(outcome)
                    if len(waiting) >= receipts_at_once:
                        yield from _recorded(waiting)
                    continue
                yield from _recorded(waiting)
                yield loader, key, outcome
            yield from _recorded(waiting)
        finally:
            # The caller has stopped, or an error unrelated to a window was raised: record what is committed anyway.
            for loader, key, outcome in _recorded(waiting):
                if isinstance(outcome, PlatformError):
                    _log.warning(
                        "%s: window %s is loaded but not recorded in the ledger: %s", _topic(loader), key, outcome
                    )


def _outcome(
    loader: Loader,
    key: str,
    window: _Prepared | PlatformError | None,
    written: Iterator[StagedFiles | PlatformError],
) -> _Unrecorded | Loaded | PlatformError:
    try:
        if isinstance(window, _Prepared):
            try:
                return _Unrecorded(loader, key, _committed(loader, window, written))
            except ConcurrentLoadError as e:
                _log.info("%s Doing that now, in this run.", e)
        elif window is not None:
            return window
        return loader.load(key)
    except PlatformError as e:
        return e


def _recorded(waiting: list[_Unrecorded]) -> list[tuple[Loader, str, Loaded | PlatformError]]:
    """Record all waiting receipts, clear the list, and return each outcome. If recording fails, the outcome of every
    window is that error."""
    if not waiting:
        return []
    loads = list(waiting)
    waiting.clear()
    try:
        loads[0].loader.ledger.record_receipts([each.loaded.receipt for each in loads])
    except PlatformError as e:
        return [(each.loader, each.key, e) for each in loads]
    return [(each.loader, each.key, each.loaded) for each in loads]


def _prepared_group(
    batch: Sequence[_Item], sealed: Mapping[tuple[str, str], SealedWindow]
) -> dict[tuple[str, str], _Prepared | PlatformError]:
    """Return the result of `_prepared` for each topic. If this fails for a topic, the error is raised when it is the
    turn of the topic's windows."""
    found: dict[tuple[str, str], _Prepared | PlatformError] = {}
    unreachable = 0
    for topic, of_topic in groupby(batch, lambda item: _topic(item[0])):
        some = list(of_topic)
        windows = [sealed[topic, key] for _, key in some if (topic, key) in sealed]
        try:
            found |= {(topic, key): each for key, each in _prepared(some[0][0], windows).items()}
        except BrokerUnreachableError:
            unreachable += 1
            if unreachable == TOPICS_IN_VAIN:
                break
        except PlatformError:
            continue
    return found


def _committed(loader: Loader, window: _Prepared, written: Iterator[StagedFiles | PlatformError]) -> Loaded:
    def write(load_id: str) -> StagedFiles:
        outcome = next(written)
        if isinstance(outcome, PlatformError):
            raise outcome
        return loader.without_erased_keys(window.sealed, outcome)

    return loader.replacer.committed(window.commit, window.metadata, write, window.check)


def _sealed(loader: Loader, keys: Sequence[str]) -> dict[str, SealedWindow]:
    """Return the windows that are in the ledger, by key. The other windows are sealed when it is their turn."""
    edges: list[datetime] = []
    for key in keys:
        with suppress(ValueError):  # not a window key: raised when it is its turn
            edges.append(edge_of(key))
    if not edges:
        return {}
    last = window_starting_at(loader.declaration.schedule, max(edges))
    wanted, topic = set(keys), loader.declaration.topic
    windows = loader.ledger.windows(topic, min(edges), None if last is None else last.end)
    return {w.key: w for w in windows if w.key in wanted}


def _prepared(loader: Loader, windows: Sequence[SealedWindow]) -> dict[str, _Prepared | PlatformError]:
    """Return the windows that an engine may read together: windows of one generation that have offsets, but neither
    rows nor a receipt.

    If the brokers no longer have a window's offsets, the result for this window is an error.
    """
    if not windows:
        return {}
    table, topic = loader.declaration.raw_table, loader.declaration.topic
    loader.ledger.create()
    carrying_out.carry_out(loader.ledger, topic)
    sealing.check_ledger_knows_table(table, loader.ledger.lake, loader.ledger.newest_cut(topic))
    raw_table.create(loader.table, topic)
    # Opened before the receipts are read, as for a single window.
    erasure_rules.apply(loader.ledger, windows)
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
            needed = window.ranges.non_empty()
            loader.check_held(window, needed, without, bounds)
        except PlatformError as e:
            found[window.key] = e
            continue
        metadata = replace(loader.metadata(window, first_cut), erased=erased.get(window.key, {}))
        order = Order(loader.records(opened, window, without), metadata.load_id, table)
        check = loader.last_check(window, needed, without, decided)
        found[window.key] = _Prepared(window, metadata, opened.of_new_window(), order, check)
    return found
