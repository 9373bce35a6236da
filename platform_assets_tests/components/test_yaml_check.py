"""Every mistake in the YAML of a definitions folder is reported with file, line and remedy."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from platform_assets.components.yaml_check import Judgement, judge

TYPE = "type: platform_assets.components.TopicTable\n"
GOOD = 'attributes:\n  topic: orders\n  window: "0 * * * *"\n  start: "2026-01-01T00:00Z"\n'


def judged(tmp_path: Path, text: str | bytes, name: str = "shop/defs.yaml") -> Judgement:
    file = tmp_path / "defs" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return judge(tmp_path / "defs")


def said(found: Judgement) -> list[tuple[int, str]]:
    """Return the line and the message of each mistake."""
    return [(m.line, m.message) for m in found.mistakes]


def test_what_is_right_is_declared_with_its_lines(tmp_path: Path) -> None:
    found = judged(tmp_path, TYPE + GOOD)
    assert found.mistakes == ()
    ((declared),) = found.declared
    assert (declared.declaration.topic, declared.topic_line, declared.start_line) == ("orders", 3, 5)


@pytest.mark.parametrize(
    ("line", "attribute", "says"),
    [
        (4, "window: 61 * * * *", r"window: '61 * * * *' is not a cron schedule"),
        (4, "window: every minute", "write '0 * * * *' for every hour"),
        (3, "topic: or ders", "topic: 'or ders' is not a legal Kafka topic name: use 1 to 249"),
        (3, "topic: [orders]", "topic: must be text"),
        (5, "start: yesterday", "start: 'yesterday' is not an ISO 8601 time such as"),
        (5, "start: 2026", "start: must be text"),
        (5, "start: 1969-01-01", "is before 1970"),
        (5, "start: 9999-12-31T23:59Z", "is after the year 8999"),
        (6, f"sensor_interval_seconds: {10**30}", "sensor_interval_seconds: must be 2,147,483,647 or less"),
        (6, f"deep_audit_budget_seconds: {1 << 31}", "deep_audit_budget_seconds: must be 2,147,483,647 or less"),
        (6, f"owners: 0x{'f' * 9_000}", "owners: must be a list such as [a, b], not a number with thousands of digits"),
        (5, """start: "{{ env('NO_SUCH_VARIABLE') }}\"""", "NO_SUCH_VARIABLE is not set"),
        (5, 'start: "{{ no_such }}"', "its template cannot be evaluated"),
        (5, 'start: "{{ unfinished"', "its template cannot be evaluated"),
        (6, "wimdow: x", "wimdow: unknown field: did you mean 'window'?"),
        (6, "zzz: x", "zzz: unknown field: use one of topic, window, start"),
        (6, "max_windows_per_run: 1.5", "max_windows_per_run: must be a whole number, not 1.5"),
        (6, "max_windows_per_run: many", "max_windows_per_run: must be a whole number, not 'many'"),
        (6, "max_windows_per_run: 0", "must be 1 or more, not 0"),
        (6, "sensor_running: perhaps", "sensor_running: must be true or false, not 'perhaps'"),
        (6, "owners: nobody", "owners: must be a list"),
        (6, "owners: [nobody]", "neither an e-mail address nor of the form team:name"),
        (6, "topic: invoices", "'topic' is given twice: keep one of them"),
    ],
)
def test_a_wrong_field_is_named_with_its_line_and_nothing_else(
    tmp_path: Path, line: int, attribute: str, says: str
) -> None:
    lines = (TYPE + GOOD).splitlines()
    lines[line - 1 : line] = [f"  {attribute}"]
    found = judged(tmp_path, "\n".join(lines) + "\n")
    ((at, message),) = said(found)
    assert at == line
    assert says in message
    assert "\n" not in message
    assert "Traceback" not in message


def test_all_mistakes_are_found_at_once(tmp_path: Path) -> None:
    text = TYPE + "attributes:\n  topic: or ders\n  window: often\n  sensor_running: 7\n  nonsense: 1\n"
    found = judged(tmp_path, text)
    assert [line for line, _ in said(found)] == [2, 3, 4, 5, 6]
    assert found.declared == ()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (TYPE + "attributes:\n  topic: 'orders\n", 4, "it is not YAML"),
        (TYPE + "\tattributes: 1\n", 2, "it is not YAML"),
        (b"\xff\xfe\x00", 1, "cannot be read as UTF-8"),
        ("# all of it\n", 1, "it declares nothing"),
        ("just text\n", 1, "a component is expected here"),
        ("- a\n- list\n", 1, "a component is expected here"),
        (TYPE + GOOD + "---\n", 6, "nothing follows this `---`: delete it"),
        ("attributes: {}\n", 1, "type: it is missing"),
        (TYPE + "atributes: {}\n", 2, "did you mean 'attributes'?"),
        (TYPE + "attributes: 5\n", 2, "attributes: must be a mapping"),
        ("type: TopicTable\n", 1, "'TopicTable' is not a component type"),
        ("type: platform_assets.components.TopicTabel\n", 1, "cannot be imported"),
        ("type: no_such_package.Thing\n", 1, "cannot be imported"),
        ("type: json.dumps\n", 1, "is not a component"),
    ],
)
def test_a_file_that_is_no_component_is_named(tmp_path: Path, text: str | bytes, line: int, says: str) -> None:
    found = judged(tmp_path, text)
    ((at, message),) = said(found)
    assert (at, says in message) == (line, True), message


def test_a_topic_declared_twice_names_both_places(tmp_path: Path) -> None:
    judged(tmp_path, TYPE + GOOD, "a/defs.yaml")
    found = judged(tmp_path, "# b\n" + TYPE + GOOD, "b/defs.yaml")
    (mistake,) = found.mistakes
    assert (mistake.file, mistake.line) == (tmp_path / "defs/b/defs.yaml", 4)
    assert f"first at {tmp_path / 'defs/a/defs.yaml'}:3: keep one of them" in mistake.message


def test_files_that_dagster_would_pass_over_are_named(tmp_path: Path) -> None:
    judged(tmp_path, TYPE + GOOD, "shop/defs.yaml")
    judged(tmp_path, TYPE + GOOD.replace("orders", "returns"), "shop/returns/defs.yaml")
    judged(tmp_path, "some: settings\n", "shop/settings.yaml")
    found = judged(tmp_path, TYPE + GOOD.replace("orders", "invoices"), "invoices.yaml")
    assert [(str(m.file.relative_to(tmp_path / "defs")), m.message.partition(",")[0]) for m in found.mistakes] == [
        ("invoices.yaml", f"Dagster reads only defs.yaml: move this file to {tmp_path / 'defs/invoices/defs.yaml'}"),
        ("shop/returns/defs.yaml", "it is not loaded"),
    ]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    (mistake,) = judge(tmp_path / "none").mistakes
    assert "there is no such folder" in str(mistake)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (f"type: .\n{GOOD}", 1, "'.' is not a component type"),
        (f"type: .a b\n{GOOD}", 1, "'.a b' is not a component type"),
        (f"{TYPE}{GOOD}  description: !!binary eA==\n", 6, "the tag '!!binary' is not supported here: leave it out"),
        (f"{TYPE}{GOOD}  description: !!omap [a: 1]\n", 6, "the tag '!!omap' is not supported here: leave it out"),
        (
            "a: &a [x, x]\n" + "".join(f"{n}: &{n} [{f'*{p}, ' * 9}]\n" for p, n in pairwise("abcdefghij")),
            6,
            "its aliases expand to more than 100,000 values: write out the values in place of the aliases",
        ),
        (
            f"{TYPE}attributes: &a\n  topic: *a\n",
            2,
            "an alias contains itself: write out the value in place of the alias",
        ),
        (
            f"{TYPE}attributes: {'[' * 150}{']' * 150}\n",
            2,
            "its values are nested more than 100 levels deep: use fewer",
        ),
        (
            f"{TYPE}attributes: {'[' * 5_000}{']' * 5_000}\n",
            1,
            "its values are nested more than 100 levels deep: use fewer",
        ),
        (f"{TYPE}{GOOD}  decode: {{~: '{{{{ x }}}}'}}\n", 6, "the key '~' is not text: put it in quotes"),
        (f"{TYPE}{GOOD}  decode: {{[a]: b}}\n", 6, "the key that begins here is not text: put it in quotes"),
        (f"{TYPE}{GOOD}  records_per_file: !!int x\n", 1, "it contains a value that cannot be read"),
        (f"{TYPE}{GOOD}  records_per_file: {'9' * 5_000}\n", 1, "it contains a value that cannot be read"),
    ],
    ids=[
        "no type",
        "no name",
        "binary",
        "pairs",
        "aliases",
        "circle",
        "deep",
        "deeper",
        "null as a name",
        "list as a name",
        "no number",
        "digits",
    ],
)
def test_what_would_take_time_or_memory_is_a_mistake_at_its_line(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    found = judged(tmp_path, text)
    ((at, message),) = said(found)
    assert (at, message[: len(says)]) == (line, says)
    assert len(message) < 1_000
    # A file that Dagster does not read cannot contain a mistake.
    assert judged(tmp_path / "other", text, "shop/notes.yaml").mistakes == ()
