"""Selection of the batches in a fetch whose records a read_committed consumer gets.

Independent of `kafka.evidence.tally`, which decides the same for evidence: tests compare the two on random histories, so
that an error in one does not go unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from platform_assets.kafka.batches.damage import Damage
from platform_assets.kafka.batches.record_batches import (
    ABORT,
    CODEC_MASK,
    CONTROL,
    HEADER,
    TRANSACTIONAL,
    Batches,
)
from platform_assets.kernels.records import control_types

Mask = npt.NDArray[np.bool]
Longs = npt.NDArray[np.int64]


def committed(batches: Batches, aborted: Sequence[tuple[int, int]]) -> Mask:
    """Return, for each batch of magic 2, true if its records are committed and not markers.

    `aborted` is the broker's list for this fetch: (producer id, first offset) of each aborted transaction that overlaps it.
    The batches of a producer are aborted from there up to the producer's next abort marker, or to the end of the fetch if
    there is none. A control batch that the log cleaner has emptied is not a marker, as in the Java client
    (`CompletedFetch.containsAbortMarker`). Raises Damage for a marker that cannot be read.
    """
    attributes = batches.attributes
    control: Mask = attributes & CONTROL != 0
    if not aborted:
        return ~control
    producers = batches.headers["producer_id"].astype(np.int64)
    in_transaction = attributes & TRANSACTIONAL != 0
    firsts = np.array([first for _, first in aborted], np.int64)
    begun = np.searchsorted(batches.last_offsets, firsts)  # the first batch of each transaction
    markers = np.flatnonzero(control & (batches.records_counts > 0))
    markers = markers[_types(batches, markers) == ABORT]
    gone: Mask = in_transaction & _inside(producers, np.array([p for p, _ in aborted], np.int64), begun, markers)
    return ~control & ~gone


def _inside(producers: Longs, aborting: Longs, begun: Longs, markers: Longs) -> Mask:
    """Return, for each batch, true if its producer's last aborted transaction begun at or before it is still open.

    `aborting[i]` began a transaction at batch `begun[i]`; `markers` are the batches that are abort markers.
    """
    count = len(producers)
    names = np.unique(np.concatenate([producers, aborting]))

    def line(of: Longs, at: Longs) -> Longs:
        """Map producer and batch to one ascending line, for a single binary search."""
        return np.searchsorted(names, of) * (count + 1) + at

    starts = np.sort(line(aborting, begun))
    ends = np.sort(line(producers[markers], markers))
    here = line(producers, np.arange(count))
    latest = np.searchsorted(starts, here, side="right") - 1
    start = starts[np.maximum(latest, 0)]
    of_this: Mask = (latest >= 0) & (start // (count + 1) == here // (count + 1))
    ended: Mask = np.searchsorted(ends, here) > np.searchsorted(ends, start)
    return of_this & ~ended


def _types(batches: Batches, markers: Longs) -> npt.NDArray[np.int32]:
    types = np.empty(len(markers), np.int32)
    heads = batches.headers[markers]
    starts = batches.positions[markers] + HEADER.itemsize
    ends = batches.positions[markers] + heads["length"] + 12
    unreadable = control_types(np.frombuffer(batches.data, np.uint8), starts, ends, types)
    packed = heads["attributes"] & CODEC_MASK != 0
    if packed.any():
        unreadable = int(packed.argmax())
    if unreadable >= 0:
        raise Damage(int(heads["base_offset"][unreadable]), "a control record without a type")
    return types
