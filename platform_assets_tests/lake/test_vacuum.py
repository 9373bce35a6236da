"""VACUUM deletes old files that no table version lists, and leaves every row of the table in place."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.lake import data_files, raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Folder, Lake, load_folder
from platform_assets.lake.vacuum import vacuum
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from platform_assets.orchestration.maintenance import jobs
from platform_assets.orchestration.resources import LakeResource, SparkResource
from testbed.samples import edge, rows, sealed

TABLE = TableRef.raw("orders")
WINDOW = sealed("orders", key_of(edge(1)), p0=(0, 10))
DAY = 86_400.0


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return the lake of a table with one window that was loaded twice. The table also has files of two failed loads,
    one recent and one long past."""
    made = Lake.at(tmp_path / "a lake")
    folder = made.table(TABLE)
    raw_table.create(folder, TABLE.topic)
    for load_id in ("first", "second"):
        written(folder, load_id)
        metadata = LoadMetadata(WINDOW.topic, WINDOW.topic_id, 1, WINDOW.window, WINDOW.ranges, load_id, "r")
        files = data_files.written_files(folder, load_folder(WINDOW.key, load_id))
        WindowCommit(made, TABLE).replace(metadata, files)
    written(folder, "died-lately")
    written(folder, "died-long-ago")
    age(folder, "died-long-ago", 8 * DAY)
    return made


def written(folder: Folder, load_id: str) -> None:
    below = folder / load_folder(WINDOW.key, load_id)
    below.make()
    pq.write_table(rows(WINDOW.key, {0: range(10)}), below.path / "part-0.parquet")


def age(folder: Folder, load_id: str, seconds: float) -> None:
    for path in (folder / load_folder(WINDOW.key, load_id)).path.iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


def loads_with_files(lake: Lake) -> set[str]:
    return {p.parent.name for p in lake.table(TABLE).path.rglob("*.parquet") if "_delta_log" not in p.parts}


def test_files_of_a_dead_load_go_once_they_are_older_than_the_retention(lake: Lake) -> None:
    folder = lake.table(TABLE)
    would = vacuum(TABLE, folder, dry_run=True)
    assert loads_with_files(lake) == {"first", "second", "died-lately", "died-long-ago"}
    done = vacuum(TABLE, folder)
    assert done == would
    assert [path.split("/")[1] for path in done.files] == ["died-long-ago"]
    assert done.bytes > 0
    assert loads_with_files(lake) == {"first", "second", "died-lately"}
    assert folder.delta().to_pyarrow_table().num_rows == 10
    assert vacuum(TABLE, folder).files == ()


def test_less_than_the_retention_is_refused_and_changes_nothing(lake: Lake) -> None:
    with pytest.raises(ConfigurationError, match=r"raw/orders .* 2 hours: .*168"):
        vacuum(TABLE, lake.table(TABLE), retain_hours=2)
    assert loads_with_files(lake) == {"first", "second", "died-lately", "died-long-ago"}


def test_more_than_the_retention_keeps_what_the_retention_would_not(lake: Lake) -> None:
    assert vacuum(TABLE, lake.table(TABLE), retain_hours=9 * 24).files == ()


def run(lake: Lake, **config: object) -> dg.ExecuteInProcessResult:
    resources = dg.Definitions(
        resources={"lake": LakeResource(root=str(lake)), "spark": SparkResource(remote="sc://localhost:1")}
    )
    job = dg.Definitions.merge(jobs.definitions(), resources).resolve_job_def("vacuum_tables")
    wanted = {"ops": {"vacuum_each_table": {"config": config}}}
    return job.execute_in_process(run_config=wanted, raise_on_error=False)


def test_job_does_all_tables_of_the_lake(lake: Lake) -> None:
    assert lake.tables() == [TABLE]
    assert run(lake, dry_run=True).success
    assert "died-long-ago" in loads_with_files(lake)
    assert run(lake).success
    assert "died-long-ago" not in loads_with_files(lake)


def test_job_refuses_a_table_that_the_lake_has_not(lake: Lake) -> None:
    result = run(lake, tables=["raw/ordres"])
    assert not result.success
    (event,) = result.get_step_failure_events()
    assert "no table raw/ordres; its tables are: raw/orders" in str(event.step_failure_data.user_failure_data)
    assert "died-long-ago" in loads_with_files(lake)


def test_one_table_that_fails_holds_up_no_other(lake: Lake) -> None:
    """`raw/broken` comes first; the run reports the failure at its end."""
    raw_table.create(lake.table(TableRef.raw("broken")), "broken")
    (lake.table(TableRef.raw("broken")).path / "_delta_log" / f"{0:020}.json").write_text("no JSON")
    result = run(lake)
    assert not result.success
    (event,) = result.get_step_failure_events()
    assert "1 table could not be cleaned up: raw/broken" in str(event.step_failure_data.user_failure_data)
    assert "died-long-ago" not in loads_with_files(lake)
