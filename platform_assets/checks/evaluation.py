"""Input of a check: the facts of the table, and the services that the check may call."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from platform_assets.checks import facts as facts_of
from platform_assets.checks.baseline.older import Counting
from platform_assets.checks.facts import Facts, Orchestration
from platform_assets.engines.protocol import LoadEngine
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import EngineName, TopicDeclaration
from platform_assets.model.windows import Span


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of checks of one raw table. Brokers and Spark are used only for open windows.

    `budget` limits, in seconds, the time for using brokers and Spark. Windows that are still open after that time are
    reported as open and evaluated next time. A deep audit is limited to the windows with the keys `windows`, and every
    check is limited to `span`; None means all windows. Older windows are only counted if each check in `counting`
    allows it. If `counting` is empty, every window is evaluated. If `reads` is false, files that changed since their
    load are only listed. `engine_by_name` returns an engine by name, so that the other engine can read loaded windows
    again; it is None if Kafka must not be read.
    """

    declaration: TopicDeclaration
    ledger: Ledger
    orchestration: Orchestration
    settings: Callable[[], ClientSettings]
    cluster: Callable[[], Cluster]
    engine: LoadEngine
    budget: float = 120.0
    windows: frozenset[str] | None = None
    span: Span | None = None
    counting: Collection[Counting] = ()
    reads: bool = True
    engine_by_name: Callable[[EngineName], LoadEngine] | None = None
    progress: Callable[[str], None] = lambda text: None
    began: float = field(default_factory=time.monotonic)
    _collected: list[Facts] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def lake(self) -> Lake:
        """The lake that contains the table and its ledger."""
        return self.ledger.lake

    @property
    def table(self) -> Folder:
        """The folder of the raw table."""
        return self.lake.table(self.declaration.raw_table)

    @property
    def deadline(self) -> float:
        """Deadline, as a value of `time.monotonic`."""
        return self.began + self.budget

    def facts(self, *, fresh: bool = False) -> Facts:
        """Return the facts for all checks of this evaluation. With `fresh`, gather the facts again; use this after
        writes."""
        if self._collected and not fresh:
            return self._collected[0]
        facts = facts_of.collect(
            self.declaration.raw_table, self.ledger, self.orchestration, counting=self.counting, reads=self.reads
        )
        self._collected[:] = [facts if self.span is None else facts.within(self.span)]
        return self._collected[0]
