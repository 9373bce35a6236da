"""Erasure in all replays of a topic.

Each replay is a separate lake. If a file of a replay is missing, only that replay fails; neither the live tables nor
other replays are blocked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from platform_assets.errors import FilesLostError, PlatformError, Retryable, RowsWithoutWindowError, UnerasedReplay
from platform_assets.lake import holdings, load_log
from platform_assets.lake.failures import TableDamagedError
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Author, Decision
from platform_assets.ledger.store import Ledger
from platform_assets.windows.erase import erased_keys, replayed
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets.windows.erase.outcome import Selected
from platform_assets.windows.erase.searching import Unread

if TYPE_CHECKING:
    from platform_assets.windows.erase.erasure import Erasure

Failures = dict[str, UnerasedReplay]
"""Replays that failed, by name."""


def of(live: Erasure) -> dict[str, Erasure]:
    """Return the erasures for all replays of the topic, by name. The lakes of the replays are inside the live lake."""
    lakes = {name: live.ledger.lake.replay(name) for name in live.ledger.lake.replays()}
    found = {name: replace(live, ledger=Ledger(lake)) for name, lake in lakes.items()}
    return {name: replay for name, replay in found.items() if _has_topic(replay)}


def select(live: Erasure, keys: Sequence[bytes]) -> tuple[dict[str, list[Selected]], Failures]:
    """Select the records with one of these keys, by replay. Return also the replays that cannot be searched completely."""
    found, failed = dict[str, list[Selected]](), Failures()
    for name, replay in of(live).items():
        with _own_failure(name, replay, failed):
            unread = Unread()
            if selected := replay.of_keys(keys, unread):
                found[name] = selected
            _note_lost(name, replay, unread.windows, failed)
    return found, failed


def record_keys(live: Erasure, keys: Sequence[bytes], author: Author) -> Failures:
    """Record the live erasures in all replays, together with the replays' own records that have one of these keys.
    Return the replays that could not be searched completely."""
    failed = Failures()
    for name, replay in of(live).items():
        with _own_failure(name, replay, failed):
            replayed.take_over(live.ledger, replay.ledger, live.topic)
            erased_keys.fence_loads(WindowEraser(replay.declaration, replay.ledger, replay.run_id))
            unread = Unread()
            replay.record(replay.of_keys(keys, unread), author)
            _note_lost(name, replay, unread.windows, failed)
    return failed


def run(live: Erasure, author: Author, gone: dict[str, int], written: dict[str, int]) -> Failures:
    """Erase in all replays, add the numbers of rows and bytes to `gone` and `written`, and confirm the replays that are
    done. Return the other replays."""
    failed = Failures()
    began, lake = live.ledger.lake.root.time(), live.ledger.lake
    for name, replay in of(live).items():
        with _own_failure(name, replay, failed):
            replayed.take_over(live.ledger, replay.ledger, live.topic)
            unreadable = _search(replay)
            done, left = replay.proceed(author)
            for table in done.rows:
                gone[f"replays/{name}/{table}"] = done.rows[table]
                written[f"replays/{name}/{table}"] = done.bytes[table]
            _note_lost(name, replay, {*unreadable, *left.windows} - {""}, failed)
            if "" in left.windows:
                failed[name] = UnerasedReplay(str(replay.ledger.lake), left.windows[""])
    if confirmed := sorted(set(decisions.unerased_replays(lake, live.topic)).difference(failed)):
        rows = {table: number for table, number in gone.items() if table.startswith("replays/")}
        until = dict.fromkeys(confirmed, began.isoformat())
        details: dict[str, Any] = {"offsets": {}, "rows": rows, decisions.REPLAYS_DONE: until}
        now = lake.root.time()
        decisions.record(lake, Decision(live.topic, "erased", (), author.name, author.reason, details, now))
    return failed


def _search(replay: Erasure) -> set[str]:
    """Record what rules by key erase in a replay. Return the windows that have an unreadable file.

    Raises RowsWithoutWindowError for rows to which no rule can be applied.
    """
    unreadable = set[str]()
    folder = replay.ledger.lake.table(replay.declaration.raw_table)
    if not load_log.exists(folder):
        return unreadable
    files = holdings.window_files(holdings.actions(folder))
    windows = {w.key: w for w in replay.ledger.windows(replay.topic)}
    for key in files:
        if key not in windows:
            raise RowsWithoutWindowError(
                f"the replay has rows of window {key!r}, but its ledger does not list that window", ""
            )
        try:
            erased_keys.record_found(replay.ledger, folder, files[key].paths, windows[key])
        except FilesLostError:
            unreadable.add(key)
    return unreadable


def _has_topic(replay: Erasure) -> bool:
    if replay.ledger.lake.table(replay.declaration.raw_table).has_delta_log():
        return True
    try:
        return replay.ledger.newest_cut(replay.topic) is not None
    except PlatformError:
        return False  # It has no rows of the topic, and cannot load any without that ledger.


@contextmanager
def _own_failure(name: str, replay: Erasure, failed: Failures) -> Iterator[None]:
    """If the block raises a PlatformError, add it to `failed`."""
    try:
        yield
    except PlatformError as e:
        cause = str(e)
        if isinstance(e, RowsWithoutWindowError):
            cause = e.problem
        elif isinstance(e, TableDamagedError):
            cause = f"{e.place} is damaged: {e.reason}"
        failed[name] = UnerasedReplay(str(replay.ledger.lake), cause, is_passing=isinstance(e, Retryable))


def _note_lost(name: str, replay: Erasure, windows: set[str], failed: Failures) -> None:
    if windows:
        keys = tuple(sorted(windows))
        few = ", ".join(keys[:3]) + (f" and {len(keys) - 3:,} more" if len(keys) > 3 else "")
        cause = f"data files of windows {few} are missing or do not match the receipts"
        failed[name] = UnerasedReplay(str(replay.ledger.lake), cause, keys)
