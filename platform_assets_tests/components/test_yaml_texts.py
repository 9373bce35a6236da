"""A string in the YAML keeps its exact text, even if Python would read it as a literal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from platform_assets.components import declared, yaml_check
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.services.project import DEFS_VARIABLE
from platform_assets_tests.support.shell import DAGSTER_WARNINGS

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

Declare = Callable[[str], TopicDeclaration]

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "decode.md"
HEAD = 'topic: orders\nwindow: "0 * * * *"\nstart: "2026-01-01T00:00Z"\n'
LITERALS = [
    '{"id": 7}',
    '"abc"',
    "'x'",
    "007",
    "1_000",
    "[1, 2]",
    "(1,)",
    "None",
    "True",
    "b'x'",
    " 7 ",
    "1e5",
    "{# x #}",
    "#}",
]


@pytest.fixture(params=["TopicTable", "TopicTables"])
def declaration(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Declare:
    """Return the declaration built from a topic's attributes, alone or in a list. `check` and Dagster have to agree on
    it."""
    monkeypatch.setenv(DEFS_VARIABLE, str(tmp_path))

    def declare(attributes: str) -> TopicDeclaration:
        given = yaml.safe_load(attributes)
        if request.param == "TopicTables":
            topic = given.pop("topic")
            given = {"topics": [topic], "each": given}
        document = {"type": f"platform_assets.components.{request.param}", "attributes": given}
        (tmp_path / "defs.yaml").write_text(yaml.safe_dump(document))
        judged = yaml_check.judge(tmp_path)
        assert judged.mistakes == ()
        (made,) = declared.declarations().values()
        assert [d.declaration for d in judged.declared] == [made]
        return made

    return declare


def test_the_repair_of_the_guide_is_the_text_of_the_guide(declaration: Declare) -> None:
    (fence,) = re.findall(r"```yaml\n( +repairs:\n.*?)```", GUIDE.read_text(), re.DOTALL)
    text = 'decode:\n    value: {format: json, schema: "id BIGINT, amount DECIMAL(9,2)"}\n'
    found = declaration(f"{HEAD}{text}{fence}").decode
    assert found is not None
    assert found.repairs[0].value == '{"id": 7, "amount": 12.50}'
    assert found.repairs[0].content == b'{"id": 7, "amount": 12.50}'


@pytest.mark.parametrize("text", LITERALS)
def test_a_text_is_not_evaluated(declaration: Declare, text: str) -> None:
    written = json.dumps(text)
    decode = (
        "decode:\n  value: {format: string}\n"
        f"  repairs:\n    - {{window: 2026-01-31-14:00, partition: 0, offset: 17, value: {written}}}\n"
        f"  expect:\n    - {{column: value, in: [{written}, other]}}\n"
    )
    found = declaration(f"{HEAD}description: {written}\n{decode}").decode
    assert found is not None
    assert found.repairs[0].value == text
    assert found.expect[0].values == (text, "other")


def test_names_of_digits_are_names(declaration: Declare) -> None:
    assert declaration(HEAD.replace("topic: orders", "topic: '0123'")).topic == "0123"


def test_a_template_gives_what_its_expression_has(declaration: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TOPIC": "1234", "NUMBER": "7", "TEXT": "'x'", "RUNS": "no"}.items():
        monkeypatch.setenv(name, value)
    made = declaration(
        HEAD.replace("topic: orders", 'topic: "{{ env.TOPIC }}"')
        + 'max_windows_per_run: "{{ env.NUMBER }}"\npublish_position: "{{ env.RUNS }}"\n'
        + "decode:\n  value: {format: string}\n"
        + '  revision: "{{ env.NUMBER | int }}"\n'
        + "  expect:\n    - column: value\n"
        + '      in: ["{{ env.TEXT }}", "{{ env.TEXT }}, {{ env.NUMBER }}", "{% raw %}{{ x }}{% endraw %}"]\n'
    )
    assert made.decode is not None
    assert (made.topic, made.max_windows_per_run, made.publish_position, made.decode.revision) == ("1234", 7, False, 7)
    assert made.decode.expect[0].values == ("'x'", "'x', 7", "{{ x }}")


@pytest.mark.parametrize("text", ["{{ x }}", "a {{ x }}", "{{ x.y }}", "{{ nope("])
def test_a_template_that_is_none_is_a_mistake_and_the_remedy_helps(tmp_path: Path, text: str) -> None:
    def written(value: str) -> str:
        repair = {"window": "2026-01-31-14:00", "partition": 0, "offset": 1, "value": value}
        decode = {"value": {"format": "string"}, "repairs": [repair]}
        attributes = {**yaml.safe_load(HEAD), "decode": decode}
        return yaml.safe_dump({"type": yaml_check.TOPIC_TABLE, "attributes": attributes})

    (tmp_path / "defs.yaml").write_text(written(text))
    (mistake,) = yaml_check.judge(tmp_path).mistakes
    assert mistake.message.startswith("decode: its template cannot be evaluated: ")
    remedy = re.search(r"\{% raw %\} … \{% endraw %\}", mistake.message)
    assert remedy is not None
    (tmp_path / "defs.yaml").write_text(written(remedy[0].replace(" … ", text)))
    (found,) = yaml_check.judge(tmp_path).declared
    assert found.declaration.decode is not None
    assert found.declaration.decode.repairs[0].value == text
