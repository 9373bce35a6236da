"""Terminal output of `platform-assets replay`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from platform_assets.checks.findings import counted
from platform_assets.errors import PlatformError, ranges_text
from platform_assets.lake.location import Folder
from platform_assets.model.offsets import OffsetRange, text_of
from platform_assets.model.tables import TableRef
from platform_assets.terminal import echo
from platform_assets.windows.load.replacing import Loaded
from platform_assets.windows.replay.comparing import PartitionComparison, WindowComparison
from platform_assets.windows.replay.replaying import Deed, PlannedWindow

_LISTED: Final = 20
"""Maximum number of windows that a plan lists, unless only the plan was requested."""
_IN_PLACE: Final[Mapping[Deed, str]] = {
    "empty": "nothing to load",
    "load": "will be loaded for the first time",
    "refuse": "will be refused until the loss is accepted",
    "expired": "will be refused, because it is past `keep`",
    "return": "has expired; will be loaded again, or restored from a past version of the table",
    "compare": "will be read again, and either proved equal or repaired",
    "keep": "will be kept if its rows match its receipt",
}


def print_plan(table: TableRef, planned: Sequence[PlannedWindow], note: str, *, whole: bool, in_place: bool) -> None:
    """List the planned actions, window by window."""
    offsets, records = sum(p.sealed.ranges.size for p in planned), sum(p.records or 0 for p in planned)
    echo(
        f"{table}: the selection covers {counted(len(planned), 'window')}: {counted(offsets, 'offset')}, "
        f"{counted(records, 'record')} according to the receipts"
    )
    if note:
        echo(f"  {note}")
    listed = planned if whole else planned[:_LISTED]
    for each in listed:
        echo(f"  {_planned(each, in_place)}")
    if len(listed) < len(planned):
        echo(f"  and {counted(len(planned) - len(listed), 'more window')}; --dry-run lists all")


def _planned(each: PlannedWindow, in_place: bool) -> str:
    known = "never loaded" if each.records is None else counted(each.records, "record")
    text = f"{each.sealed.key}: {counted(each.sealed.ranges.size, 'offset')}, {known}"
    if each.gone:
        text += f"; Kafka no longer has {_named(each.gone)}"
    if in_place:
        return f"{text}: {_IN_PLACE[each.deed]}"
    if not each.held:
        return f"{text}: nothing to load"
    return f"{text}: {'the others ' if each.gone else ''}will be loaded and compared"


def print_loaded(key: str, outcome: Loaded | PlatformError) -> None:
    """Print the result of one window in the new table."""
    if isinstance(outcome, PlatformError):
        echo(f"{key}: failed: {outcome}", err=True)
        return
    r = outcome.receipt
    echo(f"{key}: {outcome.outcome}, {counted(r.rows, 'row')} from {counted(r.ranges.size, 'offset')}")


def print_comparison(found: WindowComparison) -> None:
    """Print the comparison of one window between both tables."""
    left = f"; not compared: {_named(found.left_out)}, {counted(found.rows_left_out, 'row')}" if found.left_out else ""
    outcome = "equal" if found.equal else "DIFFERS"
    echo(f"{found.window}: {outcome}, {counted(found.rows, 'row')} read from Kafka{left}")
    if found.problem:
        echo(f"  {found.problem}")
    for partition in found.partitions:
        if not partition.equal:
            echo(f"  partition {partition.partition}: {'; '.join(_differences(partition))}")


def _differences(found: PartitionComparison) -> Iterator[str]:
    yield f"{counted(found.live.rows, 'row')} in the table, {counted(found.fresh.rows, 'row')} from Kafka"
    named: Sequence[tuple[str, tuple[OffsetRange, ...]]] = (
        ("only in the table", found.only_live),
        ("only from Kafka", found.only_fresh),
        (f"with a different {' and '.join(found.altered.columns)}", found.altered.offsets),
        ("more than once", found.repeated),
    )
    for what, ranges in named:
        if ranges:
            yield f"{what}: offsets {text_of(ranges)}"


def print_result(table: TableRef, fresh: Folder, compared: Sequence[WindowComparison]) -> None:
    """Print the result in one sentence, and the place of the new table."""
    rows = sum(c.rows for c in compared)
    amiss = sum(not c.equal for c in compared)
    if amiss:
        echo(f"{table} DIFFERS from Kafka in {amiss:,} of {counted(len(compared), 'window')}")
    else:
        some = " for all records that Kafka still has" if any(c.left_out for c in compared) else ""
        echo(f"{table} matches Kafka{some}: {counted(len(compared), 'window')}, {counted(rows, 'row')}")
    echo(f"the new table is in {fresh}. Nothing else refers to it, so you can delete it when you no longer need it")


def _named(ranges: Mapping[int, Sequence[OffsetRange]]) -> str:
    return ranges_text((p, r.start, r.end) for p, parts in ranges.items() for r in parts)
