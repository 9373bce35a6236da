"""The results of upkeep in words: for the command, the job's log and `status`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from platform_assets.model.sizes import size_text
from platform_assets.windows.maintain.last_upkeep import MOST_DAMAGED, LastUpkeep
from platform_assets.windows.maintain.merging import MergedFiles, Plan

PARTITIONED = "its files are not merged, because the table is partitioned by windows"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def files_text(files: int, size: int) -> str:
    """Return number and average size of a table's files."""
    return counted(files, "file") if not files else f"{counted(files, 'file')} of {size_text(size // files)} on average"


def plan_text(plan: Plan) -> str:
    """Return what a run would merge."""
    number, size = sum(len(group.files) for group in plan.groups), sum(group.bytes for group in plan.groups)
    text = (
        f"would merge {counted(number, 'file')} ({size_text(size)}) into {len(plan.groups):,}"
        if number
        else "would merge no files"
    )
    later = sum(group.bytes for group in plan.left)
    return f"{text}; the table has {files_text(plan.files, plan.bytes)}" + (
        f"; {size_text(later)} left for later runs" if later else ""
    )


def done_text(done: LastUpkeep) -> str:
    """Return what a run has done."""
    merged = (
        f"merged {counted(done.merged_files, 'file')} ({size_text(done.merged_bytes)}) into {done.new_files:,} "
        f"({size_text(done.new_bytes)})"
        if done.merged_files
        else "merged no files"
    )
    later = f"; {size_text(done.left_bytes)} left for later runs" if done.left_bytes else ""
    deleted = (
        f"; deleted {counted(done.deleted_files, 'old file')} ({size_text(done.deleted_bytes)})"
        if done.deleted_files
        else ""
    )
    kept = f"; {kept_text(done)}" if done.unproved else ""
    return f"{merged}; the table has {files_text(done.files, done.bytes)}{later}{deleted}{kept}"


def kept_text(done: LastUpkeep) -> str:
    """Return why no old file was deleted, and what to do."""
    some, more = ", ".join(done.unproved[:3]), " …" if len(done.unproved) > 3 else ""
    number = f"{MOST_DAMAGED} or more" if len(done.unproved) >= MOST_DAMAGED else f"{len(done.unproved)}"
    noun = "window" if number == "1" else "windows"
    return (
        f"kept all old files, because {number} {noun} ({some}{more}) may need them: it is not certain that the current files hold "
        "the rows that were loaded. Run the table's checks, and load the windows that the checks report"
    )


def group_text(number: int, groups: int, merged: MergedFiles) -> str:
    """Return the outcome of one of several groups."""
    size = f"{counted(len(merged.group.files), 'file')} ({size_text(merged.group.bytes)})"
    if merged.version is not None:
        return f"{number:,} of {groups:,}: merged {size}"
    if merged.damaged:
        return f"{number:,} of {groups:,}: left {size} as they are, because rows in them differ from what was loaded"
    return f"{number:,} of {groups:,}: left {size} for the next run, because they changed or could not be read"


def damage_texts(table: str, damaged: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with damaged windows, and how to repair them."""
    if damaged:
        some = " ".join(damaged[:3]) + (" …" if len(damaged) > 3 else "")
        number = f"{MOST_DAMAGED} or more" if len(damaged) >= MOST_DAMAGED else f"{len(damaged)}"
        noun, verb = ("window", "has") if number == "1" else ("windows", "have")
        yield (
            f"{number} {noun} of {table} {verb} rows that differ from those that were loaded, so upkeep does not merge "
            f"their files: {some}. Repair them with `platform-assets load {table} {some}`."
        )
