"""Search for records that a rule by key erases, in data files that no commit refers to yet: files of windows that were
not loaded when the rule was made, of damaged windows that are being repaired, and of later logs under the topic's name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.errors import ConcurrentLoadError
from platform_assets.lake import data_files, holdings, load_log
from platform_assets.lake.location import Folder, window_folders
from platform_assets.ledger import erasure_rules
from platform_assets.ledger.entries import ERASED, SealedWindow
from platform_assets.ledger.erasure_rules import KeyRule, Rules, erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange, merge, ranges_of
from platform_assets.windows.erase.erasing import WindowEraser

_COLUMNS: Final = ["key", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_timestamp_type"]
_BLOCK_ROWS: Final = 65_536
_BY_PRODUCER: Final = 0
_RACES: Final = 10


def record_found(ledger: Ledger, folder: Folder, paths: Iterable[str], window: SealedWindow) -> bool:
    """Search the files of a window for records that a rule by key erases, and record these in the ledger of loads.
    Return True if the ledger lacked some of them. `paths` are in the form of the Delta log."""
    rules = erasure_rules.of(ledger, window.topic)
    concerned = rules.keys_for(window)
    if not concerned:
        return False
    found = find(rules, folder, paths, window)
    known = erased_of(ledger, window.topic, [window.key]).get(window.key, {}) if found else {}
    new = erasure_rules.without(found, known)
    if new:
        ledger.record_acceptances([(window, new)], concerned[-1].reason, ERASED)
    return bool(new)


def find(
    rules: Rules, folder: Folder, paths: Iterable[str], window: SealedWindow
) -> dict[int, tuple[OffsetRange, ...]]:
    """Return the offsets of the records in the files of a window that a rule by key erases, by partition."""
    concerned = rules.keys_for(window)
    parts: dict[int, list[OffsetRange]] = {}
    for path in paths if concerned else ():
        for block in data_files.blocks(folder, path, window.key, _BLOCK_ROWS, _COLUMNS):
            hits = _hits(block, rules, concerned, window)
            partitions, offsets = (np.asarray(hits[name].to_numpy(zero_copy_only=False)) for name in _COLUMNS[1:3])
            for partition in np.unique(partitions).tolist():
                parts.setdefault(partition, []).extend(ranges_of(offsets[partitions == partition]))
    return {partition: merge(some) for partition, some in parts.items()}


def fence_loads(eraser: WindowEraser) -> None:
    """Once a rule by key is recorded, make those concurrent first loads fail to which it applies.

    A load that has already written files may have made its last check before the rule was recorded, and may commit
    after the tables are searched. A load without files yet finds the rule in its last check. Raises whatever committing
    raises.
    """
    ledger, table = eraser.ledger, eraser.declaration.raw_table
    folder, rules = ledger.lake.table(table), erasure_rules.of(ledger, table.topic)
    if not load_log.exists(folder):
        return
    concerned = {w.key: w.window for w in ledger.windows(table.topic) if rules.keys_for(w)}
    for attempt in range(_RACES):
        begun = set(folder.folders())
        held = holdings.window_files(holdings.actions(folder))
        waiting = [key for key in concerned if key not in held and begun.intersection(window_folders(key))]
        loaded = {key for key, receipt in ledger.receipts(table, waiting).items() if receipt.kind != "empty"}
        try:
            deque(eraser.erase(table, {key: {} for key in waiting if key not in loaded}, concerned), maxlen=0)
        except ConcurrentLoadError:
            # A load has committed, so its rows are searched.
            if attempt == _RACES - 1:
                raise
        else:
            return


def _hits(block: pa.RecordBatch, rules: Rules, concerned: Sequence[KeyRule], window: SealedWindow) -> pa.RecordBatch:
    keys = block["key"].cast(pa.binary())
    different = [key for key in pc.unique(keys).to_pylist() if key is not None]
    wanted = np.zeros(block.num_rows, bool)
    named = dict[bytes, set[bytes]]()
    for rule in concerned:
        named.setdefault(rule.salt, set()).update(rule.digests)
    taken = {salt: [(key, erasure_rules.digest(key, salt)) for key in different] for salt in named}
    likely = {
        salt: [(key, taken_of) for key, taken_of in pairs if taken_of in named[salt]] for salt, pairs in taken.items()
    }
    for rule in concerned:
        if known := [key for key, digest in likely[rule.salt] if digest in rule.digests]:
            has_key = pc.is_in(keys, pa.array(known, pa.binary())).to_numpy(zero_copy_only=False)
            wanted |= has_key & _of_the_past(block, rules, rule, window)
    return block.filter(pa.array(wanted))


def _of_the_past(
    block: pa.RecordBatch, rules: Rules, rule: KeyRule, window: SealedWindow
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the rows that existed when the rule was made. Records sent afterwards are not erased.

    All records of earlier generations existed at that time. In a later log, the producer's timestamp decides. If the
    broker set the timestamp, all records count as copies of earlier records.
    """
    if rule.generation in rules.same_log(window.generation):
        partitions, offsets = (np.asarray(block[name].to_numpy(zero_copy_only=False)) for name in _COLUMNS[1:3])
        ends = np.array([rule.until.get(p, 0) for p in range(int(partitions.max(initial=0)) + 1)], np.int64)
        return np.asarray(offsets < ends[partitions])
    if window.generation < rule.generation:
        return np.ones(block.num_rows, bool)
    earlier = pc.less_equal(block["kafka_timestamp"], pa.scalar(rule.decided_at, block["kafka_timestamp"].type))
    copied = pc.not_equal(block["kafka_timestamp_type"], _BY_PRODUCER)
    return np.asarray(pc.or_(earlier, copied).fill_null(True).to_numpy(zero_copy_only=False))
