"""Operators' decisions about a topic or a window: report the facts, ask for confirmation, then act.

Shell commands and Dagster jobs take the same steps, but report and confirm in different ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from platform_assets.engines.protocol import LoadEngine
from platform_assets.errors import (
    PastVersionsKeptError,
    PlatformError,
    ReloadDiffersError,
    UnerasedReplay,
    UnknownWindowError,
    ranges_text,
)
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import holdings
from platform_assets.lake.holdings import WindowFiles
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import size_of
from platform_assets.model.tables import TableRef
from platform_assets.windows.decide import acceptance, clusters, generations, parking
from platform_assets.windows.decide.clusters import Continuation
from platform_assets.windows.decide.generations import NewGeneration, Ranges
from platform_assets.windows.derive import erased as erased_from_derived
from platform_assets.windows.erase import adopting
from platform_assets.windows.erase.erasure import Erasure
from platform_assets.windows.erase.expired_files import Uncompared
from platform_assets.windows.erase.outcome import Selected
from platform_assets.windows.erase.searching import Unread
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.recover import accept_partial
from platform_assets.windows.recover.accept_partial import Remains

_RULE: Final = (
    "later loads leave out each record with one of these keys if its window is already sealed or, in later generations, if "
    "the record was sent before now"
)


@dataclass(frozen=True)
class Deciding:
    """Decisions on one topic by `author`. Without an author, this is a dry run, which only reports what would be
    decided.

    `report` prints a readable line. `confirm` asks the user, and raises its own error if the answer is no. Connections
    to services are made when needed.
    """

    declaration: TopicDeclaration
    ledger: Ledger
    cluster: Callable[[], Cluster]
    settings: Callable[[], ClientSettings]
    engine: Callable[[], LoadEngine]
    author: Author | None
    report: Callable[[str], None]
    confirm: Callable[[str], None]

    def loss(self, window: str) -> None:
        """Accept that offsets of a window will never be loaded, or are lost.

        Raises UnknownWindowError, whatever `acceptance.find_losses` raises and, for a loaded window, whatever
        `accept_partial.find` raises.
        """
        topic, table = self.declaration.topic, self.declaration.raw_table
        try:
            sealed = self.ledger.window(topic, window)
        except ValueError as e:
            raise UnknownWindowError(topic, window, "a key has the form YYYY-MM-DD-HH:MM, in UTC") from e
        if sealed is None:
            raise UnknownWindowError(topic, window, "the ledger has no sealed window with that key")
        receipt, held = self._recorded(window)
        if receipt is not None and receipt.is_expired and not held.paths:
            self.report(
                f"{table} {window}: it has expired, because it is past the topic's `keep`; nothing was accepted"
            )
            return
        if receipt is not None and receipt.is_found and self.author is not None:
            left: Remains | None = None
            # The table then keeps its rows, and a loss of offsets without a row can still be accepted.
            with suppress(ReloadDiffersError):
                left = accept_partial.find(self._loader(), sealed)
            if left is not None:
                self._accept_remains(left, self.author)
                return
        losses = acceptance.find_losses(sealed, self.ledger, self.cluster(), self.settings())
        for loss in losses:
            self.report(f"{table} {window}: {loss.offsets:,} offsets, {loss.cause}: {_named(loss.ranges)}")
        if losses and self.author is not None:
            self.confirm("Accept that these offsets will never be loaded?")
            acceptance.accept(sealed, losses, self.author, self.ledger)
            self.report(
                f"accepted; now run `platform-assets load {table} {window}`, or let the topic's sensor do it. If "
                "that load reports more offsets that it cannot load, accept their loss too"
            )
        if losses:
            return
        receipt, held = self._recorded(window)
        if receipt is not None and receipt.is_expired:
            # Rows of it are back, and no receipt describes them.
            receipt = None
        if not held.paths if receipt is None else not receipt.rows:
            self.report(f"{table} {window}: nothing prevents it from being loaded; nothing was accepted")
        elif self.author is None:
            what = (
                "the window is loaded"
                if receipt is not None
                else "the window is in the table, but the ledger has no receipt for its rows"
            )
            number = held.rows if receipt is None else receipt.rows
            rows = "" if number is None else f" ({number:,} rows)"
            self.report(
                f"{table} {window}: {what}{rows}. It would be loaded again, which repairs it if it is damaged; only "
                "the loss of rows that no longer exist anywhere would be accepted"
            )
        else:
            self._remains(sealed, self.author)

    def _recorded(self, window: str) -> tuple[Receipt | None, WindowFiles]:
        """Return the receipt of a window, and its files in the table."""
        table = self.declaration.raw_table
        receipt = self.ledger.receipts(table, [window]).get(window)
        return receipt, holdings.files_if_any(self.ledger.lake.table(table), window)

    def generation(self) -> NewGeneration | None:
        """Continue with the topic's current log and return this log; None if it is the log that the ledger already
        knows.

        Raises whatever `generations.find` and `generations.accept` raise.
        """
        found = generations.find(self.declaration.topic, self.ledger, self.cluster())
        if found is None:
            self.report(
                f"topic {self.declaration.topic} still has the log that the ledger records, so nothing was accepted"
            )
            return None
        self._report_generation(found)
        if self.author is not None:
            self.confirm("Accept the new log, and that these offsets will never be loaded?")
            generations.accept(found, self.author, self.ledger)
            self.report(
                "accepted; the sensor continues at the next window boundary, and requests the windows listed above"
            )
        return found

    def continuation(self) -> Continuation | None:
        """Continue on another cluster with the same offsets, and return the continuation; None if the cluster is
        unchanged.

        Raises whatever `clusters.find` and `clusters.accept` raise.
        """
        topic = self.declaration.topic
        found = clusters.find(topic, self.ledger, self.cluster())
        if found is None:
            self.report(f"topic {topic} is still on the cluster that the ledger records, so nothing was accepted")
            return None
        self.report(
            f"topic {topic} would continue on cluster {found.first.cluster_id} instead of {found.newest.cluster_id}; its generation "
            f"{found.first.generation} would start with"
        )
        for partition, offset in found.first.cut.offsets.items():
            self.report(f"  partition {partition} at offset {offset}")
        if found.moved:
            self.report(
                f"  waiting windows whose offsets would become part of the first window of that "
                f"generation: {', '.join(found.keys)}"
            )
        if self.author is not None:
            self.confirm("Does each offset stand for the same record on the new cluster?")
            clusters.accept(found, self.author, self.ledger)
            if found.first.topic_id == found.newest.topic_id:
                self.report(
                    "accepted; to verify this, load again a window that is already loaded: its digests are compared with its receipt"
                )
            else:
                self.report(
                    "accepted; the topic has another id on the new cluster, so windows that are already loaded are not compared "
                    "with the new log, and cannot be loaded from it"
                )
        return found

    def erasure(
        self,
        offsets: Ranges,
        keys: Sequence[bytes],
        generation: int | None = None,
        *,
        past_versions_expire: bool = False,
        forget_keys: bool = False,
    ) -> dict[str, Any]:
        """Erase the records at `offsets` of a generation, or those with one of `keys`, and finish earlier erasures.

        Unless `forget_keys` is set, later loads omit records with these keys. In windows sealed by now and in earlier
        generations, they omit all such records; in later generations, they omit those that were sent before now.
        Returns the findings and actions as plain JSON values. Raises whatever `Erasure` raises; ErasureUnfinishedError
        if damaged windows prevent comparing all of their rows with the keys; ReplayErasureUnfinishedError if only
        replays are not done; and PastVersionsKeptError if the lake's bucket keeps deleted files, unless
        `past_versions_expire` states that the bucket's rules delete these files after some time. A dry run skips the
        check of the bucket, because that check writes a file.
        """
        keeps_versions = self.author is not None and self.ledger.lake.root.keeps_versions()
        if keeps_versions and not past_versions_expire:
            raise PastVersionsKeptError(str(self.ledger.lake))
        table, erasure = self.declaration.raw_table, Erasure(self.declaration, self.ledger)
        not_read, searched = Unread(), set[str]()
        selected = erasure.of_keys(keys, not_read, searched) if keys else []
        selected = erasure.at_offsets(offsets, generation) if offsets and not keys else selected
        self._report_selected(selected)
        of_replays, unread = erasure.in_replays(keys) if keys else ({}, {})
        for name, some in of_replays.items():
            self.report(f"replays/{name}/{table}: {sum(each.offsets for each in some):,} records")
        for name, replay in unread.items():
            self.report(f"replays/{name}: not all rows can be compared with the keys: {replay.cause}")
        unfinished, replays_left = erasure.unfinished(), erasure.replays_left()
        for name in replays_left:
            self.report(f"replays/{name}: may still hold records of an earlier erasure")
        if unfinished:
            self.report(f"{table}: {len(unfinished):,} windows still hold records of an earlier erasure")
        without_raw_row, is_state_left = self._without_raw_row(erasure), self._is_state_left(erasure)
        damaged = erasure.damaged(not_read.windows) if keys else []
        if damaged:
            self.report(
                f"{table}: {len(damaged):,} windows are damaged, so not all of their rows could be compared with "
                f"the keys: {_few(damaged)}"
            )
        uncompared = erasure.uncompared()
        for of, names in uncompared.files.items():
            self.report(
                f"{of}: {len(names):,} files with rows of windows past `keep` will be deleted, because the raw rows no longer "
                f"exist and no key can be compared. Some may also hold rows that past versions have of other windows: {_few(names)}"
            )
        not_readable = _unreadable(uncompared, not_read, table) if keys else {}
        for name, paths in not_readable.items():
            self.report(
                f"{name}: {len(paths):,} files cannot be read, so they stay; they may hold rows of windows past `keep`: {_few(paths)}"
            )
        found: dict[str, Any] = {
            "windows": [each.to_fields() for each in selected],
            "unfinished": unfinished,
            "damaged": damaged,
            "replays_unfinished": sorted({*unread, *replays_left}),
            "without_raw_row": {derived.name: list(ranges) for derived, ranges in without_raw_row.items()},
            "uncompared": {derived.name: names for derived, names in uncompared.files.items()},
            "unreadable": not_readable,
        }
        in_replays = bool(of_replays or replays_left)
        has_more = bool(uncompared.files or without_raw_row or not_readable)
        # An earlier erasure ended before its last step.
        has_more = has_more or is_state_left or erasure.has_unconfirmed_keys()
        nothing = not (unfinished or in_replays or any(each.offsets for each in selected) or has_more)
        if nothing and not damaged and not unread and (forget_keys or not keys):
            self.report(f"{table} has no such records; nothing was erased")
            return found
        if self.author is None:
            return found
        self.confirm(
            f"{table} has no such records. Record the keys, so that {_RULE}?"
            if nothing
            else "Erase these records permanently, and delete the older files of their windows?"
        )
        unsearched: dict[str, UnerasedReplay] = {}
        if keys:
            recorded, unsearched = erasure.record_keys(
                keys, selected, self.author, searched, not_read, forget=forget_keys
            )
            self._report_selected(recorded[len(selected) :])
            found["windows"] = [each.to_fields() for each in recorded]
            found["damaged"] = damaged = sorted({*damaged, *not_read.windows})
        else:
            erasure.record(selected, self.author)
        done, left = erasure.proceed(self.author)
        for name, rows in done.rows.items():
            self.report(f"{name}: {rows:,} rows erased, {done.bytes[name]:,} bytes rewritten")
        incomparable = dict.fromkeys(damaged, "these windows are damaged, and missing rows may have one of the keys.")
        files = {**left.files, **not_read.files_of(table)} if keys else {}
        left = erasure.left(left.windows or incomparable, {**unsearched, **left.replays}, files)
        left.check(table.name, keys_forgotten=forget_keys)
        if nothing and not done.windows:
            self.report(
                f"{table} has no such records; nothing was erased. {_RULE[0].upper()}{_RULE[1:]}. Newer records "
                f"with these keys are still "
                "loaded"
            )
        else:
            self.report(
                f"erased; {done.windows:,} windows no longer hold any of the records, and no later load restores these records"
                if done.windows
                else "erased; no later load restores these rows"
            )
        if keeps_versions:
            self.report(
                "the bucket keeps the deleted files as past versions: the records are gone only after its lifecycle rule has "
                "deleted these versions"
            )
        return {**found, "done": done.to_fields(), "past_versions": keeps_versions, "derived": self._report_derived()}

    def _report_derived(self) -> list[str]:
        """Report the derived tables that may still hold values of erased records, and return their names."""
        names = [ref.name for ref in erased_from_derived.left(self.ledger.lake, self.declaration.topic)]
        for name in names:
            self.report(
                f"NOT ERASED YET: {name} may still hold values of erased records in its rows or in files of past versions. Its next "
                f"run removes both. Its sensor requests that run; to do it now, run `platform-assets derive {name}`. If the project "
                "no longer declares this table, delete its folder"
            )
        return names

    def _without_raw_row(self, erasure: Erasure) -> dict[TableRef, dict[str, Ranges]]:
        """Return the derived rows that have no raw row, after a report of their number."""
        found = erasure.without_raw_row()
        for derived, ranges in found.items():
            number = sum(size_of(parts) for of_window in ranges.values() for parts in of_window.values())
            self.report(
                f"{derived}: {number:,} rows in {len(ranges):,} windows ({_few(list(ranges))}) were made from raw rows that "
                "are lost for good. Without a raw row, no key can be compared, so these rows are erased too"
            )
        return found

    def _is_state_left(self, erasure: Erasure) -> bool:
        """Return True, after a report, if the topic's state may have records of an earlier erasure. A state that cannot be read
        does not keep other tables from being erased: the erasure fails when they are."""
        cause = ""
        try:
            if not erasure.is_state_unfinished():
                return False
        except PlatformError as e:
            cause = f", because it cannot be read: {e}"
        self.report(f"state/{self.declaration.topic}: may still hold records of an earlier erasure{cause}")
        return True

    def _report_selected(self, selected: Sequence[Selected]) -> None:
        for each in selected:
            waiting = "offsets of an expired window" if each.is_expired else "offsets that are not loaded yet"
            what = "records" if each.is_loaded else waiting
            self.report(
                f"{self.declaration.raw_table} {each.sealed.key}: {each.offsets:,} {what}: {_named(each.ranges)}"
            )

    def adoption(self, other: str, *, past_versions_expire: bool = False) -> dict[str, Any]:
        """Apply the erasures by key of topic `other` to this topic too. Raises whatever `erasure` raises."""
        if self.author is None:
            raise AssertionError("adopting erasures has no dry run")
        keeps_versions = self.ledger.lake.root.keeps_versions()
        if keeps_versions and not past_versions_expire:
            raise PastVersionsKeptError(str(self.ledger.lake))
        table, erasure = self.declaration.raw_table, Erasure(self.declaration, self.ledger)
        self._without_raw_row(erasure)
        self.confirm(
            f"Erase from {table}, now and in later loads, the records with the keys that were erased from topic {other}?"
        )
        not_read = Unread()
        rules = adopting.adopt(erasure, other, self.author, not_read)
        done, left = erasure.proceed(self.author)
        erasure.left(left.windows, left.replays, {**left.files, **not_read.files_of(table)}).check(table.name)
        rows = done.rows.get(table.name, 0)
        self.report(
            f"{table}: {rules:,} more erasures by key, adopted from topic {other}, now apply; {rows:,} rows were erased"
        )
        derived = self._report_derived()
        return {"adopted": rules, "done": done.to_fields(), "past_versions": keeps_versions, "derived": derived}

    def park(self, windows: Sequence[str], table: TableRef | None = None) -> None:
        """Park windows of `table`, by default the raw table. Raises whatever `parking.park` raises."""
        if self.author is None:
            raise AssertionError("parking has no dry run")
        of = self._requested_table(table)
        parking.park(of, windows, self.author, self.ledger)
        self.report(f"{of}: parked {', '.join(windows)}")

    def unpark(self, windows: Sequence[str], table: TableRef | None = None) -> None:
        """Unpark windows of `table`, by default the raw table. Raises whatever `parking.unpark` raises."""
        if self.author is None:
            raise AssertionError("parking has no dry run")
        of = self._requested_table(table)
        parking.unpark(of, windows, self.author, self.ledger)
        self.report(f"{of}: {', '.join(windows)} will be requested again")

    def _requested_table(self, table: TableRef | None) -> TableRef:
        """Return the table whose windows the sensor requests for `table`. For dead letters, this is the table of
        decoded rows."""
        made_together = table == self.declaration.dead_letter_table
        return self.declaration.decoded_table if made_together else table or self.declaration.raw_table

    def _remains(self, sealed: SealedWindow, author: Author) -> None:
        """Accept the rows that remain of a loaded window as the whole window. Its other rows are lost permanently."""
        left = accept_partial.find(self._loader(), sealed)
        if left is None:
            name = f"{self.declaration.raw_table} {sealed.key}"
            self.report(f"{name}: its rows are in the table and verified; nothing was accepted")
            return
        self._accept_remains(left, author)

    def _accept_remains(self, left: Remains, author: Author) -> None:
        name = f"{self.declaration.raw_table} {left.sealed.key}"
        with left.discarded_if_refused():
            gone = _named(left.gone) or "none"
            if left.rows_gone and not left.receipt.is_found:
                self.report(
                    f"{name}: {left.rows_gone:,} of {left.receipt.rows:,} rows no longer exist anywhere; offsets "
                    f"without a row: {gone}"
                )
            else:
                self.report(f"{name}: nothing proves which rows were loaded; offsets that have no row: {gone}")
            self.report(
                f"{left.from_kafka:,} rows were read from Kafka again, and {left.from_files:,} come from data files "
                "of the table"
            )
            self.confirm("Accept that the other rows are lost, and that the window holds only these rows?")
        receipt = left.accept(author)
        self.report(f"accepted; the window holds {receipt.rows:,} rows, table version {receipt.table_version}")

    def _loader(self) -> Loader:
        return Loader(self.declaration, self.cluster(), self.ledger, self.engine())

    def _report_generation(self, found: NewGeneration) -> None:
        ids = f"id {found.newest.topic_id}"
        if found.kind != "truncated":
            ids += f", now {found.first.topic_id}"
        self.report(
            f"topic {found.topic} ({ids}) was {found.kind}; its generation {found.first.generation} would start with"
        )
        for partition, offset in found.first.cut.offsets.items():
            sealed = found.newest.cut.at(partition)
            self.report(f"  partition {partition} at offset {offset} (the previous log was sealed up to {sealed})")
        for lost in found.lost:
            what = (
                "has offsets without a row, and it is not known whether these had records"
                if lost.loaded
                else "was never loaded"
            )
            self.report(f"  window {lost.window.key} {what}: {lost.offsets:,} offsets: {_named(lost.ranges)}")
        self.report(
            "  records that the previous log had after its last sealed offsets are in no window; their number is not known"
        )


def _unreadable(uncompared: Uncompared, not_read: Unread, table: TableRef) -> dict[str, list[str]]:
    """Return the names of unreadable files of past versions by table."""
    return {**{derived.name: names for derived, names in uncompared.unreadable.items()}, **not_read.files_of(table)}


def _few(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3:,} more" if len(keys) > 3 else "")


def _named(ranges: Ranges) -> str:
    return ranges_text((p, r.start, r.end) for p, parts in ranges.items() for r in parts)
