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
from platform_assets.offsets import TopicRanges

if TYPE_CHECKING:
    from platform_assets.demo.watching import TopicView

LOOK_SECONDS: Final = 1.0
"""Time between two looks. The ledger is files and Dagster a database, and neither calls back."""

STALLED_SECONDS: Final = 240.0
"""How long nothing may move. A window closes within a minute, and its run is asked for and started within seconds."""


class StalledError(PlatformError):
    """Streamed records are not loaded, and nothing has moved for a while; the message says which."""


def follow(
    streaming: Future[None],
    *,
    look: Callable[[], Mapping[TopicName, TopicView]],
    ends: Callable[[], Mapping[TopicName, TopicRanges]],
    alive: Callable[[], None],
    counters: Counters,
    explain: Callable[[TopicView], str],
    stalled_seconds: float = STALLED_SECONDS,
) -> Mapping[TopicName, TopicView]:
    """Return once `streaming` is done and every topic is settled, with the last look at them.

    Args:
        streaming: sends the live records; its error is raised.
        look: how every topic is now.
        ends: the offsets of every topic; asked once, after the streaming.
        alive: raises if a service has died.
        counters: told of windows.
        explain: why a topic is not settled, in a sentence with the next step.
        stalled_seconds: how long nothing may move.

    Raises:
        StalledError: nothing moved for too long.
    """
    wanted: Mapping[TopicName, TopicRanges] | None = None
    before: Mapping[TopicName, TopicView] = {}
    moved = time.monotonic()
    while True:
        views = look()
        for topic, view in views.items():
            counters.note(topic, progress(view))
        if views != before:
            before, moved = views, time.monotonic()
        if streaming.done():
            streaming.result()
            wanted = wanted or ends()
            if all(view.settled(wanted[topic]) for topic, view in views.items()):
                return views
        else:
            moved = time.monotonic()
        alive()
        if time.monotonic() - moved > stalled_seconds:
            behind = [view for topic, view in views.items() if wanted and not view.settled(wanted[topic])]
            raise StalledError(
                f"nothing has moved for {stalled_seconds:g} s. " + " ".join(explain(view) for view in behind)
            )
        if streaming.done():
            threading.Event().wait(LOOK_SECONDS)
        else:
            wait([streaming], timeout=LOOK_SECONDS)


def progress(view: TopicView) -> str:
    """The windows of one topic in a few words."""
    if not view.sealed:
        return "no window sealed yet"
    return f"{view.loaded} of {len(view.sealed)} windows loaded"
