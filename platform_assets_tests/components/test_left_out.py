"""A topic that clashes with other topics is left out and reported. All other topics are defined, shown and loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from platform_assets.cli import check
from platform_assets.components import declared, found_topics
from platform_assets.components.left_out import Candidate, left_out
from platform_assets.lake.location import Lake
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.names import identifier
from platform_assets.orchestration.names import table_key
from platform_assets.services.project import DEFS_VARIABLE
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from testbed.homes import service_environment
from testbed.samples import edge

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

ALIKE = identifier("shop.orders")
"""The Dagster name of `shop.orders`. Another topic may have this name as its real name."""
PATTERN = """type: platform_assets.components.TopicTables
attributes:
  pattern: {pattern}
  exclude: {exclude}
  each: {{window: "0 * * * *", start: "2026-01-01T00:00Z"}}
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell(tmp_path)
    for name, value in made.variables.items():
        monkeypatch.setenv(name, value)
    assert DEFS_VARIABLE in made.variables
    return made


def find(shell: Shell, *topics: str, name: str = "shop", pattern: str = ".*", exclude: str = "[]") -> Path:
    """Return a list of one pattern, as if it had matched `topics`."""
    folder = shell.root / "defs" / name
    folder.mkdir(exist_ok=True)
    (folder / "defs.yaml").write_text(PATTERN.format(pattern=pattern, exclude=exclude))
    found_topics.add(folder, topics)
    return folder


def raw_tables() -> set[dg.AssetKey]:
    """Return the keys of the raw tables in Dagster, after checking that Dagster accepts the definitions."""
    assert declared.refused_by_dagster() is None
    resources = dict.fromkeys(("kafka", "lake", "spark"), dg.ResourceDefinition.hardcoded_resource(None))
    whole = dg.Definitions.merge(declared.definitions(), dg.Definitions(resources=resources))
    return {key for key in whole.resolve_all_asset_keys() if key.path[0] == "raw"}


def test_a_topic_named_as_another_is_in_dagster_is_left_out_until_one_of_them_is_excluded(shell: Shell) -> None:
    folder = find(shell, "shop.orders", ALIKE, "clicks")
    wanted = {table_key(TopicDeclaration(t, "0 * * * *", edge(0)).raw_table) for t in ("shop.orders", "clicks")}
    assert raw_tables() == wanted
    assert set(declared.declarations()) == {"shop.orders", "clicks"}
    checked = shell.run("check")
    assert checked.exit_code == 1
    says = f"{folder / 'defs.yaml'}:3: topic '{ALIKE}' cannot be defined next to topic 'shop.orders', declared at "
    assert says in checked.stdout
    assert "topics declared: clicks, shop.orders; other topics have mistakes" in checked.stdout
    status = shell.run("status", "--json")
    assert status.exit_code == 1
    found = json.loads(status.stdout)
    assert [t["topic"] for t in found["tables"]] == ["clicks", "shop.orders"]
    assert says in found["left_out"][0]
    assert says in shell.run("status", COLUMNS="400").stdout
    # The remedy in the message: omit one with `exclude`.
    find(shell, name="shop", exclude=f"[{ALIKE}]")
    assert shell.run("check").exit_code == 0
    assert raw_tables() == wanted
    assert json.loads(shell.run("status", "--json").stdout)["left_out"] == []


def test_of_two_patterns_that_find_a_topic_the_first_has_it(shell: Shell) -> None:
    find(shell, "shop.orders", "shop.a", name="a", pattern="shop.*")
    second = find(shell, "shop.orders", "b.orders", name="b", pattern=".*orders")
    assert len(raw_tables()) == 3
    (line,) = [line for line in shell.run("check").stdout.splitlines() if "declared already" in line]
    assert line.startswith(f"{second / 'defs.yaml'}:3: topic 'shop.orders' is declared already, at ")
    find(shell, name="b", pattern=".*orders", exclude="[shop.orders]")
    assert shell.run("check").exit_code == 0


def test_what_is_named_goes_before_what_a_pattern_finds() -> None:
    def candidate(topic: str, *, found: bool) -> Candidate:
        return Candidate(TopicDeclaration(topic, "0 * * * *", edge(0)), f"place of {topic}", found)

    some = [candidate("shop.orders", found=True), candidate("clicks", found=True), candidate(ALIKE, found=False)]
    assert list(left_out(some)) == [0]
    assert left_out(some[:2]) == {}
    # Dots, dashes and underscores in many places: two of these names have the same digits.
    many = {"".join(letter + sign for letter, sign in zip("abcdefghi", signs, strict=True)) for signs in _signs(9)}
    by_name: dict[str, list[str]] = {}
    for topic in sorted(many):
        by_name.setdefault(identifier(topic), []).append(topic)
    one, other = next(topics for topics in by_name.values() if len(topics) == 2)
    reasons = left_out([candidate(one, found=True), candidate("clicks", found=True), candidate(other, found=True)])
    assert list(reasons) == [2]
    assert f"'{other}' cannot be defined next to topic '{one}', declared at place of {one}" in reasons[2]


def _signs(length: int) -> list[str]:
    return [""] if not length else [sign + rest for sign in "._-" for rest in _signs(length - 1)]


def test_where_the_lake_does_not_tell_case_one_of_two_topics_is_left_out(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(shell, "Orders", "orders", "clicks")
    assert {key.path[1] for key in raw_tables()} == {"Orders", "orders", "clicks"}
    assert Lake.at(shell.root / "lake").is_case_sensitive()
    monkeypatch.setattr(Lake, "is_case_sensitive", lambda _: False)
    assert {key.path[1] for key in raw_tables()} == {"Orders", "clicks"}
    said = shell.run("check").stdout
    assert "topic 'orders' cannot be defined next to topic 'Orders'" in said
    assert "both would use the lake folder orders" in said


def test_check_says_what_dagster_says_of_python_that_is_in_the_way(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.declare("orders")
    assert shell.run("check").exit_code == 0
    (shell.root / "defs" / "mine").mkdir()
    (shell.root / "defs" / "mine" / "assets.py").write_text(
        "import dagster as dg\n\n@dg.asset(key=['raw', 'orders'])\ndef own(): ...\n"
    )
    checked = shell.run("check")
    assert checked.exit_code == 1
    assert "Dagster rejects the definitions, so no topic is loaded: Duplicate asset key" in checked.stdout
    # Dagster's own command builds the definitions of a large number of topics.
    monkeypatch.setattr(check, "_MOST_BUILT", 0)
    checked = shell.run("check")
    assert checked.exit_code == 0
    (command,) = re.findall(
        r"^definitions: .*run `(dagster definitions validate -m \S+)`$", checked.stdout, re.MULTILINE
    )
    done = subprocess.run(
        [str(Path(sys.executable).with_name("dagster")), *command.split()[1:]],
        env=service_environment() | shell.variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Duplicate asset key" in done.stdout + done.stderr
