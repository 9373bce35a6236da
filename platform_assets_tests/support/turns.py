"""How processes that share the tests among them share the session's broker and Spark server.

Tests use them side by side. One that stops or freezes a service has them alone, and says so by the mark `alone`.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_alone = False


@contextmanager
def turn(folder: Path | None, *, alone: bool) -> Iterator[None]:
    """Wait for the services of the session, and have them within the block.

    Processes meet in `folder`; None is for a process that has the session to itself.
    """
    global _alone
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(_held(folder, alone=alone))
        _alone = alone
        try:
            yield
        finally:
            _alone = False


@contextmanager
def _held(folder: Path, *, alone: bool) -> Iterator[None]:
    with (folder / "gate").open("w") as gate, (folder / "services").open("w") as services:
        # Whoever waits for its turn alone keeps the gate, so that those who come later do not overtake it.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(services, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@contextmanager
def until_the_last_leaves(folder: Path, end: Callable[[], object]) -> Iterator[None]:
    """Call `end` after the block, where no other process is within such a block of the same folder."""
    with (folder / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield
        finally:
            # Of two that leave at once, each lets its own lock go before it asks, so one of them finds nobody.
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                end()


def require_alone(doing: str) -> None:
    """Raise RuntimeError where the test that runs did not say that it needs the services alone."""
    if not _alone:
        raise RuntimeError(f"{doing} disturbs other tests: mark this one with pytest.mark.alone")
