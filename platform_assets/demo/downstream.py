"""Tables and a topic that the demo makes from its tables: the current row of each plane, derived tables, and a topic with
the planes. Each is compared with what pandas or plain Python computes from the source files."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any, Final

from platform_assets.demo.comparison import Comparison, rows_compared
from platform_assets.demo.dataset import SOURCES, TopicName
from platform_assets.demo.topic_log import PUBLISHED, records, whole_log
from platform_assets.demo.typed_proof import frame_of
from platform_assets.demo.waiting import LOOK_SECONDS
from platform_assets.errors import ConfigurationError, PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import datasets
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.derived import DerivedRef
from platform_assets.model.tables import StateRef

if TYPE_CHECKING:
    import dagster as dg

    from platform_assets.orchestration.health import CheckStatus

DERIVED: Final = ("delays_by_day", "plane_destinations", "similar_destinations")
STATE: Final[TopicName] = "planes"
PUBLISHED_COLUMNS: Final = ("tailnum", "manufacturer", "model", "seats")
MOST_SIMILAR: Final = 5
_SHOWN: Final = "SFO"


@dataclass(frozen=True, slots=True)
class View:
    """A table or topic that is made from the demo's tables.

    Attributes:
        name: its name.
        missing: what it lacks; empty if nothing.
        checks: the last result of each of its checks.
        problems: what keeps it from being made, and failed checks.
    """

    name: str
    missing: str
    checks: tuple[CheckStatus, ...]
    problems: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """True if it lacks nothing and every check has a result."""
        return not self.missing and all(check.passed is not None for check in self.checks)

    @property
    def faults(self) -> tuple[str, ...]:
        """Return a sentence for each thing that is wrong."""
        failed = (f"check {c.name} failed: {c.headline}" for c in self.checks if c.failed)
        late = (self.missing,) if self.missing else ()
        return (*late, *self.problems, *failed)


def look(ledger: Ledger, cluster: Cluster, instance: dg.DagsterInstance) -> list[View]:
    """Return the current view of each. Raises PlatformError."""
    from platform_assets.components import declared
    from platform_assets.orchestration import derived_status, health, published, state_status

    topics = declared.declarations()
    wanted = [d for ref, d in declared.derived_tables().items() if ref.short in DERIVED]
    views = [
        View(each.table, _lacking(each), each.checks, (*([each.error] if each.error else ()), *each.problems))
        for each in derived_status.collect(wanted, topics.values(), ledger.lake, instance, health.sensors(instance))
    ]
    planes = topics[STATE]
    if planes.state is None:
        raise ConfigurationError(f"topic {STATE} has no `state` in its YAML")
    state = state_status.collect(planes, planes.state, ledger, instance)
    pending = f"{state.pending_windows} windows are not in it" if state.pending_windows or state.through is None else ""
    views.append(View(state.table, pending, state.checks, state.problems))
    topic = declared.published()[PUBLISHED]
    behind = published.publisher_of(topic, ledger, cluster).plan().behind
    checks = health.latest_checks(instance, [published.check_key(topic)])
    views.append(View(topic.name, f"{behind} windows are not published" if behind else "", checks, ()))
    return views


def _lacking(each: Any) -> str:
    if each.committed_at is None:
        return "not computed yet"
    behind = [i.table for i in each.inputs if i.is_behind]
    return f"behind {', '.join(behind)}" if behind else ""


class MissingResultsError(PlatformError):
    """Tables or topics that are made from the demo's tables are not complete, and there has been no progress for a
    while."""


def follow(
    look: Callable[[], Sequence[View]],
    *,
    alive: Callable[[], None],
    report: Callable[[str], None],
    patience: float,
) -> Sequence[View]:
    """Wait until everything is made and checked; return the last views.

    Args:
        look: returns all views.
        alive: raises if a service has died.
        report: shows what is missing, whenever that changes.
        patience: seconds without any change after which the wait ends.

    Raises:
        MissingResultsError: nothing changed for `patience` seconds.
    """
    before: tuple[object, ...] = ()
    moved = time.monotonic()
    while True:
        views = look()
        if all(view.is_done for view in views):
            return views
        now = tuple((view.missing, tuple(c.at for c in view.checks)) for view in views)
        late = [view for view in views if not view.is_done]
        waiting = "; ".join(", ".join([f"{v.name}: {v.missing or 'not checked yet'}", *v.problems]) for v in late)
        if now != before:
            before, moved = now, time.monotonic()
            report(waiting)
        alive()
        if time.monotonic() - moved > patience:
            raise MissingResultsError(
                f"no progress for {patience:g} s. {waiting}. `platform-assets status` says why. Run the demo again to continue."
            )
        threading.Event().wait(LOOK_SECONDS)


def compared(lake: Lake, client: ClientSettings, cluster: Cluster) -> Iterator[Comparison]:
    """Compare each table and the topic with the source files. Raises PlatformError."""
    flights, planes = frame_of(SOURCES["flights"]), frame_of(SOURCES["planes"])
    yield _delays(lake, flights)
    yield _visits(lake, flights)
    yield _similar(lake, flights)
    yield _state(lake, planes)
    yield _published(client, cluster, planes)


def _rows(lake: Lake, table: DerivedRef | StateRef, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    found = datasets.of(lake.table(table).delta()).to_table(list(columns))
    return list(zip(*(found[c].to_pylist() for c in columns), strict=True))


def _delays(lake: Lake, flights: Any) -> Comparison:
    import pandas as pd

    table = DerivedRef("delays_by_day")
    rows = _rows(lake, table, ("day", "carrier", "flights", "departed", "minutes_late"))
    day = pd.to_datetime(flights["time_hour"], utc=True).dt.date
    delays = flights["dep_delay"].groupby([day, flights["carrier"]])
    totals = (None if pd.isna(total) else int(total) for total in delays.sum(min_count=1))
    expected = zip(*zip(*delays.size().index, strict=True), delays.size(), delays.count(), totals, strict=True)
    return rows_compared(table.name, rows, expected, f"{len(flights):,} flights")


def _visits(lake: Lake, flights: Any) -> Comparison:
    table = DerivedRef("plane_destinations")
    rows = _rows(lake, table, ("tailnum", "destination", "flights"))
    visits = flights.dropna(subset="tailnum").groupby(["tailnum", "dest"]).size()
    return rows_compared(table.name, rows, ((*pair, int(number)) for pair, number in visits.items()))


def _similar(lake: Lake, flights: Any) -> Comparison:
    table = DerivedRef("similar_destinations")
    rows = _rows(lake, table, ("destination", "rank", "similar", "planes"))
    visited = defaultdict(set)
    for tailnum, destination in flights.dropna(subset="tailnum")[["tailnum", "dest"]].itertuples(index=False):
        visited[tailnum].add(destination)
    pairs = Counter(pair for destinations in visited.values() for pair in permutations(destinations, 2))
    ranked = defaultdict(list)
    for (destination, similar), planes in pairs.items():
        ranked[destination].append((-planes, similar))
    expected = [
        (destination, rank, similar, -planes)
        for destination, found in ranked.items()
        for rank, (planes, similar) in enumerate(sorted(found)[:MOST_SIMILAR], 1)
    ]
    named = ", ".join(similar for _, similar in sorted(ranked[_SHOWN])[:MOST_SIMILAR])
    return rows_compared(table.name, rows, expected, f"similar to {_SHOWN} are {named}")


def _state(lake: Lake, planes: Any) -> Comparison:
    columns = tuple(SOURCES[STATE].columns)
    table = StateRef("state", STATE)
    return rows_compared(table.name, _rows(lake, table, columns), _plain(planes, columns))


def _published(client: ClientSettings, cluster: Cluster, planes: Any) -> Comparison:
    read = records(client, PUBLISHED, whole_log(cluster, PUBLISHED))
    values = (
        ((key or b"").decode(), *(json.loads(value or b"{}").get(c) for c in PUBLISHED_COLUMNS)) for key, value in read
    )
    expected = ((row[0], *row) for row in _plain(planes, PUBLISHED_COLUMNS))
    return rows_compared(f"topic {PUBLISHED}", values, expected)


def _plain(frame: Any, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a frame; a missing value is None, and a whole number is an integer."""
    kinds = [SOURCES[STATE].columns[name] for name in columns]
    for row in frame[list(columns)].itertuples(index=False):
        yield tuple(
            None if value != value else int(value) if kind == "int" else value
            for value, kind in zip(row, kinds, strict=True)
        )
