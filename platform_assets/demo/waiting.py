"""Follows the topics until all that was streamed is loaded and checked, or until nothing moves any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final

from platform_assets.demo.dataset import TopicName
from platform_assets.demo.display import Counters
from platform_assets.errors import PlatformError

if TYPE_CHECKING:
    from platform_assets.demo.watching import TopicView

LOOK_SECONDS: Final = 2.0
"""Least time between two looks. The ledger is files, Dagster a database, and neither calls back."""

LOOK_SHARE: Final = 0.1
"""Most of the time that is spent on looking: it would be taken from the loads that are waited for."""

IDLE_SECONDS: Final = 150.0
"""How long nothing may move where no run is under way: a window closes within a minute, its run follows in seconds."""

UNCHECKED_SECONDS: Final = 30.0
"""How long checks may take to pass where all is loaded and no run is under way: they are part of the loads' runs."""

STALLED_SECONDS: Final = 600.0
"""How long nothing may move where a run is under way: one load may take a while on a slow machine."""


class StalledError(PlatformError):
    """Streamed records are not loaded, and nothing has moved for a while; the message says which."""


def follow(
    streaming: Future[None],
    *,
    look: Callable[[], Mapping[TopicName, TopicView]],
    alive: Callable[[], None],
    counters: Counters,
    explain: Callable[[TopicName, TopicView], str],
    unchecked_seconds: float = UNCHECKED_SECONDS,
    idle_seconds: float = IDLE_SECONDS,
    stalled_seconds: float = STALLED_SECONDS,
) -> Mapping[TopicName, TopicView]:
    """Return once `streaming` is done and every topic is loaded and checked, with what was seen of them last.

    A check that does not pass ends the wait too: what it says is part of the result.

    Args:
        streaming: sends the live records; its error is raised.
        look: how every topic is now.
        alive: raises if a service has died.
        counters: shows the number of windows.
        explain: why a topic is not settled, in a sentence with the next step.
        unchecked_seconds: how long to wait for checks where all is loaded.
        idle_seconds: how long nothing may move, once everything is sent, where no run is under way.
        stalled_seconds: the same where one is.

    Raises:
        StalledError: nothing moved for too long.
    """
    before: dict[TopicName, object] = {}
    moved = time.monotonic()
    while True:
        # In this order: what is read after the last record was sent includes that record.
        sent = streaming.done()
        looked_at = time.monotonic()
        views = look()
        pause = max(LOOK_SECONDS, (time.monotonic() - looked_at) / LOOK_SHARE)
        for topic, view in views.items():
            counters.note(topic, progress(view))
        if sent:
            streaming.result()
            if all(view.settled for view in views.values()):
                return views
        positions: dict[TopicName, object] = {topic: view.position for topic, view in views.items()}
        if positions != before or not sent:
            before, moved = positions, time.monotonic()
        alive()
        still = time.monotonic() - moved
        if all(view.loaded for view in views.values()) and still > unchecked_seconds:
            return views
        patience = stalled_seconds if any(view.under_way for view in views.values()) else idle_seconds
        if still > patience:
            behind = [explain(topic, view) for topic, view in views.items() if not view.settled]
            raise StalledError(f"nothing has moved for {patience:g} s. {' '.join(behind)}")
        if sent:
            threading.Event().wait(pause)
        else:
            wait([streaming], timeout=pause)


def progress(view: TopicView) -> str:
    """The windows of one topic in a few words."""
    table = view.table
    if table.error is not None:
        return table.error
    text = f"{table.windows_loaded} of {table.windows_sealed} windows loaded" if table.windows_sealed else "none sealed"
    text += f", {view.undecoded} not decoded yet" if view.undecoded else ""
    return f"{text}, {len(view.failed)} runs failed" if view.failed else text
