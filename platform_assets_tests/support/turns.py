"""Sharing of the session's broker and Spark server between test processes. Several tests use these services at the same
time. A test that stops or freezes a service must be the only user of the services, and has the marker `alone`."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_alone = False


@contextmanager
def turn(folder: Path | None, *, alone: bool) -> Iterator[None]:
    """Wait until the session's services are free for this test, and reserve them within the block. Processes coordinate
    in `folder`. It is None if there are no other processes."""
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
        # A process that waits to be alone keeps the gate, so that later ones do not overtake it.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(services, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@contextmanager
def until_the_last_leaves(folder: Path, end: Callable[[], object]) -> Iterator[None]:
    """Call `end` after the block, unless another process is still inside such a block for the same folder."""
    with (folder / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield
        finally:
            # If two leave at once, each releases its lock before it asks, so at least one finds nobody.
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                end()


def require_alone(doing: str) -> None:
    """Raise RuntimeError unless the running test is marked `alone`."""
    if not _alone:
        raise RuntimeError(f"{doing} disturbs other tests: mark this one with pytest.mark.alone")
