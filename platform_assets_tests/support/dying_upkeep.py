"""An upkeep that fails at its nth step. A step is a call that touches a file or the table. `python -m … ROOT TOPIC KIND
N` kills its own process at that step."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, get_args
from unittest.mock import patch

from deltalake import DeltaTable

from platform_assets.lake.files import LocalFiles
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableKind, TableRef
from platform_assets.windows.maintain.last_upkeep import LastUpkeep
from platform_assets.windows.maintain.upkeep import TableUpkeep

Deed = Literal["fail", "lose the answer", "kill"]
"""fail: raise an error instead of the step; lose the answer: do the step, then raise an error; kill: send SIGKILL
before the step."""
DEEDS: Final[tuple[Deed, ...]] = get_args(Deed)
KINDS: Final[tuple[TableKind, ...]] = get_args(TableKind)
LATER: Final = datetime(2030, 1, 1, tzinfo=UTC)
_STEPS: Final[Mapping[type, tuple[str, ...]]] = {
    LocalFiles: ("create", "open", "write", "write_new", "size", "remove", "delete", "read"),
    DeltaTable: ("create_write_transaction", "create_checkpoint", "cleanup_metadata", "vacuum"),
}


class StruckError(OSError):
    """The error raised at the chosen step."""


@contextmanager
def struck(number: int, deed: Deed) -> Iterator[list[str]]:
    """Within the block, disturb the step with this number, counted from 1, in the way that `deed` specifies. Yield a
    list that receives the name of each step that begins."""
    begun: list[str] = []

    def striking(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def step(*arguments: Any, **options: Any) -> Any:
            begun.append(call.__name__)
            if len(begun) != number:
                return call(*arguments, **options)
            if deed == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if deed == "lose the answer":
                call(*arguments, **options)
            raise StruckError(5, f"step {number}, {call.__name__}, was struck")

        return step

    with ExitStack() as stack:
        for owner, names in _STEPS.items():
            for name in names:
                if hasattr(owner, name):
                    stack.enter_context(patch.object(owner, name, striking(getattr(owner, name))))
        yield begun


def upkeep(ledger: Ledger, topic: str, kind: TableKind) -> LastUpkeep | None:
    """Run the complete upkeep of a table, for all windows."""
    return TableUpkeep(TableRef(kind, topic), ledger, quiet=timedelta()).run(LATER)


if __name__ == "__main__":
    root, topic_name, kind_name, at = sys.argv[1:]
    (of_kind,) = (k for k in KINDS if k == kind_name)
    with struck(int(at), "kill"):
        upkeep(Ledger(Lake.at(root)), topic_name, of_kind)
