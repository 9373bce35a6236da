"""What Dagster has on record of runs, asked once for many tables: a tick of a thousand topics asks it as often as one of a few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

import dagster as dg

from platform_assets.model.tables import TableRef
from platform_assets.orchestration import runs
from platform_assets.orchestration.names import run_tag
from platform_assets.orchestration.retries import Named

_EARLIER: Final = timedelta(hours=1)
"""How much further back is looked than was asked: the next table may be somewhat behind this one."""


class RunLog:
    """What `instance` has on record of runs that concern many tables, asked once: for who looks at one table after the other.

    Of runs that load windows of one table alone it knows where that is one of `tables`.
    """

    def __init__(self, instance: dg.DagsterInstance, tables: Iterable[TableRef] = ()) -> None:
        self._instance = instance
        self._tables = frozenset(run_tag(table) for table in tables)
        self._failed: list[dg.RunRecord] = []
        self._own: dict[str, list[dg.RunRecord]] | None = {}
        self._since: datetime | None = None
        self._lately: tuple[datetime, _FailedLately | None] | None = None

    @cached_property
    def under_way(self) -> Sequence[dg.DagsterRun]:
        """Queued and running runs."""
        return runs.under_way(self._instance)

    def failed(self, table: TableRef, since: datetime) -> Sequence[dg.RunRecord]:
        """Runs that were to load windows of `table`, alone or among others, began after `since` or somewhat earlier, and failed.

        Newest first, the newest 500 of either kind.
        """
        if self._since is None or since < self._since:
            # Topics differ in where they are: who looks at the next one is not to ask again for some minutes.
            self._since = since - _EARLIER
            self._failed = list(runs.newest_failed(self._instance, [run_tag(None)], self._since))
            self._own = self._own_failed(self._since)
        if self._own is None or run_tag(table) not in self._tables:
            return [*runs.newest_failed(self._instance, [run_tag(table)], since), *self._failed]
        return [*self._own.get(run_tag(table), ()), *self._failed]

    def _own_failed(self, since: datetime) -> dict[str, list[dg.RunRecord]] | None:
        """By table; None where there are more than are asked for at once, so that each table is to be asked of by itself."""
        if not self._tables:
            return {}
        found = runs.newest_failed(self._instance, sorted(self._tables), since)
        if len(found) == runs.NEWEST_FAILURES:
            return None
        by_table: dict[str, list[dg.RunRecord]] = {}
        for record in found:
            by_table.setdefault(record.dagster_run.tags[runs.TABLE_TAG], []).append(record)
        return by_table

    def failed_since(self, table: TableRef, since: datetime) -> dict[str, Named]:
        """What `runs.failed_since` gives of `table`; the same `since` is to be asked for all tables."""
        if self._lately is None or self._lately[0] != since:
            found = runs.newest_failed_since(self._instance, [*sorted(self._tables), run_tag(None)], since)
            # Of more than are asked for at once, those of one table may be missing.
            self._lately = (since, _FailedLately.of(found) if len(found) < runs.NEWEST_FAILURES else None)
        lately = self._lately[1]
        if lately is None or run_tag(table) not in self._tables:
            return runs.failed_since(self._instance, table, since)
        return lately.of_table(table)


@dataclass(frozen=True, slots=True)
class _FailedLately:
    """Failed runs of the last days: those of single tables, by table, and the windows that runs of many have named, by topic."""

    own: Mapping[str, Sequence[dg.DagsterRun]]
    among_many: Mapping[str, Mapping[str, Named]]

    @classmethod
    def of(cls, found: Iterable[dg.DagsterRun]) -> _FailedLately:
        own: dict[str, list[dg.DagsterRun]] = {}
        among_many: dict[str, dict[str, Named]] = {}
        for run in found:
            if run.tags[runs.TABLE_TAG] != run_tag(None):
                own.setdefault(run.tags[runs.TABLE_TAG], []).append(run)
                continue
            for topic in runs.topics_of_many(run):
                if (named := runs.named_in(run, topic)).first:
                    among_many.setdefault(topic, {})[run.run_id] = named
        return cls(own, among_many)

    def of_table(self, table: TableRef) -> dict[str, Named]:
        own = {r.run_id: n for r in self.own.get(run_tag(table), ()) if (n := runs.named_in(r, table.topic)).first}
        return {**own, **self.among_many.get(table.topic, {})}
