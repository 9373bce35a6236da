"""Dagster's daemon for a topic group, in this process. It evaluates ticks, and executes the runs that the ticks
request."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import dagster as dg

from platform_assets.orchestration import definitions as definitions_of
from platform_assets.orchestration.definitions import DeepAudit
from platform_assets.orchestration.tick import Group, Tick
from testbed.loads import TopicLake
from testbed.project import definitions


@dataclass
class TopicGroup:
    """A group of the topics of `lakes`. The topics share one lake."""

    lakes: list[TopicLake]
    instance: dg.DagsterInstance
    remote: str
    name: str = "small"
    cursor: str | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    results: list[dg.ExecuteInProcessResult] = field(default_factory=list)

    @property
    def group(self) -> Group:
        return Group(self.name, tuple(lk.declaration for lk in self.lakes))

    def definitions(self) -> dg.Definitions:
        """Return the definitions that `TopicTables` builds."""
        first = self.lakes[0]
        each = [definitions(lk.declaration, first.bootstrap, first.root, self.remote) for lk in self.lakes]
        made = dg.Definitions(
            assets=[a for d in each for a in d.assets or ()],
            asset_checks=[c for d in each for c in d.asset_checks or ()],
            jobs=[j for d in each for j in d.jobs or ()],
            resources=each[0].resources,
            executor=dg.in_process_executor,
        )
        audits = {lk.topic: DeepAudit(running=False) for lk in self.lakes}
        shared = definitions_of.build_group(self.group, running=False, jobs=list(made.jobs or ()), audits=audits)
        return dg.Definitions.merge(made, shared)

    def tick(self) -> list[dg.RunRequest]:
        """Evaluate one tick, store its reports, and return the runs that it requests."""
        first = self.lakes[0]
        result = Tick(self.group, first.cluster, first.ledger, self.instance, self.now).evaluate(self.cursor)
        for event in result.asset_events:
            assert not isinstance(event, dg.AssetObservation)
            self.instance.report_runless_asset_event(event)
        self.cursor = result.cursor
        return list(result.run_requests or [])

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """Execute a run that a tick requested, in the same way as Dagster."""
        assert request.run_key
        assert request.job_name
        known = self.instance.get_runs(dg.RunsFilter(tags={"dagster/run_key": request.run_key}))
        assert not known, "Dagster would start no run for this key"
        self.results.append(
            self.definitions()
            .resolve_job_def(request.job_name)
            .execute_in_process(
                request.run_config,
                instance=self.instance,
                tags={**request.tags, "dagster/run_key": request.run_key},
                raise_on_error=False,
            )
        )
        return self.results[-1]
