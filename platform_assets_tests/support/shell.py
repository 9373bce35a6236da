"""A topic declared in a separate folder, and a shell that runs commands for this topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner, Result

from platform_assets.cli.main import main
from platform_assets.services import dagster_services
from platform_assets.services.home import Home
from testbed.loads import TopicLake

YAML = """type: platform_assets.components.TopicTable
attributes:
  topic: {topic}
  window: "{window}"
  start: "{start}"
  sensor_running: false
"""

# What Dagster 1.13, which is pinned, does while it reads YAML.
DAGSTER_WARNINGS = (
    "ignore:`parse_obj_as` is deprecated",
    "ignore::dagster_shared.utils.warnings.BetaWarning",
    "ignore::dagster_shared.utils.warnings.PreviewWarning",
)


@dataclass
class Shell:
    """Environment variables of a shell for the project in `root`, without the user's services."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "defs").mkdir(parents=True, exist_ok=True)
        self.variables |= {
            "PLATFORM_DEFS": str(self.root / "defs"),
            "PLATFORM_HOME": str(self.root / "home"),
            "DAGSTER_DISABLE_TELEMETRY": "yes",
        }

    def declare(self, topic: str, start: str = "2026-01-01T00:00Z", window: str = "0 * * * *") -> Path:
        """Write the YAML of a topic. Return the path of the file."""
        file = self.root / "defs" / topic / "defs.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(YAML.format(topic=topic, window=window, start=start))
        return file

    def run(self, *arguments: str, **changed: str | None) -> Result:
        """Run `platform-assets` with these arguments. Environment variables are set to the given values, or removed if
        the value is None."""
        hidden = dict.fromkeys(("KAFKA_BOOTSTRAP_SERVERS", "SPARK_REMOTE", "DAGSTER_HOME", "LAKE_ROOT"))
        environment: Mapping[str, str | None] = {**hidden, **self.variables, **changed}
        return CliRunner().invoke(main, list(arguments), env=environment)

    @classmethod
    def of_lake(cls, root: Path, lk: TopicLake, remote: str) -> Shell:
        """Return a shell for a topic's lake. Dagster's home is the same as `platform-assets up` creates."""
        shell = cls(root)
        shell.declare(lk.topic, f"{lk.start:%Y-%m-%dT%H:%MZ}", "* * * * *")
        shell.variables |= {
            "KAFKA_BOOTSTRAP_SERVERS": lk.bootstrap,
            "SPARK_REMOTE": remote,
            "LAKE_ROOT": str(lk.lake),
        }
        dagster_services.prepare(Home.from_environment(shell.variables))
        return shell


ShellOf = Callable[[TopicLake], Shell]


def sentence(error: Exception) -> str:
    """Return the command in an error's message, without the program's name. The dots in the command stand for a reason."""
    command = str(error).partition("`platform-assets ")[2].partition("`")[0]
    assert command, f"names no command: {error}"
    return command


def follow(shell: Shell, error: Exception, *more: str) -> str:
    """Run the command that the error recommends. Return the command's output."""
    words = sentence(error).replace('"…"', "decided").split()
    done = shell.run(*words, *more)
    assert done.exit_code == 0, done.output
    return done.output


def proved(shell: Shell, lk: TopicLake) -> None:
    """Check that every check of the table passes, including the deep audit."""
    audit = shell.run("audit", lk.topic, "--deep")
    assert audit.exit_code == 0, audit.output
