"""Dagster's own daemon with the lake in an object store: without intervention, the daemon ticks and launches runs, and
the runs' checks pass."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from confluent_kafka import Producer
from dagster import DagsterEventType

from platform_assets.model.windows import milliseconds
from platform_assets_tests.object_store.conftest import SECRET
from platform_assets_tests.soak import proof
from platform_assets_tests.soak.embedded import Embedded
from platform_assets_tests.soak.live import create
from testbed.loads import Record, send

if TYPE_CHECKING:
    from testbed.object_store import ObjectStore

pytestmark = pytest.mark.cluster

TOPIC = "orders"
MINUTES = 3
RECORDS = 900


@pytest.mark.timeout(1800)
def test_windows_are_sealed_loaded_and_checked_with_nobody_at_it(store: ObjectStore, tmp_path: Path) -> None:
    platform = Embedded(
        tmp_path / "platform",
        store.bucket / tmp_path.name / "lake",
        given=store.environment(),
        address=f"{store.root(tmp_path.name)}/lake",
    )
    start = (datetime.now(UTC) - timedelta(minutes=MINUTES)).replace(second=0, microsecond=0)
    platform.declare(TOPIC, start, "columnar", sensor_interval_seconds=1)
    with platform.running(("kafka", "spark")):
        create(platform.bootstrap, TOPIC, 2)
        producer = Producer({"bootstrap.servers": platform.bootstrap, "linger.ms": 5, "log_level": 2})
        moments = [milliseconds(start) + i * MINUTES * 60_000 // RECORDS for i in range(RECORDS)]
        send(producer, TOPIC, (Record(b"%d" % i, None, i % 2, timestamp=at) for i, at in enumerate(moments)))
        platform.start("dagster-daemon")
        proof.healed(platform, [TOPIC], 1200)

        assert sorted(int(row.value) for row in proof.rows(platform, TOPIC)) == list(range(RECORDS))
        with platform.instance() as instance:
            runs = instance.get_runs()
            assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
            logs = [
                log for run in runs for log in instance.all_logs(run.run_id, DagsterEventType.ASSET_CHECK_EVALUATION)
            ]
        check_results = [log.get_dagster_event().asset_check_evaluation_data for log in logs]
        assert {v.check_name for v in check_results} >= {"no_gaps", "no_duplicates", "every_offset_accounted_for"}
        assert all(v.passed for v in check_results)
        status = platform.command("status")
        assert status.code == 0, status.text
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == [], "nor in Dagster's store and logs"
