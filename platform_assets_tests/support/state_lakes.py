"""Random histories of a topic's changes and state in a lake: folds that crash or race, and everything that other programs,
clean-ups and restores do to the tables meanwhile."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from deltalake import DeltaTable

from platform_assets.cli.state_snippets import changes_from, fresh_view
from platform_assets.engines.folding import buckets
from platform_assets.errors import ConcurrentFoldError, NoChangesError
from platform_assets.lake import delta_log
from platform_assets.model.keeping import Keep
from platform_assets.windows.state import folding
from platform_assets_tests.support.made_changes import DAYS, MadeChanges
from platform_assets_tests.support.state_histories import LIVE, Row, expected, history

STEPS: Final = ("state_deleted", "history", "state", "past files")
"""The names of the irreversible steps of a fold with a history, in order."""


class CrashedError(BaseException):
    """The process ends."""


def crashing(at: str) -> Callable[[str], None]:
    """Return a function that ends the process before the step `at`."""

    def before(step: str) -> None:
        if step == at:
            raise CrashedError(step)

    return before


def fresh_rows(code: str, name: str = "fresh") -> list[Row]:
    """Return the rows that printed code for polars or DuckDB finds and calls `name`. Its last line, which prints some of
    them, is not run."""
    names: dict[str, Any] = {}
    exec(code.rpartition("\n")[0], names)
    found = names[name]
    rows: list[Row] = (found.collect() if hasattr(found, "collect") else found.pl()).to_dicts()
    return rows


@dataclass
class LakeHistory:
    """A random history in a lake below `root`, which its seed determines. `met` counts what happened."""

    seed: str
    root: Path
    met: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._history = history(self.seed)
        self._random = self._history.random
        declared = self._history.state
        self._made = MadeChanges(self.root, replace(declared, history=self._random.random() < 0.6))
        if declared.has_deletes and self._random.random() < 0.6:
            self._made.declared = replace(self._made.declared, deletes_kept=Keep(1))
        self._backup: dict[str, list[Row]] | None = None

    def run(self, steps: int = 20) -> Counter[str]:
        """Take random steps, then fold; return what happened. The state has to be that of a plain dictionary after each
        fold, and equal to one that is made from all changes at the end."""
        actions: tuple[tuple[Callable[[], None], int], ...] = (
            (self._load, 12), (self._fold, 7), (self._crash, 4), (self._race, 2), (self._merge, 2), (self._read_fresh, 6),
        )  # fmt: skip
        if self._random.random() < 0.5:
            # Most of these make the next fold one of all changes. In other histories, all folds build on one another.
            actions += (
                (self._rebuild, 1), (self._shorten_log, 1), (self._back_up, 2), (self._restore, 1),
                (self._lose_table, 1), (self._lose_file, 1), (self._delete_row, 1), (self._change_history, 1),
            )  # fmt: skip
        # One byte in a bucket: then even these few rows are in several.
        target = self._random.choice([1, 100, 1 << 20])
        count_for = buckets.count_for
        with (
            patch.object(buckets, "count_for", lambda size, now=1: min(count_for(size, now, target), 8)),
            patch.object(folding, "collectable", self._collectable),
        ):
            for _ in range(steps):
                (act,) = self._random.choices([a for a, _ in actions], [weight for _, weight in actions])
                self.met[act.__name__.strip("_").replace("_", " ")] += 1
                act()
            self._load()
            self._fold()
            assert self._made.state().compare().is_equal, f"{self.seed}: the state differs from one of all changes"
        return self.met

    def _collectable(self, *_: object) -> str:
        """Return any window, also if earlier ones are yet to come, which only costs time."""
        return self._random.choice(["", *DAYS[:8]])

    def _load(self) -> None:
        self._history.load()
        window = self._history.loads[-1].window
        self._made.load(window, self._history.windows[window])

    def _fold(self, *, rebuild: bool = False, before_step: Callable[[str], None] = lambda step: None) -> None:
        try:
            self.met[f"made by {self._made.state(before_step).fold(rebuild=rebuild).made}"] += 1
        except NoChangesError:
            return
        self._check()

    def _check(self) -> None:
        try:
            self._made.check()
        except AssertionError as e:
            raise AssertionError(f"{self.seed}: {e}") from e

    def _read_fresh(self) -> None:
        """Run the code that `platform-assets read` prints for fresh rows."""
        state = self._made.state()
        pending = state.pending() if state.exists else None
        if pending is None or pending.rebuild or pending.replaces:
            return
        wanted, _ = expected(self._made.windows, self._made.declared)
        since, is_folded = changes_from(pending)
        codes = fresh_view(state, LIVE.names, since, None, is_folded=is_folded)
        for reader in ("polars", "duckdb"):
            rows = fresh_rows(codes[reader])
            assert {row["id"]: row for row in rows} == wanted, f"{self.seed}: {reader}, fresh rows"
            assert len(rows) == len(wanted), f"{self.seed}: {reader}, a fresh key occurs twice"
        self.met["read fresh rows that a fold has to write" if pending.windows else "read the rows of a fold"] += 1

    def _rebuild(self) -> None:
        self._fold(rebuild=True)

    def _crash(self) -> None:
        step = self._random.choice(STEPS)
        try:
            self._fold(rebuild=self._random.random() < 0.2, before_step=crashing(step))
        except CrashedError:
            if self._made.state().exists:
                # A reader may come now.
                self._made.live(), self._made.dead()

    def _race(self) -> None:
        """Load a window, or fold, between two steps of a fold."""
        at, folds = self._random.choice(STEPS), self._random.random() < 0.5

        def meanwhile(step: str) -> None:
            if step != at:
                return
            if folds:
                self._fold()
            else:
                self._load()

        try:
            self.met[f"made by raced {self._made.state(meanwhile).fold().made}"] += 1
        except ConcurrentFoldError:
            self.met["slower fold refused"] += 1

    def _merge(self) -> None:
        """Rewrite the files of a table, as another program's OPTIMIZE does."""
        table = self._any_table("changes", "changes", "state", "state_deleted", "history")
        if table is not None:
            table.optimize.compact()

    def _shorten_log(self) -> None:
        table = self._any_table("changes", "state", "state_deleted", "history")
        if table is None:
            return
        table.create_checkpoint()
        log = Path(table.table_uri.removeprefix("file://")) / "_delta_log"
        for version in range(table.version()):
            (log / Path(delta_log.name_of(version)).name).unlink(missing_ok=True)

    def _back_up(self) -> None:
        shutil.rmtree(self.root / "backup", ignore_errors=True)
        shutil.copytree(self.root / "changes", self.root / "backup")
        self._backup = {window: list(rows) for window, rows in self._made.windows.items()}

    def _restore(self) -> None:
        """Replace the table of changes by its backup. Windows that are loaded after it have other commits."""
        if self._backup is None:
            return
        shutil.rmtree(self.root / "changes")
        shutil.copytree(self.root / "backup", self.root / "changes")
        self._made.windows = {window: list(rows) for window, rows in self._backup.items()}
        self._history.windows = {window: list(rows) for window, rows in self._backup.items()}

    def _lose_table(self) -> None:
        shutil.rmtree(self.root / self._random.choice(("state", "state_deleted", "history")), ignore_errors=True)

    def _change_history(self) -> None:
        """Declare a history, or declare it no more: the table then stays as it is."""
        declared = self._made.declared
        self._made.declared = replace(declared, history=not declared.history)

    def _lose_file(self) -> None:
        table = self._any_table("state", "state_deleted", "history")
        paths = [] if table is None else sorted(table.file_uris())
        if paths:
            Path(self._random.choice(paths)).unlink()
            # Nothing but a fold that reads or rewrites the file notices.
            self._load()
            self._fold()

    def _delete_row(self) -> None:
        table = self._any_table("state", "state_deleted", "history")
        ids = [] if table is None else table.to_pyarrow_table(columns=["id"])["id"].to_pylist()
        if table is not None and ids:
            id = self._random.choice(sorted(ids, key=str))
            table.delete("id IS NULL" if id is None else f"id = {id}")

    def _any_table(self, *kinds: str) -> DeltaTable | None:
        """Return one of these tables that exists; None if the chosen one does not."""
        folder = self.root / self._random.choice(kinds) / "orders"
        return DeltaTable(str(folder)) if DeltaTable.is_deltatable(str(folder)) else None
