"""Ticks of a sensor for tests and benchmarks."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from platform_assets.errors import PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration.dagster_records import RunLog
from platform_assets.orchestration.tick import Tick
from platform_assets.orchestration.topic_tick import TopicTickResult


class PlanningTick(Tick):
    """A tick that only seals windows, reports them and requests runs."""

    @override
    def _age_paused(self, until: float) -> None:
        pass

    @override
    def _age(self, d: TopicDeclaration, cluster: Cluster | str) -> None:
        pass

    @override
    def _observe(self, d: TopicDeclaration, error: PlatformError | None) -> None:
        pass

    @override
    def _more(self, d: TopicDeclaration, result: TopicTickResult, records: RunLog) -> list[Any]:
        return []
