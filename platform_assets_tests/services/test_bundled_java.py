"""A machine without Java: both engines use the Java that is bundled in a Python package."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from platform_assets.engines.shared.session import end
from platform_assets.services import platform, state
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.java import find_java
from platform_assets.services.platform import UpOptions
from platform_assets.services.spark_server import SparkSettings
from platform_assets_tests.support import services
from testbed.homes import home_at, service_environment

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


def test_up_without_any_java_heals_a_killed_engine_and_goes_down_whole(tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    home = home_at(tmp_path / "no java here")
    environ = {name: value for name, value in service_environment().items() if name != "JAVA_HOME"}
    environ["PATH"] = str(tmp_path)
    bundled = find_java(environ)
    assert bundled.bundled
    options = UpOptions(services=("kafka", "spark"), broker=BrokerSettings(heap="384m"), spark=SparkSettings(heap="1g"))
    said: list[str] = []
    try:
        platform.up(home, options, report=said.append, environ=environ)
        first = state.read_records(home)
        for record in first.values():
            assert psutil.Process(record.pid).exe() == str(bundled.executable.resolve())

        before = platform.environment(home, environ={})
        services.kill(first["spark"])
        said.clear()
        platform.up(home, options, report=said.append, environ=environ)
        assert any(line.startswith("kafka: already running") for line in said)
        assert state.read_records(home)["kafka"] == first["kafka"]
        # Address and token stay, so existing clients continue to work.
        assert platform.environment(home, environ={}) == before

        session = SparkSession.builder.remote(before["SPARK_REMOTE"]).create()
        try:
            session.range(100).write.format("delta").save(before["LAKE_ROOT"] + "/numbers")
            assert session.read.format("delta").load(before["LAKE_ROOT"] + "/numbers").count() == 100
        finally:
            end(session)
        records = state.read_records(home)
    finally:
        platform.down(home, report=said.append)
    assert [pid for record in records.values() for pid in services.marked(record)] == []
    assert services.naming(home.root) == []
