"""The newest upkeep of a topic's tables, for `platform-assets status`. It is read from the records of upkeep; no table
is opened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.windows.maintain import last_upkeep, upkeep_text


@dataclass(frozen=True, slots=True)
class UpkeepStatus:
    """The newest upkeep of one table; it ended at the time `at` (ISO 8601). The field names are also those of the JSON
    and must not change.

    Before the upkeep, the table had `files_before` files; after it, the table has `files` files of `average_file_bytes`
    bytes on average. The upkeep merged `merged_files` files of `merged_bytes` bytes into `new_files` files. `damaged`
    lists windows whose rows are not those that were loaded, except windows that have been loaded again since. `text`
    describes the upkeep.
    """

    table: str
    at: str
    files: int
    average_file_bytes: int
    files_before: int
    merged_files: int
    merged_bytes: int
    new_files: int
    damaged: tuple[str, ...]
    text: str


def collect(declaration: TopicDeclaration, ledger: Ledger) -> Iterator[UpkeepStatus]:
    """Yield the newest upkeep of each of the topic's tables for which there was an upkeep. Raises whatever reading the
    lake raises."""
    for table in declaration.tables:
        done = last_upkeep.recall(ledger.lake, table)
        if done is not None:
            yield UpkeepStatus(
                table.name,
                done.at.isoformat(timespec="seconds"),
                done.files,
                done.bytes // max(done.files, 1),
                done.files_before,
                done.merged_files,
                done.merged_bytes,
                done.new_files,
                last_upkeep.standing(ledger, table, done),
                upkeep_text.done_text(done),
            )


def problems(found: tuple[UpkeepStatus, ...]) -> Iterator[str]:
    """Yield what to do about the damage that upkeep found."""
    for each in found:
        yield from upkeep_text.damage_texts(each.table, each.damaged)
