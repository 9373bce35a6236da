"""Random histories of a topic's windows from records to its state, with a real ledger: declarations change, and runs are killed
between the commit of changes and their receipt."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import polars as pl
from deltalake import DeltaTable

from platform_assets.checks import state as checks
from platform_assets.errors import ChangesOutdatedError, NoChangesError
from platform_assets.model.keeping import Keep
from platform_assets.model.state import StateDeclaration
from platform_assets.windows.change.changing import WindowChanger, stale_windows
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.erasures import MadeTopic
from platform_assets_tests.support.state_lakes import STEPS, CrashedError, crashing

WINDOWS: Final = 6
ROUNDS: Final = 4
"""Number of rounds in which the sensor has to bring everything up to date."""
DECLARED: Final = (
    StateDeclaration(("key",)),
    StateDeclaration(("key",), history=True),
    StateDeclaration(("key",), deletes_kept=Keep(1)),
    StateDeclaration(("key",), deletes="none"),
    StateDeclaration(("key",), deletes="none", keep="first"),
    StateDeclaration(("value",), deletes="none", history=True),
)

Place = tuple[str, int, int]
"""Window, partition and offset of a record."""


@dataclass
class DeclaredHistory:
    """A random history in a lake below `root`, which its seed determines. `met` counts what happened."""

    seed: str
    root: Path
    met: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._topic = MadeTopic(self.root, hours=24)
        self._declare()
        offsets, windows = Counter[int](), []
        sent = list[tuple[int, tuple[int, int], bytes | None, bytes | None]]()
        partitions = self._random.choice([1, 1, 2])
        for number in range(WINDOWS):
            windows.append({partition: self._pairs() for partition in range(partitions)})
            for partition, pairs in windows[-1].items():
                for key, value in pairs:
                    sent.append((number, (partition, offsets[partition]), key, value))
                    offsets[partition] += 1
        self._windows = self._topic.seal(windows)
        self._sent = [((self._windows[number].key, *place), key, value) for number, place, key, value in sent]

    def _pairs(self) -> list[tuple[bytes | None, bytes | None]]:
        some, any_value = (b"a", b"b", b"c", b"d", None), [b"v%d" % n for n in range(8)]
        values = (None, *any_value[: self._random.choice([2, 8])])
        return [(self._random.choice(some), self._random.choice(values)) for _ in range(self._random.randint(0, 4))]

    @property
    def _declared(self) -> StateDeclaration:
        state = self._topic.declaration.state
        assert state is not None
        return state

    def run(self, steps: int = 25) -> Counter[str]:
        """Take random steps, then those of the sensor until nothing is left to do; return what happened. After each fold, the
        checks have to pass and the state has to be that of a plain dictionary."""
        actions: tuple[tuple[Callable[[], None], int], ...] = (
            (self._decode, 4), (self._make, 12), (self._fold, 8), (self._redeclare, 4), (self._tick, 3), (self._merge, 2),
            (self._lose_state, 1),
        )  # fmt: skip
        self._topic.fill(self._windows)
        for _ in range(steps):
            (act,) = self._random.choices([a for a, _ in actions], [weight for _, weight in actions])
            self.met[act.__name__.strip("_").replace("_", " ")] += 1
            act()
        self._finish()
        return self.met

    def _decode(self) -> None:
        """Decode a window again, which leaves its changes outdated."""
        self._topic.decoder().decode(self._random.choice(self._windows).key)

    def _make(self) -> None:
        """Make the changes of a window. The run may be killed before or after the commit."""
        killed_at = self._random.choice(["", "", "changes", "receipt", "receipt"])
        self._changed(self._random.choice(self._windows).key, killed_at)

    def _changed(self, window: str, killed_at: str = "") -> None:
        try:
            WindowChanger(self._topic.declaration, self._topic.ledger, before_step=crashing(killed_at)).make(window)
        except CrashedError:
            self.met[f"killed before {killed_at}"] += 1

    def _tick(self) -> None:
        """Make the changes that the sensor requests again."""
        for window in stale_windows(self._topic.ledger, self._topic.declaration):
            self._changed(window)

    def _declare(self) -> None:
        self._topic.declaration = replace(self._topic.declaration, state=self._random.choice(DECLARED))

    def _redeclare(self) -> None:
        """Declare another state; in most histories, the sensor notices at once."""
        self._declare()
        if self._random.random() < 0.7:
            self._tick()
            self._fold(is_killed=False)

    def _merge(self) -> None:
        """Merge files of changes."""
        self.met["merged"] += len(
            list(Upkeep(self._topic.declaration.changes_table, self._topic.ledger, target=1 << 20).run("9999"))
        )

    def _lose_state(self) -> None:
        shutil.rmtree(self.root / self._random.choice(["state", "state_deleted", "history"]), ignore_errors=True)

    def _fold(self, *, is_killed: bool | None = None) -> None:
        is_killed = self._random.random() < 0.3 if is_killed is None else is_killed
        step = crashing(self._random.choice(STEPS)) if is_killed else crashing("")
        rebuild = is_killed is not None and self._random.random() < 0.1
        try:
            made = TopicState(self._topic.topic, self._declared, self._topic.lake, before_step=step).fold(
                rebuild=rebuild
            )
        except CrashedError:
            return
        except (ChangesOutdatedError, NoChangesError) as e:
            self.met[type(e).__name__] += 1
            return
        self.met[f"made by {made.made}"] += 1
        self._check()

    def _check(self) -> None:
        """Check a state that has just been folded."""
        rows = pl.scan_delta(str(self.root / "state" / self._topic.topic)).collect().to_dicts()
        name = self._declared.key[0]
        found = {row[name]: (row["window"], row["kafka_partition"], row["kafka_offset"]) for row in rows}
        assert len(found) == len(rows), f"{self.seed}: a key occurs twice"
        wanted = self._expected()
        assert found == wanted, f"{self.seed}: the state of {self._declared} has {found} instead of {wanted}"
        for check in checks.results(self._topic.declaration, self._declared, self._topic.ledger, seed=self.seed):
            alarms = [finding.detail for finding in check.findings if finding.alarming]
            assert not alarms, f"{self.seed}: {check.check}: {alarms}"

    def _expected(self) -> dict[str, Place]:
        """Return the place of the record that counts for each key, among the windows that have changes."""
        table = DeltaTable(str(self.root / "changes" / self._topic.topic))
        among = {*table.to_pyarrow_table(columns=["window"])["window"].to_pylist(), *self._topic.receipts("changes")}
        found = dict[str, Place]()
        for place, key, value in sorted(self._sent, key=lambda each: each[0]):
            own = value if self._declared.key == ("value",) else key
            if place[0] not in among or own is None:
                continue
            if value is not None and not (self._declared.keep == "first" and own.decode() in found):
                found[own.decode()] = place
            elif value is None and self._declared.has_deletes:
                found.pop(own.decode(), None)
        return found

    def _finish(self) -> None:
        """Do what the sensor does. It has to end with all windows in the state."""
        for _ in range(ROUNDS):
            self._tick()
            made = self._topic.receipts("changes")
            for window in self._windows:
                if window.key not in made:
                    self._changed(window.key)
            if TopicState(self._topic.topic, self._declared, self._topic.lake).pending().is_due:
                self._fold(is_killed=False)
        pending = TopicState(self._topic.topic, self._declared, self._topic.lake).pending()
        left = stale_windows(self._topic.ledger, self._topic.declaration)
        is_done = not left and not pending.is_urgent and not pending.windows and not pending.waits
        assert is_done, f"{self.seed}: nothing leads on: {left}, {pending}"
        self._check()
