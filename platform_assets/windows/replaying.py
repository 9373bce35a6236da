"""Replaying into a separate table: windows are loaded again, by the same loader, into a lake inside the lake.

That lake has its own ledger with the live ledger's cuts. So the same offsets are read, and no decision, commit or entry affects
the live table: not its rows, its receipts, its checks or its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from platform_assets.engines.protocol import LoadEngine
from platform_assets.errors import (
    ConfigurationError,
    LedgerConflictError,
    OffsetsExpiredError,
    OffsetsVanishedError,
    PlatformError,
    UnknownOutcome,
)
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import RecordedCut, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows import comparing
from platform_assets.windows.catching_up import load_many
from platform_assets.windows.comparing import WindowComparison
from platform_assets.windows.loading import Loader
from platform_assets.windows.replacing import Loaded
from platform_assets.windows.replay_plan import PlannedWindow

_OVERTAKEN: Final = 5
"""Attempts per window if retention deletes some of its offsets while it is being read."""


@dataclass(frozen=True)
class Replay:
    """A range loaded into a separate table. `fresh` is the loader of the replay's own lake, with a ledger there.

    An interrupted replay is continued by making it again with the same name: windows that it has are read again and proved.
    """

    live: Loader
    fresh: Loader

    @classmethod
    def begin(cls, live: Loader, fresh: Loader, planned: Sequence[PlannedWindow]) -> Replay:
        """Copy the cuts of the windows, and of all after them, to the replay's ledger.

        Raises ConfigurationError if Kafka has no offsets of any of them, or if that ledger has cuts of another range, and
        LedgerConflictError if another process writes to it.
        """
        topic, windows = live.declaration.topic, [p.sealed for p in planned]
        if any(p.gone for p in planned) and not any(p.held for p in planned):
            raise ConfigurationError(
                f"Kafka no longer has any of these offsets of topic {topic!r}, so nothing can be loaded into a separate table. "
                f"Without --into, the rows of {live.declaration.raw_table} are proved by their receipts."
            )
        fresh.ledger.create()
        have = fresh.ledger.cuts(topic)
        start = min(w.window.start for w in windows)
        cuts = live.ledger.cuts(topic, start=have[0].edge if have else start)
        if [_place(c) for c in have] != [_place(c) for c in cuts[: len(have)]] or (have and have[0].edge > start):
            raise ConfigurationError(
                f"{fresh.ledger.lake} holds a replay of another range of topic {topic!r}. Choose another name, or delete that "
                "folder, which has none of the lake's tables"
            )
        newest = have[-1].edge if have else None
        if cuts[len(have) :] and not fresh.ledger.record_cuts(cuts[len(have) :], newest):
            raise LedgerConflictError(
                f"another process is replaying into {fresh.ledger.lake}: wait until it ends, then run this again"
            )
        replay = cls(live, fresh)
        replay._take_over_losses([w.key for w in windows])
        return replay

    def load(
        self, windows: Sequence[SealedWindow], forget_session: Callable[[], None]
    ) -> Iterator[tuple[str, Loaded | PlatformError]]:
        """Load each of the windows, as far as Kafka has their offsets; yield the outcomes in their order.

        Offsets that Kafka no longer has are recorded in the replay's ledger. `forget_session` is called if the connection to Spark
        broke, so that the next window gets a new one.
        """
        by_key = {w.key: w for w in windows}
        for key, outcome in load_many(self.fresh, list(by_key)):
            for _ in range(_OVERTAKEN):
                if isinstance(outcome, OffsetsExpiredError):
                    self.fresh.ledger.record_acceptance(by_key[key], _ranges(outcome), "Kafka no longer had them")
                elif not isinstance(outcome, OffsetsVanishedError):
                    break
                ((_, outcome),) = load_many(self.fresh, [key])
            if isinstance(outcome, UnknownOutcome):
                forget_session()
            yield key, outcome

    def compare(self, sealed: SealedWindow, outcome: Loaded | PlatformError) -> WindowComparison:
        """Compare the window in both tables, or report why it cannot be compared."""
        if isinstance(outcome, PlatformError):
            return WindowComparison(sealed.key, (), {}, 0, f"it could not be loaded: {outcome}")
        return comparing.compare(sealed, self.live.ledger, self.fresh.ledger)

    def _take_over_losses(self, keys: Sequence[str]) -> None:
        """Leave out offsets that were accepted as lost in the live table, as its own loads do."""
        table, topic = self.live.declaration.raw_table, self.live.declaration.topic
        known = self.fresh.ledger.accepted_losses_of(table, keys)
        done = self.fresh.ledger.receipts(table, keys)
        lost = self.live.ledger.accepted_losses_of(table, keys)
        new = [key for key in lost if key not in known and key not in done]
        sealed = {key: window for key in new if (window := self.live.ledger.window(topic, key)) is not None}
        self.fresh.ledger.record_acceptances(
            [(window, lost[key]) for key, window in sealed.items()], "accepted as lost of the live table"
        )


def fresh_loader(live: Loader, name: str, engine: Callable[[Lake], LoadEngine]) -> Loader:
    """Return the loader of the replay with this name; `engine` makes the engine for tables of a lake. Raises ConfigurationError."""
    ledger = Ledger(live.ledger.lake.replay(name))
    return replace(live, ledger=ledger, engine=engine(ledger.lake))


def _place(cut: RecordedCut) -> tuple[Any, ...]:
    return cut.edge, cut.generation, cut.topic_id, dict(cut.cut.offsets)


def _ranges(error: OffsetsExpiredError) -> dict[int, tuple[OffsetRange, ...]]:
    found: dict[int, tuple[OffsetRange, ...]] = {}
    for partition, start, end in error.lost:
        found[partition] = (*found.get(partition, ()), OffsetRange(start, end))
    return found
