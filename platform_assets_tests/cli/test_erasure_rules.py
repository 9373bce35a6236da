"""Options of `erase` about rules by key, and the output of `restore` about erasures that it applies again. No services
are needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from platform_assets.ledger import decisions, erasure_rules
from platform_assets_tests.support.erasures import MadeTopic
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

ANN, BOB = b"ann", b"bob"
WHY = ("--reason", "asked to be forgotten", "--yes")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path / "project")
    made.variables["LAKE_ROOT"] = str(tmp_path / "lake")
    for topic in ("people", "copied"):
        made.declare(topic)
    return made


@pytest.fixture
def people(tmp_path: Path) -> MadeTopic:
    return topic_at(tmp_path, "people")


def topic_at(tmp_path: Path, name: str) -> MadeTopic:
    """Return a topic with two windows, the first of which is loaded. Each window has one record of Ann and one of Bob."""
    topic = MadeTopic(tmp_path / "lake", name)
    first, _ = topic.seal([{0: [(ANN, b"1"), (BOB, b"2")]}, {0: [(ANN, b"3"), (BOB, b"4")]}])
    topic.load(first)
    return topic


def key_rules(topic: MadeTopic) -> int:
    """Return erasures of the topic whose decision has digests of keys."""
    return sum("keys" in d.details for d in decisions.decisions(topic.lake, topic.topic, ("erase",)))


def test_keys_are_kept_as_digests_unless_they_are_to_be_forgotten(shell: Shell, people: MadeTopic) -> None:
    done = shell.run("erase", "people", "--key", "ann", *WHY)
    assert done.exit_code == 0, done.output
    assert "raw/people: 1 row" in done.output
    assert key_rules(people) == 1
    forgotten = shell.run("erase", "people", "--key", "bob", "--forget-keys", *WHY)
    assert forgotten.exit_code == 0, forgotten.output
    assert key_rules(people) == 1, "the second decision has no digests"
    assert people.values() == []
    texts = "".join(str(d.details) for d in decisions.decisions(people.lake, "people", ("erase",)))
    assert "ann" not in texts
    assert "bob" not in texts


def test_the_rules_of_a_topic_are_taken_over_to_its_copy(shell: Shell, people: MadeTopic, tmp_path: Path) -> None:
    assert shell.run("erase", "people", "--key", "ann", *WHY).exit_code == 0
    copied = topic_at(tmp_path, "copied")
    assert len(copied.values()) == 2
    done = shell.run("erase", "copied", "--rules-of", "people", "--json", *WHY)
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["version"], found["topic"], found["accepted"]) == (1, "copied", True)
    erasure_rules.forget()
    assert copied.values() == [b"2"]
    assert key_rules(copied) == 1


def test_rules_of_a_topic_that_has_none_are_an_error(shell: Shell, people: MadeTopic, tmp_path: Path) -> None:
    topic_at(tmp_path, "copied")
    refused = shell.run("erase", "copied", "--rules-of", "people", *WHY)
    assert refused.exit_code == 1
    assert "people" in refused.output


@pytest.mark.parametrize("more", [("--key", "ann"), ("--offsets", "0:0-1"), ("--forget-keys",), ("--dry-run",)])
def test_rules_of_a_topic_come_alone(shell: Shell, people: MadeTopic, more: tuple[str, ...]) -> None:
    refused = shell.run("erase", "copied", "--rules-of", "people", *more, *WHY)
    assert refused.exit_code == 2
    assert "--rules-of already selects the records" in refused.output
    assert key_rules(people) == 0


def test_a_restore_says_which_erased_rows_it_erased_again(shell: Shell, people: MadeTopic, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    backed_up = shell.run("backup", str(copy))
    assert backed_up.exit_code == 0, backed_up.output
    assert shell.run("erase", "people", "--key", "ann", *WHY).exit_code == 0
    restored = shell.run("restore", str(copy), "--only", "raw/people", "--force")
    assert restored.exit_code == 0, restored.output
    assert "raw/people: 1 previously erased row was restored and then erased again" in restored.output.splitlines()
    assert people.values() == [b"2"]
    again = shell.run("restore", str(copy), "--only", "raw/people", "--force", "--json")
    assert "raw/people: 1 previously erased row was restored and then erased again" in json.loads(again.stdout)["then"]
