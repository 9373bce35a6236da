"""`platform-assets init`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import click

from platform_assets.errors import ConfigurationError
from platform_assets.terminal import echo, echo_lines

_EXAMPLE: Final = """\
# Rename this file to defs.yaml, and describe your topic. `platform-assets check` verifies it.
# type: platform_assets.components.TopicTable
# attributes:
#   topic: orders
#   window: "0 * * * *"          # hourly, UTC
#   start: "2026-01-01T00:00Z"   # older records are in the first window
"""

_WORKSPACE: Final = """\
# Tells Dagster what to load. `platform-assets up` and `dagster dev -w workspace.yaml` read this file.
load_from:
  - python_module:
      module_name: platform_assets.definitions
      location_name: platform_assets
"""

_ENVIRONMENT: Final = """\
# Copy this file to .env. If you run `platform-assets` or `dagster` here, they read .env. Variables of the shell take
# precedence.
# If a service's variable is unset, `platform-assets up` starts that service on this machine.
# KAFKA_BOOTSTRAP_SERVERS=broker.example:9092
# KAFKA_SECURITY_PROTOCOL=SASL_SSL
# SPARK_REMOTE='sc://spark.example:15002/;token=…'
# DAGSTER_HOME=/srv/dagster
# LAKE_ROOT=/srv/lake
"""

_README: Final = """\
# Topics in the lake

Each folder under `defs/` has a `defs.yaml` that declares topics. Start from the example `defs/orders/defs.yaml.example`.
Commands that you run in this folder apply to this project. Services keep their data in `.platform`. To use your own services,
see `.env.example`.

    mv defs/orders/defs.yaml.example defs/orders/defs.yaml   # remove each leading "# ", and name your topic
    platform-assets check
    platform-assets up
    platform-assets status
"""

_IGNORED: Final = ".env\n.platform/\n"


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def init(folder: Path) -> None:
    """Create a project in DIR: a folder for your declarations.

    It contains defs/ with a commented example, workspace.yaml, .env.example, README.md and .gitignore. Existing files
    are not changed. Commands that you run in DIR apply to this project.
    """
    root = folder.expanduser().absolute()
    files = {
        "defs/orders/defs.yaml.example": _EXAMPLE,
        "workspace.yaml": _WORKSPACE,
        ".env.example": _ENVIRONMENT,
        "README.md": _README,
        ".gitignore": _IGNORED,
    }
    there = [name for name in ("defs", *files) if (root / name).exists()]
    if there:
        raise ConfigurationError(
            f"{root} already contains {', '.join(there)}: choose another folder, or move these files away"
        )
    try:
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
    except OSError as e:
        raise ConfigurationError(f"{root} cannot be written: {e.strerror or e}") from e
    echo_lines(f"created {root}; next:\n  cd {shlex.quote(str(root))}")
    echo("  and declare a topic, as README.md explains")
