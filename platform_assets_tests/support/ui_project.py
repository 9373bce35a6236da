"""A project of one topic, as a user of the platform would write it, with Dagster's UI and daemon on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from infra import platform
from infra.home import Home
from infra.platform import UpOptions
from platform_assets_tests.conftest import home_at, service_environment
from platform_assets_tests.support.loads import TopicLake

_DEFINITIONS = '''\
"""All that Dagster loads: what `defs/` declares, and the platform's resources."""

from pathlib import Path

import dagster as dg

from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource


@dg.definitions
def defs():
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
        dg.Definitions(
            resources={
                "kafka": KafkaResource(bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS")),
                "lake": LakeResource(root=dg.EnvVar("LAKE_ROOT")),
                "spark": SparkResource(remote=dg.EnvVar("SPARK_REMOTE")),
            },
            executor=dg.in_process_executor,
        ),
    )
'''

_TOPIC = """\
type: platform_assets.components.TopicTable
attributes:
  topic: {topic}
  window: "{schedule}"
  start: "{start}"
"""

_PROJECT = """\
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
code_location_name = "shop"
registry_modules = ["platform_assets.components"]
"""


def write_project(folder: Path, lake: TopicLake, **attributes: float) -> Path:
    """Write the project's files, with these attributes of the topic besides its window; gives its workspace file."""
    defs = folder / "shop" / "defs" / "sales"
    defs.mkdir(parents=True)
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "definitions.py").write_text(_DEFINITIONS)
    d = lake.declaration
    declared = _TOPIC.format(topic=d.topic, schedule=d.schedule, start=d.start.isoformat())
    (defs / "defs.yaml").write_text(declared + "".join(f"  {n}: {json.dumps(v)}\n" for n, v in attributes.items()))
    (folder / "pyproject.toml").write_text(_PROJECT)
    workspace = folder / "workspace.yaml"
    workspace.write_text(
        "load_from:\n  - python_module:\n      module_name: shop.definitions\n"
        "      working_directory: .\n      location_name: shop\n"
    )
    return workspace


@contextmanager
def user_interface(folder: Path, lake: TopicLake, remote: str) -> Iterator[str]:
    """The address of the UI on that project; runs that are asked for there are started by the daemon."""
    home: Home = home_at(folder / "home")
    options = UpOptions(workspace=write_project(folder, lake, sensor_running=False))
    environ: Mapping[str, str] = {
        **service_environment(),
        "KAFKA_BOOTSTRAP_SERVERS": lake.bootstrap,
        "SPARK_REMOTE": remote,
        "LAKE_ROOT": str(lake.root),
    }
    try:
        platform.start_service("dagster-daemon", home, options, environ=environ)
        yield platform.start_service("dagster-webserver", home, options, environ=environ).address
    finally:
        platform.down(home)
