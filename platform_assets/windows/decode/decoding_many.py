"""Decoding many windows of a topic: one engine job writes the files of all windows, and the windows are committed one
by one, in order.

Each window is treated as `decoding` treats a single window, and gets the same commits. A window that needs more than
its raw rows, for example a comparison with the tables, is decoded individually when it is its turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Final

from platform_assets.engines.batching import batched_windows
from platform_assets.engines.decoding.engine import DecodedFiles
from platform_assets.engines.measuring import measure_of
from platform_assets.errors import ConcurrentLoadError, PlatformError
from platform_assets.lake import holdings, load_log
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.separating import separate
from platform_assets.ledger import decisions
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.model.logs import logger
from platform_assets.model.windows import edge_of
from platform_assets.windows.decode.decoding import DecodedWindow, Prepared, Receipts, WindowDecoder
from platform_assets.windows.proved_files import recognised

_log = logger(__name__)

RECEIPTS_AT_ONCE: Final = 50
"""Maximum number of first-time decoded windows whose receipts are recorded together. An append costs as much as
decoding a small window."""
_RECEIPT_SECONDS: Final = 1.0
"""Time after which receipts are recorded even if there are only a few."""

Outcome = DecodedWindow | PlatformError


@dataclass(frozen=True, slots=True)
class _Done:
    """A window that is in both tables.

    `is_new` is true if its receipts are not recorded yet. `can_wait` is false if the ledger has receipts of the
    window's earlier rows: an erasure, a concurrent load or a check would compare the tables with these receipts.
    """

    key: str
    window: DecodedWindow
    is_new: bool = True
    can_wait: bool = True


def decode_many(decoder: WindowDecoder, keys: Sequence[str]) -> Iterator[tuple[str, Outcome]]:
    """Decode each window of `keys`, which are distinct, in this order. Yield each outcome once the receipts of the
    window are recorded.

    A window that fails does not block the others. Errors are those of `WindowDecoder.decode`. A killed run leaves
    complete windows. Those without receipts are decoded again, as they are when a single window is decoded.
    """
    rows: dict[str, int] = {}
    if len(keys) > 1:
        # A ledger that cannot be read fails each window when it is its turn.
        with suppress(PlatformError):
            rows = {key: receipt.rows for key, receipt in _raw(decoder, keys).items()}
    for batch in batched_windows(keys, lambda key: rows.get(key, 0)):
        yield from _decode_batch(decoder, batch)


def _decode_batch(decoder: WindowDecoder, batch: Sequence[str]) -> Iterator[tuple[str, Outcome]]:
    # A single window does not need this.
    prepared = _prepared(decoder, batch) if len(batch) > 1 else {}
    orders = [window.order for window in prepared.values() if isinstance(window, Prepared)]
    waiting: list[_Done] = []
    since = time.monotonic()
    with closing(decoder.engine.decode_many(orders)) as written:
        try:
            for key in batch:
                window = prepared.get(key)
                if time.monotonic() - since >= _RECEIPT_SECONDS:
                    yield from _recorded(decoder, waiting)
                outcome = _committed(decoder, window, written) if isinstance(window, Prepared) else window
                if isinstance(outcome, _Done):
                    since = since if waiting else time.monotonic()
                    waiting.append(outcome)
                    if not outcome.can_wait or len(waiting) >= RECEIPTS_AT_ONCE:
                        yield from _recorded(decoder, waiting)
                    continue
                yield from _recorded(decoder, waiting)
                yield key, outcome or _alone(decoder, key)
            yield from _recorded(decoder, waiting)
        finally:
            # The caller has stopped, or an error unrelated to a window was raised: record what is committed anyway.
            for key, failed in _recorded(decoder, waiting):
                if isinstance(failed, PlatformError):
                    topic = decoder.declaration.topic
                    _log.warning("%s: window %s is decoded but not recorded in the ledger: %s", topic, key, failed)


def _alone(decoder: WindowDecoder, key: str) -> Outcome:
    try:
        return decoder.decode(key)
    except PlatformError as e:
        return e


def _committed(
    decoder: WindowDecoder, window: Prepared, written: Iterator[DecodedFiles | PlatformError]
) -> _Done | PlatformError | None:
    """Commit the next outcome of `written`, which belongs to `window`. Return None if the window has to be decoded
    individually."""
    key, began = window.order.window, time.monotonic()
    try:
        with decoder.named_conflicts(window):
            outcome = next(written, None)
            if isinstance(outcome, PlatformError):
                raise outcome
        if outcome is None:
            return None
        decoder.check_written(window, outcome)
        done = decoder.committed(window, outcome, time.monotonic() - began)
        return _Done(key, done, can_wait=window.known == Receipts(None, None))
    except ConcurrentLoadError as e:
        return _after(e, decoder, window)
    except PlatformError as e:
        return e


def _after(conflict: ConcurrentLoadError, decoder: WindowDecoder, window: Prepared) -> PlatformError | None:
    key = window.order.window
    try:
        if decoder.lost_to_another(key, decoder.declared.digest_of(key), window.known):
            return conflict
    except PlatformError as e:
        return e
    _log.info("%s Doing that now, in this run.", conflict)
    return None


def _recorded(decoder: WindowDecoder, waiting: list[_Done]) -> list[tuple[str, Outcome]]:
    """Record the receipts of all waiting windows, clear the list, and return each outcome. If recording fails, the
    outcome of every new window is that error."""
    done = list(waiting)
    waiting.clear()
    new = [each.window for each in done if each.is_new]
    try:
        if new:
            decoder.record(new)
    except PlatformError as e:
        return [(each.key, e if each.is_new else each.window) for each in done]
    return [(each.key, each.window) for each in done]


def _raw(decoder: WindowDecoder, keys: Sequence[str]) -> Mapping[str, Receipt]:
    """Return the receipts of the raw windows among `keys`. An invalid window key fails when it is its turn."""
    known: list[str] = []
    for key in keys:
        with suppress(ValueError):
            edge_of(key)
            known.append(key)
    return decoder.ledger.receipts(decoder.declaration.raw_table, known) if known else {}


def _prepared(decoder: WindowDecoder, keys: Sequence[str]) -> dict[str, Prepared | _Done]:
    """Return the windows that an engine may decode together, and those without offsets.

    Omitted are windows with erased records, windows whose raw files are no longer those of their load, windows that
    both tables already have by today's declaration, and windows that cannot be decoded. Each of these succeeds or fails
    when it is its turn.
    """
    d, ledger = decoder.declaration, decoder.ledger
    try:
        decided = decisions.version(ledger.lake)
        raw = _raw(decoder, keys)
        erased = erased_of(ledger, d.topic, list(raw)) if raw else {}
        left = {key: r for key, r in raw.items() if not r.is_expired and key not in erased and _fits(decoder, r)}
        if not left:
            return {}
        layout = decoder.layout()
        letters, rows = decoder.open(layout, keys[0])
        held_letters, held_rows = letters.files(), rows.files()
        dead, decoded = (ledger.receipts(table, list(left)) for table in (d.dead_letter_table, d.decoded_table))
        folder = ledger.lake.table(d.raw_table)
        version = load_log.version(folder)
        files = recognised(
            ledger.lake, d.raw_table, holdings.window_files(holdings.actions(folder, version)), left.values()
        )
    except PlatformError as e:
        _log.info("windows of %s are decoded one by one: %s", d.topic, e)
        return {}
    found: dict[str, Prepared | _Done] = {}
    for key, receipt in left.items():
        known = Receipts(decoded.get(key), dead.get(key))
        if receipt.table_version is None:
            found[key] = _Done(key, decoder.empty(receipt, known), is_new=not known.are_there)
            continue
        if not files.get(key, holdings.NO_FILES).are(receipt.files_digest) or decoder.is_current(receipt, known):
            continue
        order = replace(
            decoder.order(receipt, version, layout),
            window_columns=(rows.is_flat, letters.is_flat),
            field_ids=(rows.field_ids(), letters.field_ids()),
        )
        found[key] = Prepared(
            receipt,
            order,
            decoder.metadata(receipt, order),
            _of_window(letters, held_letters, key),
            _of_window(rows, held_rows, key),
            known,
            {},
            decided,
        )
    new = [key for key, each in found.items() if isinstance(each, Prepared)]
    try:
        for table, commit in ((d.dead_letter_table, letters), (d.decoded_table, rows)):
            if commit.is_flat:
                separate(ledger.lake.table(table), new, measure_of(table.kind))
    except PlatformError as e:
        _log.info(
            "could not move windows of %s out of shared files first, so they are replaced in the shared files: %s",
            d.topic,
            e,
        )
    return {key: found[key] for key in keys if key in found}


def _fits(decoder: WindowDecoder, raw: Receipt) -> bool:
    try:
        decoder.check_repairs(raw)
    except PlatformError:
        return False
    return True


def _of_window(opened: WindowCommit, held: Mapping[str, holdings.WindowFiles], key: str) -> WindowCommit:
    return opened.of_window(held.get(key, holdings.NO_FILES))
