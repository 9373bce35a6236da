"""Erasure: records, selected by offset or by key, are listed in the ledger and then removed from every table and file.

Because the ledger lists them first, every later load omits them, and running an interrupted erasure again continues it.
Keys are compared but not stored: the ledger has only coordinates.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from platform_assets.errors import (
    ConcurrentFoldError,
    ConcurrentLoadError,
    ConfigurationError,
    FilesLostError,
    PlatformError,
    StateErasureUnfinishedError,
    UnerasedReplay,
)
from platform_assets.lake import delta_log, holdings, load_log, rows, state_table
from platform_assets.lake.leftovers import delete_overtaken
from platform_assets.ledger import decisions, erasure_rules
from platform_assets.ledger.decisions import Author, Decision
from platform_assets.ledger.entries import ERASED, SealedWindow
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.digest import Digest, digest_of
from platform_assets.model.logs import logger
from platform_assets.model.offsets import OffsetRange, common, merge, merge_named, ranges_of, subtract
from platform_assets.model.tables import STATE_KINDS, TableRef
from platform_assets.model.windows import Window
from platform_assets.windows.change.changing import WindowChanger
from platform_assets.windows.erase import (
    erased_keys,
    erased_logs,
    expired_files,
    in_replays,
    searching,
    unfounded,
)
from platform_assets.windows.erase.erasing import ErasedWindow, Ranges, WindowEraser
from platform_assets.windows.erase.erasure_ranges import joined, triples, within
from platform_assets.windows.erase.expired_files import Uncompared
from platform_assets.windows.erase.outcome import Done, Left, Selected
from platform_assets.windows.erase.returned import receipts_of_rows
from platform_assets.windows.erase.searching import Unread
from platform_assets.windows.proved_files import forget_unnamed, recognised
from platform_assets.windows.state.changes_source import ChangesSource, UnknownChangeError

_log = logger(__name__)

_BLOCK_ROWS: Final = 65_536
_PLACE: Final = ["kafka_partition", "kafka_offset"]
_RACES: Final = 10
"""Number of retries when loads of the same windows commit first."""


@dataclass(frozen=True)
class Erasure:
    """Erases records of one topic from a lake, and from the replays inside the lake."""

    declaration: TopicDeclaration
    ledger: Ledger
    run_id: str = ""
    progress: Callable[[str], None] = lambda text: None

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.declaration.topic

    def at_offsets(self, wanted: Ranges, generation: int | None = None) -> list[Selected]:
        """Select the records at the offsets `wanted`, by partition, in a generation of the topic's log, by default the
        newest.

        Raises ConfigurationError for offsets that are not in a sealed window.
        """
        newest = self.ledger.newest_cut(self.topic)
        number = generation or (1 if newest is None else newest.generation)
        windows = [w for w in self.ledger.windows(self.topic) if w.generation == number]
        parts = [(w, within(wanted, w)) for w in windows]
        for partition, ranges in wanted.items():
            left = subtract(ranges, [r for _, found in parts for r in found.get(partition, ())])
            if left:
                raise ConfigurationError(
                    f"offsets {', '.join(map(str, left[:5]))} of partition {partition} of topic {self.topic!r} are in no sealed "
                    f"window of generation {number}; nothing was changed. Newer records can be erased once their window is sealed"
                )
        return self._selected([(w, found) for w, found in parts if found])

    def of_keys(
        self, keys: Sequence[bytes], unread: Unread | None = None, searched: set[str] | None = None
    ) -> list[Selected]:
        """Select the records in the raw table that have one of these keys; see `searching.of_keys`."""
        passed = set[str]() if searched is None else searched
        return searching.of_keys(self.ledger, self.declaration.raw_table, keys, unread, passed)

    def unfinished(self) -> list[str]:
        """Return the keys of windows that an erasure has listed but not finished, and of those whose erased rows have
        returned since."""
        return sorted({*decisions.unfinished_erasures(self.ledger.lake, self.topic), *self.returned()})

    def returned(self) -> dict[str, Ranges]:
        """Return the erased offsets for which a table of the lake has rows, by window, for example after the table was
        set back to an old version.

        Reads the partition and offset of all rows in windows that erasures have listed.
        """
        erased = erased_of(self.ledger, self.topic)
        found: dict[str, dict[int, tuple[OffsetRange, ...]]] = {}
        for table in WindowEraser(self.declaration, self.ledger).tables if erased else ():
            folder = self.ledger.lake.table(table)
            if not load_log.exists(folder):
                continue
            opened = rows.Opened.at(folder)
            for key in sorted(set(erased).intersection(opened.files)):
                held = _offsets(opened, key)
                # Rows that cannot be read may be among them.
                there = erased[key] if held is None else {p: common(r, held.get(p, ())) for p, r in erased[key].items()}
                for partition, parts in there.items():
                    if parts:
                        of_window = found.setdefault(key, {})
                        of_window[partition] = merge((*of_window.get(partition, ()), *parts))
        return dict(found)

    def damaged(self, unreadable: Collection[str] = ()) -> list[str]:
        """Return the keys of windows whose rows are not those of their receipts, and of the `unreadable` windows.
        Repairing these windows may bring back records with an erased key."""
        table = self.declaration.raw_table
        folder = self.ledger.lake.table(table)
        if not load_log.exists(folder):
            return []
        opened = rows.Opened.at(folder)
        receipts = receipts_of_rows(self.ledger, table, self.ledger.receipts(table), opened.files)
        files = recognised(self.ledger.lake, table, opened.files, receipts.values())
        changed = [
            key
            for key, receipt in sorted(receipts.items())
            if not files.get(key, holdings.NO_FILES).are(receipt.files_digest)
            and _digest(opened, key) != receipt.offsets
        ]
        return sorted({*changed, *unreadable})

    def record_keys(
        self,
        keys: Sequence[bytes],
        selected: Sequence[Selected],
        author: Author,
        searched: set[str],
        unread: Unread,
        *,
        forget: bool = False,
    ) -> tuple[list[Selected], dict[str, UnerasedReplay]]:
        """Record `selected`, the result of `of_keys`, and record the keys unless they are to be forgotten. Return
        everything that was recorded, and the replays that could not be searched completely.

        Loads that have committed after that search have their files searched too; loads that are about to commit will
        fail.
        """
        self.record(selected, author, () if forget else keys)
        if not forget:
            erased_keys.fence_loads(WindowEraser(self.declaration, self.ledger, self.run_id))
        all_found = list(selected)
        while (found := self.of_keys(keys, unread, searched)) and self.record(found, author):
            all_found += found
        return all_found, in_replays.record_keys(self, keys, author)

    def record(self, selected: Sequence[Selected], author: Author, keys: Sequence[bytes] = ()) -> bool:
        """Record the offsets in the ledger. Return True if the ledger lacked some of them. From then on no load reads
        these offsets, and `run` removes them.

        With `keys`, the ledger also gets salted digests of the keys. Later loads then find records that the raw table
        does not have yet, or will have at other offsets.
        """
        known = erased_of(self.ledger, self.topic, [s.sealed.key for s in selected]) if selected else {}
        new = [replace(s, ranges=erasure_rules.without(s.ranges, known.get(s.sealed.key, {}))) for s in selected]
        new = [s for s in new if s.offsets]
        by_generation: dict[int, list[Selected]] = {}
        for s in new:
            by_generation.setdefault(s.sealed.generation, []).append(s)
        newest = self.ledger.newest_cut(self.topic) if keys else None
        if newest is not None:
            by_generation.setdefault(newest.generation, [])
        replays = self.naming_replays() if by_generation else {}
        for generation, some in sorted(by_generation.items()):
            details: dict[str, Any] = {
                "topic_id": some[0].sealed.topic_id if some else newest.topic_id if newest else "",
                "generation": generation,
                "offsets": {s.sealed.key: triples(s.ranges) for s in some},
                **replays,
            }
            if newest is not None and generation == newest.generation:
                details[erasure_rules.KEYS] = self._key_fields(keys, newest.cut.offsets)
            now = self.ledger.lake.root.time()
            named = tuple(s.sealed.key for s in some)
            decision = Decision(self.topic, "erase", named, author.name, author.reason, details, now)
            decisions.record(self.ledger.lake, decision)
        if new:
            self.ledger.record_acceptances([(s.sealed, s.ranges) for s in new], author.reason, ERASED)
        return bool(new)

    def _key_fields(self, keys: Sequence[bytes], until: Mapping[int, int]) -> dict[str, Any]:
        """Return the fields of the keys' digests. All keys of a topic share one salt, so a load computes one digest per
        key."""
        known = erasure_rules.of(self.ledger, self.topic).keys
        salt = known[0].salt if known else secrets.token_bytes(16)
        return erasure_rules.fields_of_keys(keys, salt, until)

    def run(self, author: Author) -> Done:
        """Do the same as `proceed`, but raise ErasureUnfinishedError if some windows could not be done, and
        ReplayErasureUnfinishedError if only replays could not be done. Everything else is done in both cases."""
        done, left = self.proceed(author)
        left.check(self.declaration.raw_table.name)
        return done

    def proceed(self, author: Author) -> tuple[Done, Left]:
        """Remove the records that the ledger lists, first from each window that has an unfinished erasure or to which
        erased rows have returned, and then from all replays. Return what was done, and what could not be done.

        Running it again continues, and deletes files with such rows that a killed upkeep has left.
        """
        gone, written = dict[str, int](), dict[str, int]()
        uncompared = self.uncompared()
        windows, failed, made_state = self._in_tables(gone, written, uncompared)
        done_with = tuple(key for key in windows if key not in failed)
        # Derived tables count these decisions. Their rows and past files may also have values of records that the topic's
        # tables no longer have: of expired windows, and of rows without a raw row.
        if done_with or uncompared.files or any(gone.values()) or made_state or self._has_new_keys():
            details = {
                **Done(len(done_with), gone, written).to_fields(),
                "offsets": {key: triples(windows[key]) for key in done_with},
                **(self.naming_replays() if done_with else {}),
            }
            now = self.ledger.lake.root.time()
            decision = Decision(self.topic, "erased", done_with, author.name, author.reason, details, now)
            decisions.record(self.ledger.lake, decision)
        replays = in_replays.run(self, author, gone, written)
        causes = {key: str(e) for key, e in sorted(failed.items())}
        files = {table.name: names for table, names in uncompared.unreadable.items()}
        return Done(len(done_with), gone, written), self.left(causes, replays, files)

    def _has_new_keys(self) -> bool:
        """Return True if keys were recorded after the newest erasure that was completed. Some clocks count whole seconds."""
        asked, done = self._decided()
        return bool(asked) and (not done or max(asked) >= max(done))

    def _decided(self) -> tuple[list[datetime], list[datetime]]:
        """Return the times at which keys were recorded, and those at which erasures were completed."""
        decided = decisions.decisions(self.ledger.lake, self.topic, ("erase", "erased"))
        asked = [
            d.decided_at for d in decided if d.kind == "erase" and erasure_rules.KEYS in d.details and d.decided_at
        ]
        return asked, [d.decided_at for d in decided if d.kind == "erased" and d.decided_at]

    def left(
        self, windows: Mapping[str, str], replays: Mapping[str, UnerasedReplay], files: Mapping[str, Sequence[str]]
    ) -> Left:
        """Return the work that is left: windows with the causes, replays, and unreadable files by table."""
        receipts = self.ledger.receipts(self.declaration.raw_table, list(windows)) if windows else {}
        return Left(windows, replays, files, frozenset(key for key, r in receipts.items() if r.is_expired))

    def _in_tables(
        self, gone: dict[str, int], written: dict[str, int], uncompared: Uncompared
    ) -> tuple[dict[str, Ranges], dict[str, PlatformError], bool]:
        """Erase in the tables of the topic, and add the numbers of rows and bytes to `gone` and `written`. Return the
        windows with the offsets, the windows that failed, and True if the topic's state was made again."""
        unfinished, returned = decisions.unfinished_erasures(self.ledger.lake, self.topic), self.returned()
        eraser = WindowEraser(self.declaration, self.ledger, self.run_id)
        windows, failed = dict[str, Ranges](), dict[str, PlatformError]()
        if unfinished or returned:
            windows = self._named(sorted({*unfinished, *returned}))
            for key, ranges in (erased_of(self.ledger, self.topic, list(returned)) if returned else {}).items():
                windows[key] = joined(windows.get(key, {}), triples(ranges))
            sealed = {w.key: w.window for w in self.ledger.windows(self.topic) if w.key in windows}
            for table in eraser.tables:
                for outcome in self._each(eraser, table, windows, sealed, failed):
                    gone[table.name] = gone.get(table.name, 0) + outcome.rows
                    written[table.name] = written.get(table.name, 0) + outcome.bytes
        without_raw_row = set[str]()
        for outcome in self._unfounded(eraser, failed, uncompared.windows):
            without_raw_row.add(outcome.window)
            gone[outcome.table.name] = gone.get(outcome.table.name, 0) + outcome.rows
            written[outcome.table.name] = written.get(outcome.table.name, 0) + outcome.bytes
        self._make_changes(sorted({*windows, *without_raw_row} - {*failed}))
        made_state = self._make_state(is_needed=bool(windows or without_raw_row))
        self._delete_overtaken(eraser, uncompared)
        for table in eraser.tables if windows else ():
            forget_unnamed(self.ledger.lake, table)
        return windows, failed, made_state

    def _make_changes(self, windows: Sequence[str]) -> None:
        """Make the changes of rewritten windows again, so that an erased record gives way to the one before it. A window
        that fails is outdated, and the topic's sensor requests it."""
        changes = self.declaration.changes_table
        if self.declaration.state is None or not windows or not load_log.exists(self.ledger.lake.table(changes)):
            return
        changer = WindowChanger(self.declaration, self.ledger, self.run_id)
        for key in sorted(set(self.ledger.receipts(changes, list(windows)))):
            try:
                changer.make(key)
            except PlatformError as e:
                _log.warning("%s: the changes of window %s will be made again later: %s", changes, key, e)

    def _make_state(self, *, is_needed: bool) -> bool:
        """Make the topic's state from all changes, and delete its past files, if it exists. Without `is_needed`, make it
        only if records were erased from the changes since the last fold, and otherwise only delete past files that such a
        fold has left because it was killed. Return True if any of this was done. Raises StateErasureUnfinishedError."""
        lake, declared = self.ledger.lake, self.declaration.state
        held = [kind for kind in STATE_KINDS if delta_log.exists(lake.root / kind / self.topic)]
        if not held:
            return False
        if declared is None:
            if is_needed or any(map(self._lacks_erasure, held)):
                raise StateErasureUnfinishedError(self.topic, left=held)
            return False
        # Imported here because it loads compiled code, which a code location does not need.
        from platform_assets.windows.state.folding import TopicState

        state, is_made = TopicState(self.topic, declared, lake, self.run_id), False
        for attempt in range(_RACES):
            try:
                pending = None if is_needed else state.pending()
                if pending is None or pending.erases:
                    made = state.fold(rebuild=True, erases=True)
                    is_made = True
                    self.progress(f"state/{self.topic}: {made.rows:,} rows made again")
                elif pending.is_interrupted:
                    state.finish_erasures()
                    is_made = True
                break
            except PlatformError as e:
                if not isinstance(e, ConcurrentFoldError) or attempt == _RACES - 1:
                    raise StateErasureUnfinishedError(self.topic, str(e)) from e
        if "history" in held and not declared.history and (is_needed or self._lacks_erasure("history")):
            raise StateErasureUnfinishedError(self.topic, left=["history"])
        return is_made

    def _lacks_erasure(self, kind: str) -> bool:
        """Return True if records were, or may have been, erased from the changes after the newest fold of a table of the
        state, or if that fold erased records and was killed before it deleted the past files."""
        table, changes = (
            self.ledger.lake.root / kind / self.topic,
            self.ledger.lake.table(self.declaration.changes_table),
        )
        try:
            opened = state_table.opened(table)
            fold = opened.fold
            if fold is not None and fold.erases and state_table.past_files(table, opened.version, opened.handle):
                return True
            if fold is None or not delta_log.exists(changes):
                return False
            return any(load.erases for load in ChangesSource.newest(changes).loads_since(fold.changes))
        except UnknownChangeError:
            return erasure_rules.has_erasures(self.ledger, self.topic)
        except PlatformError as e:
            raise StateErasureUnfinishedError(self.topic, str(e), left=[kind]) from e

    def is_state_unfinished(self) -> bool:
        """Return True if the topic's state may have records that were erased from its changes. Raises PlatformError if its tables
        cannot be opened."""
        lake, declared = self.ledger.lake, self.declaration.state
        held = [kind for kind in STATE_KINDS if delta_log.exists(lake.root / kind / self.topic)]
        if declared is None or not held or not delta_log.exists(lake.table(self.declaration.changes_table)):
            return any(map(self._lacks_erasure, held))
        from platform_assets.windows.state.folding import TopicState

        if "history" in held and not declared.history and self._lacks_erasure("history"):
            return True
        pending = TopicState(self.topic, declared, lake).pending()
        return pending.erases or pending.is_interrupted

    def has_unconfirmed_keys(self) -> bool:
        """Return True if keys were recorded, and no erasure was completed at that time or since."""
        asked, done = self._decided()
        return bool(asked) and (not done or max(asked) > max(done))

    def replays_left(self) -> list[str]:
        """Return the names of replays from which an erasure has not removed all records yet."""
        return sorted(
            set(decisions.unerased_replays(self.ledger.lake, self.topic)).intersection(self.ledger.lake.replays())
        )

    def naming_replays(self) -> dict[str, list[str]]:
        """Return the field of a decision that lists the replays of the topic; empty if there are no replays."""
        names = sorted(in_replays.of(self))
        return {decisions.REPLAYS: names} if names else {}

    def without_raw_row(self) -> dict[TableRef, dict[str, unfounded.Ranges]]:
        """Return the offsets of rows in derived tables whose raw rows are permanently lost, by table and window. Their
        keys cannot be compared, so `run` removes these rows whatever their keys are."""
        return unfounded.find(WindowEraser(self.declaration, self.ledger))

    def uncompared(self) -> Uncompared:
        """Return rows of expired windows that no key can be compared with; `run` deletes their files."""
        return expired_files.uncompared(WindowEraser(self.declaration, self.ledger))

    def _unfounded(
        self, eraser: WindowEraser, failed: dict[str, PlatformError], uncompared: Mapping[str, Ranges]
    ) -> list[ErasedWindow]:
        """Remove derived rows without a raw row. From logs and ledger, remove the values of these rows, of the windows
        `uncompared`, and of all erased records, including records that a load has found by their keys. Return the
        rewritten windows, and add the windows that failed to `failed`."""
        named = {key: triples(ranges) for key, ranges in erased_of(self.ledger, self.topic).items()}
        done = list[ErasedWindow]()
        for table, windows in unfounded.find(eraser).items():
            done += self._each(eraser, table, windows, {}, failed)
            for key, ranges in windows.items():
                named.setdefault(key, []).extend(triples(ranges))
        for key, ranges in uncompared.items():
            named.setdefault(key, []).extend(triples(ranges))
        if named:
            erased_logs.clean(self.ledger, eraser.tables, {key: merge_named(parts) for key, parts in named.items()})
        return done

    def _delete_overtaken(self, eraser: WindowEraser, uncompared: Uncompared) -> None:
        for table in eraser.tables:
            folder = self.ledger.lake.table(table)
            if load_log.exists(folder):
                delete_overtaken(folder)
        expired_files.delete(self.ledger, uncompared)

    def _each(
        self,
        eraser: WindowEraser,
        table: TableRef,
        windows: Mapping[str, Ranges],
        sealed: Mapping[str, Window],
        failed: dict[str, PlatformError],
    ) -> Iterator[ErasedWindow]:
        """Yield the rewritten windows of a table, and add the windows that failed to `failed`."""
        done = 0
        for attempt in range(_RACES):
            try:
                for outcome in eraser.erase(table, windows, sealed):
                    if isinstance(outcome, ErasedWindow):
                        done += 1
                        self.progress(f"{table} {outcome.window}: {outcome.rows:,} rows erased ({done:,} windows done)")
                        yield outcome
                    elif isinstance(outcome, PlatformError):
                        failed[getattr(outcome, "window", "")] = outcome
                return
            except ConcurrentLoadError:
                if attempt == _RACES - 1:
                    raise

    def _named(self, keys: Sequence[str]) -> dict[str, Ranges]:
        """Return all offsets that decisions list in these windows, and record these offsets in the ledger of loads too."""
        named = dict[str, list[list[int]]]()
        reasons = dict[str, str]()
        for decision in decisions.decisions(self.ledger.lake, self.topic, ("erase",)):
            for key in set(decision.windows).intersection(keys):
                named.setdefault(key, []).extend(decision.details["offsets"][key])
                reasons[key] = decision.reason
        windows: dict[str, Ranges] = {key: merge_named(parts) for key, parts in named.items()}
        known = erased_of(self.ledger, self.topic, keys)
        lacking = {
            key: left for key, ranges in windows.items() if (left := erasure_rules.without(ranges, known.get(key, {})))
        }
        sealed = {w.key: w for w in self.ledger.windows(self.topic) if w.key in lacking}
        for key, window in sealed.items():
            # Interrupted between the two ledgers.
            self.ledger.record_acceptances([(window, lacking[key])], reasons[key], ERASED)
        return windows

    def in_replays(self, keys: Sequence[bytes]) -> tuple[dict[str, list[Selected]], dict[str, UnerasedReplay]]:
        """Select the records with one of these keys in the raw tables of replays, by name of the replay. Return also
        the replays that cannot be searched completely."""
        return in_replays.select(self, keys)

    def _selected(self, found: Sequence[tuple[SealedWindow, Ranges]]) -> list[Selected]:
        folder = self.ledger.lake.table(self.declaration.raw_table)
        opened = rows.Opened.at(folder) if load_log.exists(folder) else rows.Opened(folder, {})
        table, keys = self.declaration.raw_table, [sealed.key for sealed, _ in found]
        receipts = receipts_of_rows(self.ledger, table, self.ledger.receipts(table, keys), opened.files)
        selected = []
        for sealed, ranges in found:
            receipt = receipts.get(sealed.key)
            # Rows that the table lacks now may return when the window is loaded again, if it is damaged or nothing
            # proves that its rows are complete.
            is_whole = receipt is not None and not receipt.is_found and _digest(opened, sealed.key) == receipt.offsets
            if sealed.key not in opened.files or not is_whole:
                is_expired = receipt is not None and receipt.is_expired
                selected.append(Selected(sealed, ranges, False, is_expired))
                continue
            held = opened.offsets_of(sealed.key)
            with_rows = {p: common(parts, ranges_of(held.get(p, ()))) for p, parts in ranges.items()}
            selected.append(Selected(sealed, {p: parts for p, parts in with_rows.items() if parts}, True))
        return selected


def _offsets(opened: rows.Opened, key: str) -> dict[int, tuple[OffsetRange, ...]] | None:
    """Return the offsets that have a row in a window; None if a file of the window is lost."""
    try:
        return {p: ranges_of(offsets) for p, offsets in opened.offsets_of(key).items()}
    except FilesLostError as lost:
        _log.warning("%s", lost)
        return None


def _digest(opened: rows.Opened, key: str) -> Digest | None:
    try:
        return digest_of(opened.offsets_of(key))
    except FilesLostError as lost:
        _log.warning("%s", lost)
        return None
