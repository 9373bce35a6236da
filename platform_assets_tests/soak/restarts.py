"""Kill each part of the production setup under load. After a few seconds, the supervisor starts the part again.

Nobody intervenes. For each part, this module measures the time until all windows that had closed are loaded, all checks
of these windows have passed, the UI has loaded the code location, and `status` reports no problem.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import dagster as dg

from platform_assets.model.declaration import EngineName
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.dagster_records import reported_partitions
from platform_assets.orchestration.names import table_key
from platform_assets_tests.soak import proof
from platform_assets_tests.soak.live import LiveProducer, TransactionalProducer, create
from platform_assets_tests.soak.production import PARTS, Part, Production
from testbed.loads import wait_until

BOUND: Final = 240.0
"""Maximum number of seconds from the start of a part until everything has recovered."""
_PARTITIONS: Final = 3
_AWAY: Final = (3.0, 15.0)
"""Minimum and maximum number of seconds for which a part is down."""
_PAUSE: Final = 1.0
_UNFINISHED: Final = [s for s in dg.DagsterRunStatus if s.value not in ("SUCCESS", "FAILURE", "CANCELED")]
_TOPIC: Final = "restarts"


@dataclass(frozen=True, slots=True)
class Restart:
    """A part that was down for `away` seconds, and what happened until everything had recovered, which took another
    `after` seconds.

    `windows` is the number of windows that closed in that time. `runs` is the number of runs that were requested in
    that time; `failed` of them failed.
    """

    part: Part
    away: float
    after: float
    windows: int
    runs: int
    failed: int

    def line(self) -> str:
        """Return a Markdown table row."""
        return f"| {self.part} | {self.away:.1f} | {self.after:.1f} | {self.windows} | {self.runs} | {self.failed} |"


HEADER_OF_PARTS: Final = (
    "| part | seconds down | seconds to recovery | windows closed | runs | failed runs |\n|---|--:|--:|--:|--:|--:|"
)
HEADER: Final = (
    "| seed | engine | restarts | longest, s | records | windows | runs | processes that died | orphan files | anomalies |\n"
    "|--:|---|--:|--:|--:|--:|--:|---|--:|---|"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Actions and findings. `revived` counts the restarts of processes that had ended without being killed by the test."""

    seed: int
    engine: EngineName
    restarts: tuple[Restart, ...]
    records: int
    windows: int
    runs: int
    revived: dict[str, int]
    orphans: int
    anomalies: tuple[str, ...]

    def line(self) -> str:
        """Return a Markdown table row."""
        longest = max((r.after for r in self.restarts), default=0.0)
        revived = ", ".join(f"{n} × {name}" for name, n in sorted(self.revived.items())) or "none"
        return (
            f"| {self.seed} | {self.engine} | {len(self.restarts)} | {longest:.0f} | {self.records:,} | {self.windows} "
            f"| {self.runs} | {revived} | {self.orphans} | {'; '.join(self.anomalies) or 'none'} |"
        )

    def markdown(self) -> str:
        """Return a table row for each restarted part, in the order of the restarts."""
        return "\n".join([HEADER_OF_PARTS, *(r.line() for r in self.restarts)])


def run(
    seed: int,
    root: Path,
    engine: EngineName,
    parts: Sequence[Part] = PARTS,
    *,
    rate: int = 50,
    bound: float = BOUND,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Kill and restart each of `parts` once, in random order, on a platform below `root`.

    Raises AssertionError if recovery from a restart takes longer than `bound` seconds.
    """
    rng = random.Random(seed)
    order = rng.sample(list(parts), len(parts))
    platform = Production(root, root / "lake")
    platform.declare(_TOPIC, datetime.now(UTC) - timedelta(minutes=1), engine, sensor_interval_seconds=5)
    restarts: list[Restart] = []
    with platform.serving():
        create(platform.bootstrap, _TOPIC, _PARTITIONS, replicas=3)
        live = LiveProducer(platform.bootstrap, _TOPIC, _PARTITIONS, rate)
        transactions = TransactionalProducer(
            platform.bootstrap, _TOPIC, _PARTITIONS, random.Random(rng.random()), records=20
        )
        with live.sending(), transactions.sending():
            first = datetime.now(UTC)
            wait_until("the first window is loaded", lambda: _amiss(platform, first) is None, 2 * bound)
            for part in order:
                restarts.append(_restart(platform, part, rng, bound, say))
                say(f"{datetime.now(UTC):%H:%M:%S} {restarts[-1].line()}")
        proof.healed(platform, [_TOPIC], 2 * bound)
        sends = [*live.sends, *transactions.sends]
        found = proof.anomalies(platform, _TOPIC, sends)
        status = platform.command("status")
        if status.code:
            found.append(f"`status` exited with code {status.code} although everything is loaded: {status.text}")
        with platform.instance() as instance:
            runs = instance.get_runs_count()
        return Outcome(
            seed, engine, tuple(restarts), len(sends), _windows(platform), runs, dict(platform.revived),
            len(proof.orphans(platform, _TOPIC)), tuple(found),
        )  # fmt: skip


def _restart(platform: Production, part: Part, rng: random.Random, bound: float, say: Callable[[str], None]) -> Restart:
    # Windows are a minute long, so one begins soon unless something is wrong.
    wait_until("a run is in progress", lambda: bool(_runs(platform, [dg.DagsterRunStatus.STARTED])), bound)
    time.sleep(rng.uniform(0, 1.5))
    before, began = _windows(platform), datetime.now(UTC)
    platform.take(part)
    gone = time.monotonic()
    time.sleep(rng.uniform(*_AWAY))
    away, back = time.monotonic() - gone, datetime.now(UTC)
    started = time.monotonic()
    platform.give_back(part)
    before_this = ""
    while (amiss := _amiss(platform, back)) is not None:
        if amiss != before_this:
            say(f"{datetime.now(UTC):%H:%M:%S} {part}: {amiss}")
            before_this = amiss
        if time.monotonic() - started > bound:
            status = platform.command("status")
            raise AssertionError(f"{part}: no recovery without intervention after {bound:g} s: {amiss}\n{status.text}")
        time.sleep(_PAUSE)
    after = time.monotonic() - started
    with platform.instance() as instance:
        since = dg.RunsFilter(updated_after=began)
        runs = instance.get_runs(since)
    failed = sum(r.status is dg.DagsterRunStatus.FAILURE for r in runs)
    return Restart(part, away, after, _windows(platform) - before, len(runs), failed)


def _amiss(platform: Production, at: datetime) -> str | None:
    """Describe the first condition that is not met yet for the windows that closed by the time `at`; return None if all
    conditions are met."""
    edge = at.replace(second=0, microsecond=0)
    windows = platform.ledger.windows(_TOPIC)
    if not windows or windows[-1].window.end < edge:
        return f"windows are sealed up to {windows[-1].window.end if windows else 'nowhere'}, not to {edge}"
    keys = [w.key for w in windows if w.window.end <= edge]
    if missing := set(keys) - set(platform.ledger.receipts(TableRef.raw(_TOPIC))):
        return f"{sorted(missing)} are not loaded"
    with platform.instance() as instance:
        reported = reported_partitions(instance, table_key(TableRef.raw(_TOPIC)), keys)
    if unreported := set(keys) - reported:
        return f"{sorted(unreported)} are not reported"
    if left := _runs(platform, _UNFINISHED, at):
        return f"earlier runs are still in progress: {left}"
    if not platform.ui_has_the_code():
        return "the UI has not loaded the code location"
    status = platform.command("status", "--json")
    if status.code:
        return f"`status` exited with code {status.code}: {status.text[-2000:]}"
    tables: list[dict[str, Any]] = json.loads(status.text)["tables"]
    red = [f"{t['table']}: {c['name']}" for t in tables for c in t["checks"] if c["passed"] is not True]
    return f"checks that have not passed: {red}" if red else None


def _runs(platform: Production, statuses: list[dg.DagsterRunStatus], before: datetime | None = None) -> list[str]:
    with platform.instance() as instance:
        wanted = dg.RunsFilter(statuses=statuses, created_before=before)
        return [f"{r.run_id} {r.status.value}" for r in instance.get_runs(wanted)]


def _windows(platform: Production) -> int:
    return len(platform.ledger.windows(_TOPIC))
