"""The command as a whole: the output of `--help`, the packages that it imports, and the form of errors."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from platform_assets.cli.main import main
from platform_assets.components import declared
from testbed.homes import service_environment

# Warnings that Dagster 1.13, which is pinned, raises while it reads YAML.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
    pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning"),
]

_IMPORTED = """
import json, sys
before = set(sys.modules)
from platform_assets.cli.main import main
try:
    main({arguments!r})
except SystemExit as e:
    assert e.code == 0, e.code
new = {{name.split(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
print("\\n" + json.dumps(sorted(new)))
"""


def imported_by(*arguments: str) -> set[str]:
    """Return the packages outside the standard library that the command imports in a new process."""
    program = _IMPORTED.format(arguments=list(arguments))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=service_environment()
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_help_imports_nothing_heavy() -> None:
    assert imported_by("--help") == {"click", "platform_assets"}


@pytest.mark.parametrize("command", sorted(main.commands))
def test_each_command_has_help_without_heavy_imports(command: str) -> None:
    assert imported_by(command, "--help") == {"click", "platform_assets"}


def test_a_table_may_be_named_by_its_topic() -> None:
    assert declared.declaration_of("weather") == declared.declaration_of("raw/weather")


@pytest.mark.parametrize(
    ("command", "there_are"),
    [
        ("audit", "raw/flights, decoded/flights, dead_letters/flights, raw/planes"),
        ("rebuild-ledger", "raw/flights, raw/planes"),
    ],
)
def test_an_unknown_table_is_answered_with_those_that_there_are(command: str, there_are: str) -> None:
    result = CliRunner().invoke(main, [command, "wether"])
    assert result.exit_code in (1, 2)
    assert f"'wether' is not a table of this project; its tables are: {there_are}" in result.stderr


_ENDED = """
import atexit, sys
import pyarrow.dataset
from platform_assets.cli.main import run
atexit.register(print, "at exit")
sys.argv[:] = ["platform-assets", *{arguments!r}]
run()
"""


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["audit", "--no-such-option"], 2)])
@pytest.mark.parametrize("root", ["s3://bucket/lake", "/lake"])
def test_a_process_that_has_read_a_store_ends_at_once(root: str, arguments: list[str], code: int) -> None:
    """Without this, such a process could abort during Python's clean-up at exit."""
    done = subprocess.run(
        [sys.executable, "-c", _ENDED.format(arguments=arguments)],
        capture_output=True, text=True, check=False, env=service_environment() | {"LAKE_ROOT": root},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert ("at exit" in done.stdout) is not root.startswith("s3")
    assert (done.stdout if code == 0 else done.stderr).strip()
