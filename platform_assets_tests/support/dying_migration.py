"""Migrate a table of a lake, and kill this process at the nth call that touches a file: `python -m … ROOT TOPIC KIND
N`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from platform_assets.lake.files import LocalFiles
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.windows.maintain.migrating import Migration


def die_at(number: int) -> None:
    """End the process without any clean-up just before the call with this number. The first call has the number 1."""
    left = number

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **named)

        return wrapped

    for name in ("create", "open", "write", "write_new", "size", "remove", "delete"):
        setattr(LocalFiles, name, counted(getattr(LocalFiles, name)))


if __name__ == "__main__":
    root, topic, kind, at = sys.argv[1:]
    table = TableRef("raw" if kind == "raw" else "decoded", topic)
    ledger = Ledger(Lake.at(root))
    ledger.receipts(table)
    die_at(int(at))
    Migration(table, ledger, target=1).run()
