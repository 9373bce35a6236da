"""Dagster's daemon for one topic, in this process. Tests choose the times of its ticks, and it executes the runs that
the ticks request."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import dagster as dg

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.tick import Group
from testbed.loads import TopicLake
from testbed.project import definitions
from testbed.ticks import PlanningTick


@dataclass
class Daemon:
    """Dagster's daemon for one topic. It evaluates ticks, and executes the requested runs one after the other."""

    lake: TopicLake
    instance: dg.DagsterInstance
    remote: str
    declaration: TopicDeclaration
    cursor: str | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    results: list[dg.ExecuteInProcessResult] = field(default_factory=list)

    def tick(self) -> int:
        """Evaluate one tick and execute its runs. Return the number of runs."""
        lk = self.lake
        result = PlanningTick(Group.of(self.declaration), lk.cluster, lk.ledger, self.instance, self.now).evaluate(
            self.cursor
        )
        for event in result.asset_events:
            assert not isinstance(event, dg.AssetObservation)
            self.instance.report_runless_asset_event(event)
        found = definitions(self.declaration, lk.bootstrap, lk.root, self.remote)
        for request in result.run_requests or []:
            assert request.run_key
            assert request.job_name
            known = self.instance.get_runs(dg.RunsFilter(tags={"dagster/run_key": request.run_key}))
            assert not known, "Dagster would start no run for this key"
            tags = {**request.tags, "dagster/run_key": request.run_key}
            job = found.resolve_job_def(request.job_name)
            if self.declaration.state is not None:
                # A fold's run may have checks alone, and no load has a deep audit.
                checks = frozenset(request.asset_check_keys or ())
                job = job.get_subset(
                    asset_selection=frozenset(request.asset_selection or ()), asset_check_selection=checks
                )
            # All of a load job's assets where its raw table is one of those that are requested.
            whole = table_key(self.declaration.raw_table) in (request.asset_selection or [])
            self.results.append(
                job.execute_in_process(
                    request.run_config,
                    instance=self.instance,
                    partition_key=request.partition_key,
                    tags=tags,
                    raise_on_error=False,
                    asset_selection=None if whole or self.declaration.state is not None else request.asset_selection,
                )
            )
        self.cursor = result.cursor
        return len(result.run_requests or [])

    def ticks(self, until: timedelta) -> int:
        """Evaluate ticks at the sensor's interval for a duration. Return the number of runs."""
        end, number = self.now + until, 0
        while self.now < end:
            self.now += self.declaration.sensor_interval
            number += self.tick()
        return number

    @property
    def loaded(self) -> set[str]:
        return set(self.lake.ledger.receipts(self.declaration.raw_table))

    @property
    def sealed(self) -> set[str]:
        return {w.key for w in self.lake.ledger.windows(self.lake.topic)}

    def newest_succeeded(self) -> bool:
        """Return True if the newest run succeeded."""
        return self.results[-1].success

    def check_results(self) -> dict[str, bool]:
        """Return the check results of the newest run."""
        return {e.check_name: e.passed for e in self.results[-1].get_asset_check_evaluations()}
