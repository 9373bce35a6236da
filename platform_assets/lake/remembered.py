"""What was made of files that do not change, kept in memory within bounds: one process then reads each of them once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Values by key and by the stamp of the file that they were made of: under another stamp they are forgotten.

    Those that were asked for last are kept, up to `most` bytes of all together by what the callers say of each.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._values: OrderedDict[K, tuple[str, V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K, stamp: str) -> V | None:
        """What was kept of a file with this stamp; None without it."""
        with self._lock:
            found = self._values.get(key)
            if found is None or found[0] != stamp:
                return None
            self._values.move_to_end(key)
            return found[1]

    def keep(self, key: K, stamp: str, value: V, size: int) -> None:
        """Remember a value of `size` bytes; one of more than a sixteenth of all that may be held is not worth what it displaces."""
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
