"""A bounded in-memory cache of values made from files that do not change, so that a process reads each file once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Values by key, each with the stamp of the file from which it was made. If the file has another stamp, the value
    is discarded.

    The most recently used values are kept, up to `most` bytes in total; callers state the size of each value.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._values: OrderedDict[K, tuple[str, V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K, stamp: str) -> V | None:
        """Return the stored value for a file with this stamp; None if no such value is stored."""
        with self._lock:
            found = self._values.get(key)
            if found is None or found[0] != stamp:
                return None
            self._values.move_to_end(key)
            return found[1]

    def keep(self, key: K, stamp: str, value: V, size: int) -> None:
        """Store a value of `size` bytes, unless it is larger than a sixteenth of the cache."""
        with self._lock:
            before = self._values.pop(key, None)
            self._held -= 0 if before is None else before[2]
            if size > self._most // 16:
                return
            self._values[key] = (stamp, value, size)
            self._held += size
            while self._held > self._most:
                _, (_, _, gone) = self._values.popitem(last=False)
                self._held -= gone
