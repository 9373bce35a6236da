"""Rows of `platform-assets status` for the two tables that a topic is decoded into, built from the ledger and from
Dagster's records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.checks.findings import counted
from platform_assets.lake import holdings, load_log
from platform_assets.lake.location import Folder
from platform_assets.ledger import decisions, unloaded
from platform_assets.ledger.entries import EXPIRED
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.orchestration import dagster_records, health, names
from platform_assets.orchestration.health import CheckStatus, UnloadedWindow
from platform_assets.orchestration.names import table_key
from platform_assets.windows.decode import expired

LATELY: Final = 24
"""Number of newest windows, among those with records, whose dead letters are counted separately."""
_JUDGED: Final = 1_000
_MOST_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class DecodedStatus:
    """The tables `decoded/<topic>` and `dead_letters/<topic>`. The field names are also those of the JSON and must not
    change.

    `windows_failed` counts windows of the raw table that are not decoded because their last run failed, and for which
    no run is in progress; `windows_waiting` counts all other windows that are not decoded. `windows_stale` counts
    windows decoded with a declaration other than the current one. `rows` and `dead_letters` are totals over all
    windows. `recent_windows` lists the newest windows with records, at most 24; `recent_records` and
    `recent_dead_letters` are totals over these windows. `undecoded` lists the oldest windows that are not decoded, at
    most 20. `problems` says what keeps windows from being decoded, and which windows have disappeared from the tables.
    """

    table: str
    windows_decoded: int
    windows_waiting: int
    windows_failed: int
    windows_stale: int
    rows: int
    dead_letters: int
    newest_window: str | None
    recent_windows: int
    recent_records: int
    recent_dead_letters: int
    checks: tuple[CheckStatus, ...]
    undecoded: tuple[UnloadedWindow, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """True if nothing prevents decoding and no check fails; a warning does not count as a failure."""
        return not self.windows_failed and not self.problems and not any(c.failed for c in self.checks)


def collect(
    declaration: TopicDeclaration,
    declared: DecodeDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance | None,
    loaded: int,
    missing: Collection[str],
    now: datetime,
) -> DecodedStatus:
    """Return the status of the tables that a topic is decoded into. The topic's raw table has the windows `loaded` and
    lacks the windows `missing`.

    Raises whatever reading the ledger raises.
    """
    d, table = declaration, declaration.decoded_table
    newest_edge = ledger.newest_edges([d.topic]).get(d.topic)
    waiting = [] if newest_edge is None else sorted(unloaded.find(ledger, table, newest_edge).windows)
    lacking = [key for key in waiting if key not in missing]
    rows = ledger.commit_rows(table, columns=["rows", "made_from", "recorded_at"])
    letters = ledger.commit_rows(d.dead_letter_table, columns=["rows"])
    recent = _recent(rows, letters)
    windows: list[UnloadedWindow] = []
    if lacking:
        under_way = (
            frozenset()
            if instance is None
            else dagster_records.windows_in_flight(instance, table_key(table), lacking[:_JUDGED])
        )
        parked = decisions.parking(ledger.lake, table).parked
        windows = health.windows(d, instance, lacking[:_JUDGED], under_way, parked, table)
    failed = sum(w.state in ("failed", "waits for somebody") for w in windows)
    judged = health.latest_checks(instance, names.check_keys(d))
    newest = pc.max(rows["window"]).as_py() if rows.num_rows else None
    unjudged: Iterable[str] = ()
    if instance is not None:
        since = pc.min(rows["recorded_at"]).as_py()
        unjudged = health.checks_not_run(table, judged, newest, since, health.patience(d), now)
    gone = _without_files(ledger.lake.table(table), rows)
    return DecodedStatus(
        table=table.name,
        windows_decoded=max(loaded - len(lacking) - len(gone), 0),
        windows_waiting=len(lacking) - failed,
        windows_failed=failed,
        windows_stale=len({*_stale(rows, declared), *_half_removed(d, ledger, (rows, letters), now)}),
        rows=pc.sum(rows.filter(pc.invert(pc.is_in(rows["window"], gone)))["rows"]).as_py() or 0,
        dead_letters=pc.sum(letters["rows"]).as_py() or 0,
        newest_window=newest,
        recent_windows=len(recent),
        recent_records=sum(records for records, _ in recent),
        recent_dead_letters=sum(dead for _, dead in recent),
        checks=judged,
        undecoded=tuple(windows[:_MOST_NAMED]),
        problems=(*_problems(d, instance, windows), *_emptied(d, gone.to_pylist()), *unjudged),
    )


def stale_windows(
    declaration: TopicDeclaration, declared: DecodeDeclaration, ledger: Ledger, now: datetime
) -> list[str]:
    """Return, in order, the keys of windows to decode again: windows that were decoded with another declaration, whose
    rows the table has lost, or whose rows were removed as past `keep` while the raw rows stay.

    Windows that were never decoded are excluded, because the sensor requests them. Raises whatever reading the ledger
    raises.
    """
    rows = ledger.commit_rows(declaration.decoded_table, columns=["rows", "made_from"])
    letters = ledger.commit_rows(declaration.dead_letter_table, columns=["rows"])
    lost = _without_files(ledger.lake.table(declaration.decoded_table), rows)
    half = _half_removed(declaration, ledger, (rows, letters), now)
    return sorted({*_stale(rows, declared), *lost.to_pylist(), *half})


def at_rest(found: DecodedStatus) -> DecodedStatus:
    """Return the status for a paused topic: windows that are not decoded count as waiting, whatever the result of their
    last run was."""
    return replace(found, windows_waiting=found.windows_waiting + found.windows_failed, windows_failed=0, problems=())


def _problems(
    declaration: TopicDeclaration, instance: dg.DagsterInstance | None, windows: Sequence[UnloadedWindow]
) -> Iterator[str]:
    yield from health.failing(windows, "could not be decoded")
    waiting = [w for w in windows if w.state == "to be asked for"]
    if waiting and instance is not None and dagster_records.blocked_by(instance, names.blocking_keys(declaration)):
        yield (
            f"{health.counted(waiting)} not decoded, because a check of {declaration.raw_table} failed, which blocks tables "
            f"made from it. Follow that check's remedy; the sensor will then request the windows"
        )


def _without_files(folder: Folder, rows: pa.Table) -> pa.Array:
    """Return the windows that have rows according to their receipts, but no file in the table, because the table was
    recreated or emptied."""
    with_rows = pc.unique(rows.filter(pc.greater(rows["rows"], 0))["window"])
    if not len(with_rows) or not load_log.exists(folder):
        return with_rows
    held = holdings.actions(folder)[holdings.WINDOW].combine_chunks()
    return with_rows.filter(pc.invert(pc.is_in(with_rows, pc.unique(held))))


def _emptied(declaration: TopicDeclaration, windows: Sequence[str]) -> Iterator[str]:
    if windows:
        table, named = declaration.decoded_table, sorted(windows)
        yield (
            f"{counted(len(windows), 'window')} between {named[0]} and {named[-1]} had rows that are no longer in "
            f"{table}, because the table was started over with other columns or emptied. To decode them again, run "
            f"`platform-assets load {table} {named[0]}` for each, or `platform-assets load {table} --stale` for all"
        )


def _stale(rows: pa.Table, declared: DecodeDeclaration) -> list[str]:
    """Return the windows that were decoded with another declaration. Windows without offsets are excluded, because they
    are the same for any declaration."""
    made = rows.filter(pc.is_valid(rows["made_from"])).group_by(["window", "made_from"]).aggregate([])
    if not made.num_rows:
        return []
    repaired = pa.array(sorted({r.window for r in declared.repairs}), pa.string())
    special = made.filter(pc.is_in(made["window"], repaired))
    plain = made.filter(pc.invert(pc.is_in(made["window"], repaired)))
    others = plain.filter(pc.invert(pc.match_substring(plain["made_from"], declared.digest)))["window"].to_pylist()
    pairs = zip(special["window"].to_pylist(), special["made_from"].to_pylist(), strict=True)
    return [*others, *(window for window, made_from in pairs if declared.digest_of(window) not in made_from)]


def _half_removed(
    declaration: TopicDeclaration, ledger: Ledger, derived: Iterable[pa.Table], now: datetime
) -> list[str]:
    """Return the windows whose rows were removed from one of the two tables as past `keep`, while their raw rows stay,
    because `keep` was lengthened or removed since."""
    removed = pa.concat_tables([rows.select(["window", "kind"]) for rows in derived])
    removed = removed.filter(pc.equal(removed["kind"], EXPIRED))
    if not removed.num_rows:
        return []
    raw = ledger.commit_rows(declaration.raw_table, columns=["kind"])
    gone = raw.filter(pc.equal(raw["kind"], EXPIRED))["window"]
    left = pc.unique(removed.filter(pc.invert(pc.is_in(removed["window"], gone)))["window"]).to_pylist()
    if not left:
        return []
    stays = expired.stays(ledger, declaration, now)
    return sorted(key for key, r in ledger.receipts(declaration.raw_table, left).items() if stays(r.window.end))


def _recent(rows: pa.Table, letters: pa.Table) -> list[tuple[int, int]]:
    """Return the numbers of records and dead letters in each of the newest windows that have records."""
    decoded, dead = _by_window(rows), _by_window(letters)
    found: list[tuple[int, int]] = []
    for window in sorted({*decoded, *dead}, reverse=True):
        records = decoded.get(window, 0) + dead.get(window, 0)
        if records:
            found.append((records, dead.get(window, 0)))
        if len(found) == LATELY:
            break
    return found


def _by_window(entries: pa.Table) -> dict[str, int]:
    with_rows = entries.filter(pc.greater(entries["rows"], 0))
    grouped = with_rows.group_by("window").aggregate([("rows", "sum")])
    return dict(zip(grouped["window"].to_pylist(), grouped["rows_sum"].to_pylist(), strict=True))
