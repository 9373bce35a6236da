"""The leg from Kafka to the lake: three loaders with the same crashes, and the results of the checks for their tables."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.findings import CheckResult, Finding, FindingKind
from platform_assets.checks.registry import CHECKS
from platform_assets.model.offsets import TopicRanges, ranges_of
from platform_assets_tests.support.control_loaders import ControlLoader
from platform_assets_tests.support.faults import POINTS, Crash, Faults, InterruptedLoader, Point
from platform_assets_tests.support.semantics.pages import Leg, Row
from testbed.loads import Record, TopicLake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

LoaderName = Literal["at most once", "at least once", "platform"]
LOADERS: tuple[LoaderName, ...] = get_args(LoaderName)
_TOLD = {
    "at most once": "at most once: position stored, then data",
    "at least once": "at least once: data appended, then position",
    "platform": "the platform: both in one commit, keyed by offsets",
}
PARTITIONS = 2

Offsets = frozenset[tuple[int, int]]
"""`(partition, offset)` pairs."""
Schedule = Sequence[tuple[Point, ...]]
"""For each window, the points at which the first attempts to load the window crash, one point for each attempt. The
next attempt does not crash."""

_LOST: frozenset[FindingKind] = frozenset({"rows missing", "window not loaded", "record not in the table"})
_DOUBLED: frozenset[FindingKind] = frozenset({"duplicate in a window", "duplicate across windows"})


class _Loads(Protocol):
    def load(self, key: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one loader. `lost` and `doubled` are the differences between the loader's table and the topic's
    committed records; `due_lost` and `due_doubled` are the differences that the loader's crashes must have caused.
    `windows` contains the sealed ranges of each window, in order."""

    loader: LoaderName
    crashes: Mapping[Point, int]
    committed: Offsets
    rows: int
    lost: Offsets
    doubled: Offsets
    due_lost: Offsets
    due_doubled: Offsets
    windows: Mapping[str, TopicRanges]
    check_results: tuple[CheckResult, ...]

    @property
    def as_due(self) -> bool:
        """True if the differences between the table and the topic are exactly those that the crashes must have caused."""
        return (self.lost, self.doubled) == (self.due_lost, self.due_doubled)

    def named(self, check: str, kinds: frozenset[FindingKind]) -> Offsets:
        """Return the offsets that `check` lists in findings of `kinds`."""
        return frozenset(
            (f.partition, offset)
            for f in self._findings(check, kinds)
            if f.partition is not None
            for r in f.ranges
            for offset in range(r.start, r.end)
        )

    @property
    def others(self) -> tuple[str, ...]:
        """Findings other than lost or duplicate records."""
        return tuple(f.sentence() for v in self.check_results for f in v.findings if f.kind not in _LOST | _DOUBLED)

    @property
    def exact(self) -> bool:
        """True if the checks report exactly the lost records and the duplicate records. `no_gaps` does not query
        brokers, so it reports a loss by window and partition. It lists offsets only if it knows them."""
        short = {(f.window, f.partition) for f in self._findings("no_gaps", _LOST)}
        return (
            not self.others
            and self.named("every_offset_accounted_for", _LOST) == self.lost
            and short
            == {(key, p) for key, ranges in self.windows.items() for p, o in self.lost if o in ranges.by_partition[p]}
            and self.named("no_gaps", _LOST) <= self.lost
            and self.named("no_duplicates", _DOUBLED) == self.doubled
        )

    def _findings(self, check: str, kinds: frozenset[FindingKind]) -> list[Finding]:
        check_result = next(v for v in self.check_results if v.check == check)
        return [f for f in check_result.findings if f.kind in kinds]


def schedule(rng: random.Random) -> Schedule:
    """Return a schedule in which every point occurs at least once, some windows crash twice, and one window does not
    crash."""
    chosen: list[tuple[Point, ...]] = [
        ("before the plan", "files written"),
        ("after the plan", "between the writes"),
        ("between the writes", "between the writes"),
        ("between the writes",),
        ("after all",),
        (),
    ]
    assert {point for points in chosen for point in points} == set(POINTS)
    rng.shuffle(chosen)
    return chosen


def run(
    bootstrap: str, topic: str, spark: Callable[[], SparkSession], root: Path, seed: int
) -> tuple[Schedule, tuple[Result, ...]]:
    """Fill `topic`, which is empty and has two partitions. Then load it with each loader into a lake below `root`."""
    rng = random.Random(seed)
    crashes = schedule(rng)
    lakes = {name: TopicLake(bootstrap, topic, root / name.replace(" ", "-"), spark) for name in LOADERS}
    met: dict[LoaderName, list[tuple[str, Point]]] = {name: [] for name in LOADERS}
    for points in crashes:
        _produce(lakes["platform"], rng)
        for name, lake in lakes.items():
            key = lake.close_window()
            met[name] += [(key, crash) for crash in _load(name, lake, key, points)]
    return crashes, tuple(_result(name, lake, met[name]) for name, lake in lakes.items())


def _produce(lake: TopicLake, rng: random.Random) -> None:
    """Produce records in every partition, in random order: some without a transaction, some in a committed transaction,
    and some in an aborted transaction."""

    def records(least: int) -> list[Record]:
        counts = {p: least + rng.randrange(20) for p in range(PARTITIONS)}
        return [Record(b"%d" % rng.getrandbits(64), partition=p) for p, count in counts.items() for _ in range(count)]

    lake.send(records(5))
    for send in rng.sample((lake.send, lake.commit, lake.abort), 3):
        send(records(1))


def _load(name: LoaderName, lake: TopicLake, key: str, points: Iterable[Point]) -> list[Point]:
    """Load a window with retries until a load succeeds, in the same way as an orchestrator. Return the points at which
    loads crashed."""
    met: list[Point] = []
    for point in (*points, None):
        try:
            _loader(name, lake, Faults(point)).load(key)
        except Crash:
            assert point is not None
            met.append(point)
        else:
            break
    return met


def _loader(name: LoaderName, lake: TopicLake, faults: Faults) -> _Loads:
    if name == "platform":
        return InterruptedLoader(lake, faults)
    return ControlLoader("position first" if name == "at most once" else "data first", lake, faults)


def _result(name: LoaderName, lake: TopicLake, met: Sequence[tuple[str, Point]]) -> Result:
    committed = frozenset((r.partition, r.offset) for r in lake.committed())
    held = Counter((r.partition, r.offset) for r in lake.rows())
    windows = {w.key: w.ranges for w in lake.ledger.windows(lake.topic)}
    torn = [windows[key] for key, point in met if point == "between the writes"]
    touched = frozenset((p, o) for p, o in committed if any(o in ranges.by_partition[p] for ranges in torn))
    none: Offsets = frozenset()
    return Result(
        name,
        Counter(point for _, point in met),
        committed,
        held.total(),
        lost=committed - held.keys(),
        doubled=frozenset(place for place, times in held.items() if times > 1),
        due_lost=touched if name == "at most once" else none,
        due_doubled=touched if name == "at least once" else none,
        windows=windows,
        check_results=tuple(check.evaluate(_evaluation(lake)) for check in CHECKS.values()),
    )


def _evaluation(lake: TopicLake) -> Evaluation:
    return Evaluation(
        lake.declaration,
        lake.ledger,
        Orchestration(),
        lambda: lake.settings,
        lambda: lake.cluster,
        lake.engine,
    )


# --- telling it -----------------------------------------------------------------------------------------------------


def _said(r: Result) -> str:
    failed = [f"`{v.check}`" for v in r.check_results if not v.passed]
    if not failed:
        return "all pass"
    missed = r.lost | r.doubled
    return f"{', '.join(failed)} {'fail' if len(failed) > 1 else 'fails'}, " + (
        f"naming these {len(missed):,} offsets and no others" if r.exact else "**and do not name just these offsets**"
    )


def leg(crashes: Schedule, results: Sequence[Result]) -> Leg:
    """Return the results as rows of the table and a section of the document."""
    rows = tuple(
        Row(_TOLD[r.loader], sum(r.crashes.values()), len(r.committed), r.rows, len(r.lost), len(r.doubled))
        for r in results
    )
    windows = results[0].windows.values()
    lines = [
        "## Kafka to the lake",
        "",
        f"A topic with {PARTITIONS} partitions is filled window by window with plain records and with committed and aborted",
        "transactions. Three loaders load each window after it is sealed, and crash according to the same schedule. A load",
        "that crashes is run again until it succeeds. A load that finds nothing to do counts as successful.",
        "",
        "Two of the loaders were written for this comparison (`platform_assets_tests/support/control_loaders.py`) and work",
        "like common sinks: they store a position and append rows. The third loader is that of the platform. All three use",
        "the same Kafka, Spark and Delta, and none of them can foresee a crash.",
        "",
        "*Lost* counts the records that a read_committed consumer reads from the topic but that are not in the table. *More",
        "than once* counts the records that are in several rows of the table. Both counts come from comparing the topic with",
        "the table, and equal what the crashes must have caused.",
        "",
        "| loader | results of the checks |",
        "|---|---|",
        *(f"| {_TOLD[r.loader]} | {_said(r)} |" for r in results),
        "",
        "### Crashes",
        "",
        "| window | offsets | crashed attempts |",
        "|--:|---|---|",
    ]
    for number, (points, ranges) in enumerate(zip(crashes, windows, strict=True), 1):
        offsets = ", ".join(f"{p}: {r}" for p, r in ranges.items())
        lines.append(f"| {number} | {offsets} | {', then '.join(points) or 'none'} |")
    for r in results:
        lines += ["", f"### {_TOLD[r.loader][0].upper()}{_TOLD[r.loader][1:]}", ""]
        if r.lost:
            lines += ["Lost:", "", *_by_window(r, r.lost), ""]
        if r.doubled:
            lines += ["More than once:", "", *_by_window(r, r.doubled), ""]
        lines += ["The checks:", ""]
        for v in r.check_results:
            lines.append(f"- `{v.check}` {_outcome(r, v)}")
    exact = all(r.exact for r in results)
    remark = "In the lake, the platform's checks name the lost and duplicate offsets and no others." if exact else ""
    return Leg(rows, remark, "\n".join(lines))


def _outcome(r: Result, v: CheckResult) -> str:
    if v.passed:
        return "passes"
    kinds = Counter(f.kind for f in v.findings)
    text = f"fails: {', '.join(f'{n} × {kind}' for kind, n in kinds.items())}"
    named = r.named(v.check, _LOST | _DOUBLED)
    return text + (f", {len(named):,} offsets named" if named else ", by window and partition")


def _by_window(r: Result, offsets: Offsets) -> list[str]:
    lines = []
    for number, ranges in enumerate(r.windows.values(), 1):
        named = []
        for partition, inside in ranges.items():
            parts = ranges_of(o for p, o in offsets if p == partition and o in inside)
            if parts:
                named.append(f"partition {partition} offsets " + ", ".join(map(str, parts)))
        if named:
            lines.append(f"- window {number}: {'; '.join(named)}")
    return lines
