"""Repeating erasures after a restore: erasures decided since the backup apply to the restored rows and to later loads."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from platform_assets.errors import (
    ErasureUnfinishedError,
    ReplayErasureUnfinishedError,
    StateErasureUnfinishedError,
    UnreadableFilesLeftError,
)
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import decisions, erasure_rules
from platform_assets.ledger.decisions import Author, Decision
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.windows.erase.erasure import Erasure

_log = logger(__name__)
_FILE: Final = "erasures.json"
_UNFINISHED: Final = (
    ErasureUnfinishedError,
    ReplayErasureUnfinishedError,
    StateErasureUnfinishedError,
    UnreadableFilesLeftError,
)
_AUTHOR: Final = Author("platform-assets restore", "erased before, but brought back by a restore that ended early")
_unfinished: dict[Lake, dict[str, list[Decision]]] = {}
"""Erasures that `remember` stored and that are not applied yet, by lake and topic. Each process reads them only once,
because Dagster is stopped during a restore."""
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Reapplied:
    """Number of rows of one topic that were erased again, by table. `unfinished` lists the windows that failed, and
    what to do about them."""

    topic: str
    rows: Mapping[str, int]
    unfinished: str = ""


def decided(lake: Lake) -> list[Decision]:
    """Return the erasures of all topics. Call this before anything is restored."""
    return decisions.decisions(lake, None, ("erase",))


def remember(lake: Lake, before: Sequence[Decision]) -> list[Decision]:
    """Store the erasures of `before`, and those of an interrupted restore, in a file of the lake, where they stay until
    `reapply` has applied them. Return all of these erasures.

    Call this before anything is restored.
    """
    known = {_identity(d): d for d in (*_remembered(lake), *before)}
    _keep(lake, list(known.values()))
    return list(known.values())


def finish(ledger: Ledger, declaration: TopicDeclaration) -> None:
    """If a restore was interrupted after it restored this topic, apply the topic's erasures. Cheap if there are none.

    Raises whatever writing to the ledger and the tables raises; the next call then continues. An erasure that cannot be
    finished remains, and `status` lists it.
    """
    lake, topic = ledger.lake, declaration.topic
    if not _lock.acquire(blocking=False):
        return
    try:
        if lake not in _unfinished:
            found: dict[str, list[Decision]] = {}
            for decision in _remembered(lake):
                found.setdefault(decision.topic, []).append(decision)
            _unfinished[lake] = found
        left = _unfinished[lake]
        if topic not in left:
            return
        for done in reapply(lake, left[topic], _AUTHOR, lambda _: declaration, topics=frozenset({topic})):
            _log.warning(
                "%s: rows were erased again after an interrupted restore: %s%s", topic, dict(done.rows), done.unfinished
            )
        del left[topic]
        _keep(lake, [d for decisions_of in left.values() for d in decisions_of])
    finally:
        _lock.release()


def _folder(lake: Lake) -> Folder:
    return lake.root / "_restoring"


def _remembered(lake: Lake) -> list[Decision]:
    content = _folder(lake).read(_FILE)
    found: list[dict[str, Any]] = [] if content is None else json.loads(content)
    return [Decision(**{**d, "windows": tuple(d["windows"]), "decided_at": _moment(d["decided_at"])}) for d in found]


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _keep(lake: Lake, kept: Sequence[Decision]) -> None:
    folder = _folder(lake)
    if not kept:
        folder.delete()
        return
    folder.make()
    folder.write(_FILE, json.dumps([asdict(d) for d in kept], default=datetime.isoformat).encode())


def reapply(
    lake: Lake,
    before: Sequence[Decision],
    author: Author,
    declaration_of: Callable[[str], TopicDeclaration],
    topics: frozenset[str] | None = None,
) -> list[Reapplied]:
    """Record the decisions of `before` that the restored ledger lacks, and erase the rows of all decisions again.

    If `topics` is given, only the decisions on these topics are applied; otherwise all are, and then the file that
    `remember` stored is removed. Returns the topics that had something to erase.
    """
    erasure_rules.forget()
    known = {_identity(d) for d in decided(lake)}
    for decision in before:
        if _identity(decision) not in known:
            decisions.record(lake, decision)
    ledger, done = Ledger(lake), list[Reapplied]()
    for topic in sorted({d.topic for d in decided(lake)} if topics is None else topics):
        erasure_rules.apply(ledger, ledger.windows(topic))
        erasure = Erasure(declaration_of(topic), ledger)
        if not erasure.unfinished() and not erasure.replays_left():
            continue
        try:
            done.append(Reapplied(topic, erasure.run(author).rows))
        except _UNFINISHED as e:
            done.append(Reapplied(topic, {}, str(e)))
    if topics is None:
        _keep(lake, ())
    return done


def _identity(decision: Decision) -> tuple[object, ...]:
    return decision.topic, decision.decided_at, decision.windows, decision.reason, str(sorted(decision.details.items()))
