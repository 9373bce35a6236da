"""A project with one topic: as files, like the files of a user, and as definitions in this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from testbed.loads import TopicLake

_DEFINITIONS = '''\
"""All that Dagster loads: what `defs/` declares, and the platform's resources."""

from pathlib import Path

import dagster as dg

from platform_assets.orchestration.resources import (KafkaResource, LakeResource, SparkResource)


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


def declare(defs: Path, lake: TopicLake, **attributes: float) -> None:
    """Write the topic's YAML into a folder of declarations, with these attributes in addition to the topic's window."""
    domain = defs / "sales"
    domain.mkdir(parents=True)
    d = lake.declaration
    declared = _TOPIC.format(topic=d.topic, schedule=d.schedule, start=d.start.isoformat())
    (domain / "defs.yaml").write_text(declared + "".join(f"  {n}: {json.dumps(v)}\n" for n, v in attributes.items()))


def write_project(folder: Path, lake: TopicLake, **attributes: float) -> Path:
    """Write the project's files, with these attributes in addition to the window. Return the project's workspace
    file."""
    declare(folder / "shop" / "defs", lake, **attributes)
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "definitions.py").write_text(_DEFINITIONS)
    (folder / "pyproject.toml").write_text(_PROJECT)
    workspace = folder / "workspace.yaml"
    workspace.write_text(
        "load_from:\n  - python_module:\n      module_name: shop.definitions\n"
        "      working_directory: .\n      location_name: shop\n"
    )
    return workspace


def definitions(
    declaration: TopicDeclaration,
    bootstrap: str,
    root: Path,
    remote: str,
    downstream: Sequence[dg.AssetsDefinition] = (),
    timeout_seconds: float = 10,
) -> dg.Definitions:
    """Return the definitions that a code location has for one topic, and the `downstream` assets."""
    return dg.Definitions.merge(
        build_definitions(
            declaration,
            group="tests",
            description=None,
            owners=(),
            sensor_running=False,
            deep_audit=DeepAudit(running=False),
        ),
        dg.Definitions(
            assets=list(downstream),
            resources={
                "kafka": KafkaResource(bootstrap_servers=bootstrap, timeout_seconds=timeout_seconds),
                "lake": LakeResource(root=str(root)),
                "spark": SparkResource(remote=remote),
            },
        ),
    )
