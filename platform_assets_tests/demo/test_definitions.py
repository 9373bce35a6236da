"""The demo's YAML: it declares three topics, whose start comes from the environment and has a default."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from platform_assets.components.declared import declarations
from platform_assets.demo.dataset import SOURCES
from platform_assets.demo.state import START_VARIABLE, start_setting
from platform_assets.demo.topic_log import PARTITIONS

# Dagster 1.13 itself calls the function that pydantic deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")


def test_the_three_topics_have_windows_of_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(START_VARIABLE, raising=False)
    declared = declarations()
    assert set(SOURCES) == set(PARTITIONS) <= set(declared)
    assert {declared[topic].schedule for topic in SOURCES} == {"* * * * *"}
    # The default is a fixed date in the past, the same for all topics.
    (start,) = {declared[topic].first_edge for topic in SOURCES}
    assert start.tzinfo is UTC
    assert start == declarations()["flights"].first_edge < datetime.now(UTC)


def test_the_start_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_VARIABLE, start_setting(datetime(2026, 3, 1, 12, 34, 56, tzinfo=UTC)))
    declared = declarations()
    assert {declared[topic].first_edge for topic in SOURCES} == {datetime(2026, 3, 1, 12, 3, tzinfo=UTC)}
