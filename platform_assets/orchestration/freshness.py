"""The freshness policy of raw tables, which Dagster's daemon evaluates whether or not a sensor ticks."""

from __future__ import annotations

from datetime import timedelta

import dagster as dg

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import longest_window


def freshness(declaration: TopicDeclaration) -> dg.FreshnessPolicy:
    """Return Dagster's freshness policy for a raw table. It measures the time since the last load of any window.

    Each window leads to a load, even an empty window. If there is no load for the length of two windows, Dagster warns;
    after three, it reports a failure.
    """
    longest = longest_window(declaration.schedule, declaration.first_edge)
    late = max(3 * declaration.sensor_interval, timedelta(minutes=2))
    return dg.FreshnessPolicy.time_window(fail_window=3 * longest + late, warn_window=2 * longest + late)
