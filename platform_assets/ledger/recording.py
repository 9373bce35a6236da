"""Recording the cuts of one topic, or of many topics in one commit, by compare-and-set on the newest edge of each
topic."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from platform_assets.errors import LedgerConflictError, LedgerCorruptError, Terminal
from platform_assets.lake import failures
from platform_assets.lake.location import Folder
from platform_assets.ledger import appending, newest_cuts, version
from platform_assets.ledger.entries import RecordedCut, cut_table
from platform_assets.ledger.newest_cuts import NewestCuts
from platform_assets.model.logs import logger


def is_behind(cut: RecordedCut, newest: RecordedCut) -> bool:
    """Return True if `newest` starts a generation that was accepted after `cut` was taken, or that another process
    accepted first."""
    if "accepted" not in newest.taken.values():
        return False
    return cut.generation < newest.generation or (cut.generation, cut.edge) == (newest.generation, newest.edge)


def check_successor(previous: RecordedCut | None, cut: RecordedCut) -> None:
    """Raise LedgerCorruptError if `cut` cannot follow `previous`. Any cut can be the first one."""
    if previous is None:
        return
    shrunk = previous.cut.offsets.keys() - cut.cut.offsets.keys() or previous.cut.regressions(cut.cut.offsets)
    same_log = cut.generation == previous.generation
    # A generation starts at the end of the one before it, so that every time is in a window of one of the two.
    later = cut.edge > previous.edge or (cut.edge == previous.edge and not same_log)
    ascends = cut.topic == previous.topic and later and cut.generation >= previous.generation
    if not ascends or (same_log and (shrunk or cut.topic_id != previous.topic_id)):
        raise LedgerCorruptError(
            f"topic {cut.topic!r}: the cut at {cut.edge} does not follow the cut of {previous.topic!r} at "
            f"{previous.edge}: edges and generations must ascend, offsets must not decrease, and a generation must "
            "have one topic id"
        )


_log = logger(__name__)

_MARK = "recorded/"
"""Prefix of the application transactions by which a writer recognizes its own commit. A topic's name follows."""

NewestCut = Callable[[DeltaTable, str], RecordedCut | None]
"""Function that reads a topic's newest cut through a handle."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """Cuts of one topic, in ascending order of edge. They are to be recorded only if the topic's newest recorded edge
    is still `after`."""

    cuts: tuple[RecordedCut, ...]
    after: datetime | None

    @property
    def topic(self) -> str:
        """The topic that the cuts belong to."""
        return self.cuts[0].topic

    @property
    def app_id(self) -> str:
        """Id of the application transaction that carries the topic's newest edge."""
        return app_id(self.topic)


def record(
    folder: Folder,
    known: NewestCuts,
    handle: DeltaTable,
    proposed: Sequence[Proposed],
    newest_cut: NewestCut,
    complete: Callable[[DeltaTable], None],
) -> frozenset[str]:
    """Commit, through `handle`, those cuts in `proposed` (one item for each topic) that no other writer has overtaken;
    return their topics.

    The cuts are recorded in one commit. If another writer recorded edges of one of the topics in the meantime, the
    commit is refused, and made again without that topic. An object store may accept a commit although its answer is
    lost, so a commit that seems to be refused is looked up in the log by its transaction. Raises LedgerCorruptError if
    the edges of the cuts do not ascend, or if offsets decrease; and LedgerConflictError. After these errors, nothing is
    recorded.
    """
    fit = [p for p in proposed if _fits(known, handle, p, newest_cut)]
    while fit:
        marks = {f"{_MARK}{p.topic}": secrets.randbelow(appending.NUMBERS) for p in fit}
        before = handle.version()
        try:
            complete(handle)
            before = handle.version()
            cuts = [cut for p in fit for cut in p.cuts]
            edges = [Transaction(p.app_id, epoch(p.cuts[-1].edge)) for p in fit]
            write_deltalake(
                handle,
                version.fitted(handle, cut_table(cuts)),
                mode="append",
                commit_properties=CommitProperties(
                    app_transactions=[*edges, *(Transaction(mark, number) for mark, number in marks.items())],
                    max_commit_retries=50,
                ),
            )
        except failures.RAISED as e:
            now = appending.newest(folder, e)
            if appending.is_made(folder, marks, before, now.version()):
                _log.info(
                    "the cuts of %d topics are in the log of %s, although the commit ended with the error: %s",
                    len(fit),
                    folder,
                    e,
                )
                handle.update_incremental()
            elif not isinstance(e, CommitFailedError):
                raise
            else:
                # Refused: another writer recorded edges of one of these topics after the newest commit of the handle.
                left = [p for p in fit if now.transaction_version(p.app_id) == handle.transaction_version(p.app_id)]
                if len(left) < len(fit):
                    fit = left
                    continue
                named = failures.to_platform_error(e, str(folder), writes=True)
                if isinstance(named, Terminal):
                    raise named from e
                topics = f"topic {fit[0].topic!r}" if len(fit) == 1 else f"{len(fit)} topics, such as {fit[0].topic!r},"
                raise LedgerConflictError(
                    f"cuts of {topics} could not be recorded, because other writers kept committing; run it again"
                ) from None
        for p in fit:
            known.keep(p.cuts[-1])
        break
    return frozenset(p.topic for p in fit)


def _fits(known: NewestCuts, handle: DeltaTable, proposed: Proposed, newest_cut: NewestCut) -> bool:
    after = proposed.after
    if handle.transaction_version(proposed.app_id) != (None if after is None else epoch(after)):
        return False
    previous = known.cut(proposed.topic)
    if previous is None or previous.edge != after:
        previous = newest_cut(handle, proposed.topic)
    if previous is not None and is_behind(proposed.cuts[0], previous):
        return False
    for cut in proposed.cuts:
        check_successor(previous, cut)
        previous = cut
    return True


def app_id(topic: str) -> str:
    """Return the id of the application transaction that carries the newest edge of a topic."""
    return f"{newest_cuts.APP_PREFIX}{topic}"


def epoch(edge: datetime) -> int:
    """Return an edge as the version of that transaction: seconds since 1970."""
    return round(edge.timestamp())
