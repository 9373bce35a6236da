"""Retention by age: upkeep removes the rows of windows that are past the topic's `keep` from all of its tables.

The order makes each prefix harmless. A new or changed `keep` is recorded, and nothing is removed for a week after that.
Then a decision is recorded, and dead letters, decoded rows and raw rows are removed in this order, each table in one
commit, or several for many windows, each followed by its receipts. Whatever a run leaves undone, the next one plans
again from tables and receipts; a commit whose receipts are missing is found in the table's log.

A window is removed only while its rows are proved to be those that were loaded. It is left, and named, if it is
damaged, not accounted for, not completely decoded, parked, or has records that are to be erased. All of that is read after
the table was opened, and the commit fails if anything was committed to the table since.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from deltalake import DeltaTable

from platform_assets.engines.measuring import measure_of
from platform_assets.engines.protocol import NO_ROWS
from platform_assets.errors import ConcurrentLoadError, FilesLostError
from platform_assets.lake import expiring, holdings, load_log, rows
from platform_assets.lake.expiring import Removal
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.load_log import Expiry, LoadCommit, LoadMetadata
from platform_assets.lake.location import Lake
from platform_assets.lake.separating import divide
from platform_assets.ledger import cut_ranges, decisions
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.entries import BELOW_LOG_START, Receipt
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.offsets import Cut
from platform_assets.model.tables import KINDS, TableRef
from platform_assets.windows.load.receipts import expired_receipt
from platform_assets.windows.load.replacing import same
from platform_assets.windows.maintain import notice
from platform_assets.windows.maintain.expiry_reasons import (
    BLOCKED,
    DAMAGED_IN,
    ERASING,
    OPEN,
    OPEN_DERIVED,
    PARKED,
    RETURNED,
    UNDECODED,
    UNKNOWN,
)
from platform_assets.windows.maintain.notice import Measure, Policy
from platform_assets.windows.proved_files import recognised

_log = logger(__name__)
_RACES: Final = 10
"""Attempts per table if others commit to it first."""
MOST_WINDOWS: Final = 10_000
"""Windows that a run removes at most, because each is named in a commit."""
_MOST_NAMED: Final = 20
"""Windows that stay and are named in a decision."""
_SHARE: Final = 4
"""A file that also holds younger windows is divided once a quarter of its windows are expired, or after `_LATE`."""
_LATE: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """Windows past a topic's `keep`: those to remove, with their receipts, and those that are left, with the reason.

    Of more windows than a run removes, `later` is the number of the others, and `last` is the last of all of them.
    """

    policy: Policy
    windows: Mapping[str, Receipt] = field(default_factory=dict, repr=False)
    held: Mapping[str, str] = field(default_factory=dict)
    later: int = 0
    last: str | None = None

    @property
    def rows(self) -> int:
        """Raw rows of the windows to remove."""
        return sum(receipt.rows for receipt in self.windows.values())


@dataclass(frozen=True, slots=True)
class Expired:
    """The result of a run. `done` has the windows that it removed from all tables; those of the plan that are neither there nor
    in `held` are removed by a later run."""

    plan: ExpiryPlan
    is_due: bool
    done: tuple[str, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Raw rows that were removed."""
        return sum(self.plan.windows[key].rows for key in self.done)


@dataclass(frozen=True)
class Expiring:
    """Removes windows of one topic that are past the `keep` of its declaration. It needs neither Kafka nor Spark.

    `seen` is when an upkeep last saw the declaration, if that is known. A dry run only plans, and records nothing.
    """

    declaration: TopicDeclaration
    ledger: Ledger
    seen: datetime | None = None
    measure: Measure = notice.times_of
    is_dry_run: bool = False

    @property
    def tables(self) -> tuple[TableRef, ...]:
        """The topic's tables that exist, those made from others first, the raw one last. A table of changes may be left from
        a `state` that the declaration no longer has."""
        found = (TableRef(kind, self.declaration.topic) for kind in reversed(KINDS))
        return tuple(table for table in found if load_log.exists(self.ledger.lake.table(table)))

    def plan(self, now: datetime) -> ExpiryPlan | None:
        """Return what a run at `now` would remove, or would remove if the policy were due; None without a `keep`."""
        found = self._policy(now)
        return None if found is None else self._planned(found[0])

    def _planned(self, policy: Policy) -> ExpiryPlan:
        due, held, chosen = self._due(policy), dict[str, str](), list[str]()
        # However many windows stay, younger windows are still removed.
        for start in range(0, len(due), MOST_WINDOWS):
            some = sorted(due)[start : start + MOST_WINDOWS]
            for table in self.tables:
                held |= self._held(table, self.ledger.lake.table(table).delta(), set(some) - set(held))[1]
            chosen += [key for key in some if key not in held]
            if len(chosen) >= MOST_WINDOWS:
                break
        windows = {key: due[key] for key in chosen[:MOST_WINDOWS]}
        later = len(due) - len(held) - len(windows)
        last = max((key for key in due if key not in held), default=None) if later else None
        return ExpiryPlan(policy, windows, held, later, last)

    def run(self, now: datetime) -> Expired | None:
        """Record the policy if it is new, or remove the windows past it; None without a `keep`.

        Raises ClocksDisagreeError and what committing raises; running it again continues.
        """
        topic = self.declaration.topic
        found = self._policy(now)
        if found is None:
            notice.forget(self.ledger, topic, now)
            return None
        policy, now = found
        if policy.is_new:
            notice.record(self.ledger, topic, policy.keep, now)
        plan = self._planned(policy)
        left, held = self._ready(plan) if policy.is_due(now) else set[str](), dict(plan.held)
        if policy.is_due(now):
            held |= dict.fromkeys(self._blocked(set(plan.windows) - left), BLOCKED)
        if left:
            self._decide(plan, left, now)
        for table in self.tables if left else ():
            done, reasons = self._removed(table, left, policy)
            held |= reasons
            left &= done
        return Expired(plan, policy.is_due(now), tuple(sorted(left)), held)

    def _decide(self, plan: ExpiryPlan, left: Collection[str], now: datetime) -> None:
        keep = plan.policy.keep
        details = {
            "keep": str(keep),
            "windows": len(left),
            "rows": sum(plan.windows[key].rows for key in left),
            "left": sorted(plan.held)[:_MOST_NAMED],
            "windows_left": len(plan.held),
        }
        named = (min(left), max(left))
        decision = Decision(self.declaration.topic, "expire", named, notice.AUTHOR, notice.reason(keep), details, now)
        decisions.record(self.ledger.lake, decision)

    def _policy(self, now: datetime) -> tuple[Policy, datetime] | None:
        """Return the policy, and the time on which the clocks agree; None without a `keep`."""
        keep, topic = self.declaration.keep, self.declaration.topic
        if keep is None:
            return None
        times = self.measure(self.ledger, topic, now)
        return notice.policy(self.ledger, topic, keep, times, self.seen), times.now

    # --- windows ----------------------------------------------------------------------------------------------

    def _due(self, policy: Policy) -> dict[str, Receipt]:
        """Return the windows past the policy for which a table has rows, or may have some, with a receipt.

        Rows that were removed before may have come back, for example with a past version of the table.
        """
        found: dict[str, Receipt] = {}
        for table in self.tables:
            # The raw table is the last.
            receipts = {k: r for k, r in self.ledger.receipts(table).items() if policy.is_past(r.window.end)}
            back = self._back(table, receipts, self.ledger.lake.table(table).delta())
            found |= {key: r for key, r in receipts.items() if r.kind != "empty" and not r.is_expired} | back
        return found

    def _back(self, table: TableRef, receipts: Mapping[str, Receipt], handle: DeltaTable) -> dict[str, Receipt]:
        """Return the expired windows of which a version has rows, each with the receipt from before it expired, if the ledger
        still has that one."""
        expired = {key: r for key, r in receipts.items() if r.is_expired}
        if not expired:
            return {}
        held = holdings.window_files(holdings.actions(self.ledger.lake.table(table), handle.version(), among=expired))
        found = {key: r for key, r in expired.items() if key in held}
        return found | self.ledger.receipts_before_expiry(table, list(found))

    def _held(
        self, table: TableRef, handle: DeltaTable, keys: Collection[str]
    ) -> tuple[dict[str, Receipt], dict[str, str]]:
        """Return the receipts of windows that can be removed from the version of `handle`, without those that have none or are
        expired, and the reasons why others have to stay.

        Everything is read after `handle` was opened.
        """
        lake, topic = self.ledger.lake, self.declaration.topic
        folder, reasons = lake.table(table), dict[str, str]()
        erasing = decisions.unfinished_erasures(lake, topic)
        receipts = self.ledger.receipts(table, sorted(keys))
        found = holdings.window_files(holdings.actions(folder, handle.version()))
        # First: no reason keeps rows that an earlier run has removed.
        missing = {key: r.table_version or 0 for key, r in receipts.items() if r.rows and key not in found}
        made = load_log.expiries_since(folder, missing)
        if made and not self.is_dry_run:
            self._recorded(table, {key: receipts[key] for key in made}, made)
        receipts, left = {key: r for key, r in receipts.items() if key not in made}, set(keys) - set(made)
        if table.kind == "decoded" and self.declaration.decode is not None:
            # The raw rows decide whether an erasure is the reason.
            parked = (left & decisions.parking(lake, table).parked.keys()) - receipts.keys() - erasing.keys()
            reasons |= dict.fromkeys(parked, PARKED)
        reasons |= {
            key: ERASING
            for key in left & set(erasing)
            if key in found or (key in receipts and not receipts[key].is_expired)
        }
        if table.kind == "raw":
            alive = {key: r for key, r in receipts.items() if not r.is_expired and key not in reasons}
            undecoded = self._undecoded(alive)
            parked = self._parked(undecoded) if undecoded else set()
            reasons |= {key: PARKED if key in parked else UNDECODED for key in undecoded}
        back = self._back(table, receipts, handle)
        receipts = {key: r for key, r in receipts.items() if not r.is_expired} | back
        receipts = {key: r for key, r in receipts.items() if key not in reasons}
        unknown = [key for key in left if key in found and key not in receipts and key not in reasons]
        reasons |= dict.fromkeys(unknown, DAMAGED_IN[table.kind])
        files = recognised(lake, table, found, receipts.values())
        for key, receipt in receipts.items():
            if receipt.holes is None or receipt.is_found:
                reasons[key] = OPEN if table.kind == "raw" else OPEN_DERIVED
            elif receipt.holes.get(BELOW_LOG_START):
                reasons[key] = UNKNOWN
            elif receipt.duplicates or not _is_intact(lake, handle, receipt, files.get(key, holdings.NO_FILES)):
                reasons[key] = DAMAGED_IN[table.kind]
        reasons |= {key: RETURNED for key in back if key in reasons and reasons[key] != ERASING}
        return {key: r for key, r in receipts.items() if key not in reasons}, reasons

    def _parked(self, keys: Collection[str]) -> set[str]:
        """Return the windows that are parked instead of decoded. A parked window with a receipt is not intact."""
        table = self.declaration.decoded_table
        parked = decisions.parking(self.ledger.lake, table).parked
        return set(keys) & parked.keys() - self.ledger.receipts(table, sorted(keys)).keys()

    def _undecoded(self, raw: Mapping[str, Receipt]) -> set[str]:
        """Return the windows whose rows are not all in decoded rows and dead letters, if the topic is decoded.

        By which declaration they were decoded does not matter: otherwise each change would keep all older windows.
        """
        d, ledger, keys = self.declaration, self.ledger, sorted(raw)
        if d.decode is None:
            return set()
        decoded, dead = (ledger.receipts(table, keys) for table in (d.decoded_table, d.dead_letter_table))
        found = set[str]()
        for key, receipt in raw.items():
            pair = [r for r in (decoded.get(key), dead.get(key)) if r is not None]
            is_whole = len(pair) == 2 and pair[0].offsets + pair[1].offsets == receipt.offsets
            if not is_whole and not any(r.is_expired for r in pair):
                found.add(key)
        return found

    # --- tables -----------------------------------------------------------------------------------------------

    def _ready(self, plan: ExpiryPlan) -> set[str]:
        """Return the windows of a plan that can be removed from all tables now: files that they share with younger windows are
        worth dividing. Otherwise raw rows would outlast decoded rows for days."""
        folders = [self.ledger.lake.table(table) for table in self.tables]
        files = [holdings.windows_of_files(folder, folder.delta()) for folder in folders]
        left, before = set(plan.windows), set[str]()
        while left != before:
            before = set(left)
            for found in files:
                worth = self._worth_dividing(expiring.plan(found, left), plan.windows, plan.policy)
                divided = [(f, held and held & left if f.path in worth else held) for f, held in found]
                left &= expiring.plan(divided, left).windows
        return left

    def _blocked(self, keys: Collection[str]) -> set[str]:
        """Return the windows that no later run can remove either, because of their files."""
        folders = [self.ledger.lake.table(table) for table in self.tables if keys]
        return {
            key for each in folders for key in expiring.blocked(holdings.windows_of_files(each, each.delta()), keys)
        }

    def _removed(self, table: TableRef, wanted: Collection[str], policy: Policy) -> tuple[set[str], dict[str, str]]:
        """Remove windows from a table; return those that it no longer has, and the reasons for others."""
        folder = self.ledger.lake.table(table)
        divided = set[str]()
        for _ in range(_RACES):
            handle = folder.delta()
            receipts, reasons = self._held(table, handle, wanted)
            # A table made from raw rows must not have rows that nothing can be compared with.
            kept = self._still_derived(receipts) if table.kind == "raw" else set[str]()
            receipts = {key: r for key, r in receipts.items() if key not in kept}
            gone = set(wanted) - set(receipts) - set(reasons) - kept
            found = holdings.windows_of_files(folder, handle)
            removal = expiring.plan(found, set(receipts))
            shared = self._worth_dividing(removal, receipts, policy) - divided
            if shared:
                divided |= shared
                divide(folder, shared, set(receipts), measure_of(table.kind))
                continue
            if not removal.windows:
                return gone, reasons
            if self._committed(table, handle, receipts, expiring.split(removal, found, self._weights(table, receipts))):
                return gone | removal.windows, reasons
        raise ConcurrentLoadError(table.name, min(wanted))

    def _committed(
        self, table: TableRef, handle: DeltaTable, receipts: Mapping[str, Receipt], parts: Iterable[Removal]
    ) -> bool:
        """Commit the parts of a removal, each on the version of the previous one, and record their receipts; return False if
        another commit that may concern their windows came first. Whatever was committed by then stays removed."""
        folder, version = self.ledger.lake.table(table), handle.version()
        for part in parts:
            of_part = {key: receipts[key] for key in sorted(part.windows)}
            expiry, made = self._expiry(table, of_part), None
            for _ in range(_RACES):
                if handle.version() != version and not self._still_stands(table, of_part, part, version, handle):
                    return False
                version = handle.version()
                made = expiring.commit(folder, handle, part.files, expiry)
                handle = folder.delta()
                if made is not None:
                    break
            if made is None:
                return False
            self._recorded(table, receipts, {each.window.key: LoadCommit(made, each, ()) for each in expiry.windows})
            version = made
        return True

    def _still_stands(
        self, table: TableRef, receipts: Mapping[str, Receipt], part: Removal, since: int, handle: DeltaTable
    ) -> bool:
        """Return True if what was proved of a part in the version `since` is also true of the version of `handle`: only other
        windows were loaded, no receipt changed, and nothing is to be erased. So a busy topic does not keep its old windows.
        """
        ledger = self.ledger
        return (
            expiring.is_untouched(ledger.lake.table(table), part, since, handle.version())
            and ledger.receipts(table, sorted(receipts)) == receipts
            and not receipts.keys() & decisions.unfinished_erasures(ledger.lake, self.declaration.topic).keys()
            and not (table.kind == "raw" and self._still_derived(receipts))
        )

    def _weights(self, table: TableRef, receipts: Mapping[str, Receipt]) -> dict[str, int]:
        """Return the bytes that each window takes in a commit's metadata."""
        return {each.window.key: len(each.to_json()) for each in self._expiry(table, receipts).in_log()}

    def _expiry(self, table: TableRef, receipts: Mapping[str, Receipt]) -> Expiry:
        """Return the metadata of the commit that removes the windows of `receipts` from a table."""
        load_id, first = str(uuid.uuid4()), dict[int, tuple[datetime, Cut]]()
        is_raw = table.kind == "raw"
        erased = erased_of(self.ledger, self.declaration.topic, list(receipts)) if is_raw else {}
        found = list[LoadMetadata]()
        for key, r in receipts.items():
            if is_raw and r.generation not in first:
                first[r.generation] = cut_ranges.first_cut(self.ledger, r.topic, r.generation, r.window.start)
            found.append(
                LoadMetadata(
                    r.topic,
                    r.topic_id,
                    r.generation,
                    r.window,
                    r.ranges,
                    load_id=load_id,
                    run_id="",
                    first_cut=first[r.generation] if is_raw else None,
                    erased=erased.get(key, {}),
                    expired=str(self.declaration.keep),
                )
            )
        return Expiry(load_id, tuple(found))

    def _still_derived(self, raw: Mapping[str, Receipt]) -> set[str]:
        """Return the windows of which a derived table that exists has rows, or may have some."""
        found = set[str]()
        for table in self.tables[:-1]:
            receipts = self.ledger.receipts(table, sorted(raw))
            found |= {key for key, r in receipts.items() if not r.is_expired}
        return found

    def _worth_dividing(self, removal: Removal, receipts: Mapping[str, Receipt], policy: Policy) -> set[str]:
        """Return the files to divide: not each day, but once much of one is expired, or a window in it is late."""
        late = policy.keep.until(policy.aged) - _LATE
        return {
            path
            for path, (keys, others) in removal.shared.items()
            if _SHARE * len(keys) >= len(keys) + others or any(receipts[key].window.end <= late for key in keys)
        }

    def _recorded(self, table: TableRef, receipts: Mapping[str, Receipt], made: Mapping[str, LoadCommit]) -> None:
        table_id = load_log.table_id(self.ledger.lake.table(table))
        # A window whose rows had come back keeps what its receipt says about erased records.
        known = {key: r for key, r in self.ledger.receipts(table, sorted(made)).items() if r.is_expired}
        before = {**receipts, **known}
        self.ledger.record_receipts(
            [expired_receipt(before[key], c.version, c.metadata.load_id, table_id) for key, c in made.items()]
        )


def _is_intact(lake: Lake, handle: DeltaTable, receipt: Receipt, files: WindowFiles) -> bool:
    """Return True if the files that the version of `handle` has for a window hold the rows of the receipt; read them if neither
    log nor ledger shows it."""
    if files.match(receipt.files_digest, receipt.rows):
        return True
    key, folder = receipt.window.key, lake.table(receipt.table)
    try:
        # Imported here because it loads compiled code, which a code location does not need.
        from platform_assets.engines.decoding.rows import in_order

        measure, held = measure_of(receipt.table.kind), NO_ROWS
        for batch in rows.batches_of(folder, key, handle.version()):
            held += measure(in_order(batch)) if batch.num_rows else NO_ROWS
        return same(held, receipt) and rows.Opened(folder, {key: files}).topic_ids_of(key) <= {receipt.topic_id}
    except FilesLostError as e:
        _log.warning("%s", e)
        return False
