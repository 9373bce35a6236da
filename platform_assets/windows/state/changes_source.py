"""The table of changes as the source of a state: its loads since a fold, and its rows by window."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from platform_assets.errors import NoChangesError
from platform_assets.lake import decoded_table, delta_log, holdings, load_log, state_table
from platform_assets.lake.delta_log import Anchor, Commit
from platform_assets.lake.load_log import Expiry, Fence, LoadMetadata
from platform_assets.lake.location import Folder
from platform_assets.ledger import decisions
from platform_assets.ledger.entries import EXPIRED
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.windows.state.pending import ChangesLoad

_BLOCK_ROWS: Final = 1 << 16


class UnknownChangeError(Exception):
    """The log does not tell which windows have changed. The text says why."""


@dataclass(frozen=True, slots=True)
class ChangesSource:
    """The table of changes in one version. `anchor` is the commit that made this version."""

    folder: Folder
    handle: DeltaTable
    anchor: Anchor

    @classmethod
    def newest(cls, folder: Folder) -> ChangesSource:
        """Open the newest version. Raises NoChangesError if there is no table."""
        if not delta_log.exists(folder):
            raise NoChangesError(folder.name)
        handle = folder.delta()
        anchor = delta_log.anchor(folder, int(handle.version()))
        if anchor is None:
            anchor = Anchor(int(handle.version()), "")
        return cls(folder, handle, anchor)

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return str(self.handle.metadata().id)

    @property
    def columns(self) -> pa.Schema:
        """The table's columns."""
        return pa.schema(self.handle.schema().to_arrow())

    def loads_since(self, seen: Anchor) -> list[ChangesLoad]:
        """Return the loads after the commit `seen`, up to this version. Raises UnknownChangeError."""
        commits = delta_log.commits_after(self.folder, seen)
        if commits is None:
            raise UnknownChangeError("the log of the table of changes no longer has the version of the last fold")
        if seen.version + len(commits) < self.anchor.version:
            # The log is cleaned up while it is read, or lacks a file.
            raise UnknownChangeError("the log of the table of changes lacks versions after the last fold")
        found = list[ChangesLoad]()
        for commit in commits:
            if commit.version > self.anchor.version:
                break
            load = _load_of(commit)
            if load is not None:
                found.append(load)
        return found

    def rows_by_window(self, windows: Collection[str] | None = None) -> dict[str, int]:
        """Return the number of rows of each window that has any, or of those among `windows`."""
        files = self.files(windows)
        found: dict[str, int] = {}
        for window, rows in zip(files[holdings.WINDOW].to_pylist(), files["num_records"].to_pylist(), strict=True):
            found[window] = found.get(window, 0) + (rows or 0)
        return found

    def blocks(self, columns: pa.Schema, windows: Collection[str], *, others: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `windows`, or those of all other windows, with `columns`. Raises FilesLostError."""
        names = pa.array(sorted(windows), pa.string())
        paths = self.files(None if others else windows)["path"].to_pylist()
        for path in dict.fromkeys(paths):
            for block in state_table.blocks(self.folder, path, columns, _BLOCK_ROWS):
                is_meant = pc.is_in(block[holdings.WINDOW], value_set=names)
                found = block.filter(pc.invert(is_meant) if others else is_meant)
                if found.num_rows:
                    yield found

    def files(self, windows: Collection[str] | None = None) -> pa.Table:
        """Return the result of `holdings.actions` for this version: of all windows, or of those among `windows`."""
        with self.folder.reading():
            files = pa.table(self.handle.get_add_actions(flatten=True))
        return holdings.by_window(self.folder, files, flat=holdings.is_flat(self.handle), among=windows)


@dataclass(frozen=True, slots=True)
class Awaited:
    """Decoded windows, each in ascending order: those of which the changes are `outdated`, because they were made before
    the table started over, for another declaration, or from an earlier load, or are those of a load without a receipt;
    and those of which the changes are `missing`."""

    outdated: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def reason(self) -> str:
        """The reason why a state cannot be made from the changes; an empty text if it can."""
        if self.outdated:
            what = f"{_have(self.outdated)} changes that were made with other columns or another `state:`, or from earlier rows"
            return f"{what}, or by a run that ended before it recorded them, for example window {self.outdated[0]}"
        if self.missing:
            return f"{_have(self.missing)} no changes, but may be in the state, for example window {self.missing[0]}"
        return ""


def _have(windows: Sequence[str]) -> str:
    return "1 window has" if len(windows) == 1 else f"{len(windows):,} windows have"


def awaited(
    ledger: Ledger, topic: str, declaration: str, folder: Folder, *, from_all: bool, through: str
) -> tuple[ChangesSource, Awaited]:
    """Return the newest version of the table of changes, and the decoded windows whose changes have yet to be made. The
    state has the declaration with the digest `declaration`.

    Only a state that is to be made `from_all` changes waits for missing ones: for all if the table has started over, or
    else up to the window `through`, the newest one in the state. Older changes may be lost after a restore. Only such a
    state waits for changes of decoded rows that were replaced since, and for windows whose rows come from another load than
    the one in the receipt: the receipt does not tell how that load made them. No state waits for a parked window without
    changes. Raises NoChangesError.
    """
    names = ["window", "kind", "table_version", "rows", "load_id"]
    decoded = ledger.commit_rows(TableRef("decoded", topic), columns=names).select(names).to_pylist()
    names.append("made_from")
    made = ledger.commit_rows(TableRef("changes", topic), columns=names).select(names).to_pylist()
    # Opened last: each of these loads is then in this version.
    source = ChangesSource.newest(folder)
    begun = decoded_table.begun_at(folder)
    can_be_made = {row["window"] for row in decoded if row["table_version"] is not None}
    can_be_made -= {row["window"] for row in decoded if row["kind"] == EXPIRED}
    wanted = can_be_made & {row["window"] for row in decoded if row["rows"]}
    newest = {row["window"]: row["load_id"] for row in decoded} if from_all else {}
    outdated = set[str]()
    for row in made:
        is_lost = bool(row["rows"]) and (row["table_version"] is None or row["table_version"] < begun)
        declared, load_id = _made_from(row["made_from"])
        is_old = declared != declaration or newest.get(row["window"], load_id) != load_id
        if row["kind"] != EXPIRED and (is_lost or is_old):
            outdated.add(row["window"])
    # Those that have rows, and those that get some.
    outdated &= wanted | (can_be_made & {row["window"] for row in made if row["rows"]})
    missing = set[str]()
    if from_all:
        # A damaged file that windows share takes the rows of all with it. Receipts do not tell.
        held = source.files()
        windows = {*held[holdings.WINDOW].to_pylist()}
        lost = {
            row["window"] for row in made if row["rows"] and row["kind"] != EXPIRED and row["window"] not in windows
        }
        outdated |= can_be_made & load_log.of_other_loads(held, {row["window"]: row["load_id"] for row in made})
        parkings = decisions.parking_of_many(ledger.lake, [TableRef("decoded", topic), TableRef("changes", topic)])
        parked = {window for parking in parkings.values() for window in parking.parked}
        missing = wanted - ({row["window"] for row in made} - lost) - parked
    if begun:
        return source, Awaited(tuple(sorted(outdated | missing)), ())
    return source, Awaited(tuple(sorted(outdated)), tuple(sorted(w for w in missing if w <= through)))


def of_other_declaration(ledger: Ledger, topic: str, declaration: str, newest: Mapping[str, ChangesLoad]) -> Awaited:
    """Return, among windows whose newest loads are `newest`, those whose changes were made for another declaration than the one
    with the digest `declaration`. Windows whose changes cannot be made again, because they or the decoded rows are gone, are
    left out."""
    declared = {window: load.declaration for window, load in newest.items()}
    names = ["window", "kind", "table_version", "rows", "load_id", "made_from"]
    rows = {
        kind: ledger.commit_rows(TableRef(kind, topic), sorted(newest), columns=names).to_pylist()
        for kind in ("changes", "decoded")
    }
    gone = {row["window"] for of_table in rows.values() for row in of_table if row["kind"] == EXPIRED}
    gone |= {row["window"] for row in rows["decoded"] if row["table_version"] is None}
    held = {row["window"] for row in rows["changes"] if row["rows"]}
    for row in rows["changes"]:
        # A receipt may be of an earlier load. That of the newest one is written again if its changes stay the same for
        # another declaration.
        if row["load_id"] == newest[row["window"]].load_id:
            declared[row["window"]] = _made_from(row["made_from"])[0] if row["window"] in held else None
    made = {window: found for window, found in declared.items() if found is not None and window not in gone}
    return Awaited(tuple(sorted(window for window, found in made.items() if found != declaration)), ())


def _made_from(text: str | None) -> tuple[str | None, str | None]:
    """Return the digest of the declaration and the id of the decoded load from which changes were made."""
    found = json.loads(text or "null")
    return (found.get("declaration"), found.get("load_id")) if isinstance(found, dict) else (None, None)


def _load_of(commit: Commit) -> ChangesLoad | None:
    """Return the load that made a commit; None if the commit changed no rows of a state. Raises UnknownChangeError."""
    metadata = LoadMetadata.from_json(commit.user_metadata)
    if metadata is not None:
        if metadata.lost:
            # A window whose rows went with a damaged file has no file that its next load removes.
            raise UnknownChangeError(
                f"changes of other windows were lost with damaged files in version {commit.version}"
            )
        declared = None if metadata.made_from is None else metadata.made_from.declaration
        return ChangesLoad(
            commit.version, metadata.window.key, bool(commit.removes), bool(metadata.erased), metadata.load_id, declared
        )
    if decoded_table.is_start_over(commit.user_metadata):
        raise UnknownChangeError(f"columns changed, so the table of changes started over in version {commit.version}")
    is_ours = Fence.from_json(commit.user_metadata) or Expiry.from_json(commit.user_metadata)
    # The state keeps the rows of windows that are removed by age: only a record of the same key replaces them.
    if is_ours or commit.rearranges or not (commit.adds or commit.removes):
        return None
    raise UnknownChangeError(f"version {commit.version} of the table of changes was not written by the platform")
