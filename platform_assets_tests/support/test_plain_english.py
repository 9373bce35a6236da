"""The prose linter finds its phrases, and ignores code and allowed lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_assets_tests.support.plain_english import LONGEST_LINE, findings, of_module, of_page


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("This run is of no code location.", "is of"),  # plain: allow
        ("The list\nis of windows.", "is of"),
        ("MinIO was not to be had.", "to be had"),  # plain: allow
        ("Load it by hand.", "by hand"),  # plain: allow
        ("Likewise for keys.", "Likewise"),
        ("files lie beside the table", "beside"),  # plain: allow
        ("Load it from the former cluster.", "the former"),  # plain: allow
        ("Materialise the partition.", "Materialis"),
        ("It takes 2.1 × ± 5 % as long.", "× ±"),  # plain: allow
    ],
)
def test_a_phrase_is_found_in_a_page_with_its_line(text: str, phrase: str) -> None:
    (found,) = of_page("page.md", f"# Title\n\n{text}\n")
    assert found.text == phrase
    assert found.line == 3 + text.split(phrase)[0].count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "The key is of type string.",
        "Besides, it is faster.",
        "`what is of` and\n\n```text\nis of\n```\n",
        "This is of no use. <!-- plain: allow -->",
        "<!-- fields:begin -->\nis of\n<!-- fields:end -->",
        f"| {'a cell ' * 30}|",  # plain: allow
    ],
)
def test_code_generated_parts_tables_and_allowed_lines_are_left_alone(text: str) -> None:
    assert list(of_page("page.md", text)) == []


def test_a_long_line_of_a_page_is_found() -> None:
    (found,) = of_page("page.md", "word " * 30)
    assert f"break the line at {LONGEST_LINE}" in found.hint


@pytest.mark.parametrize(
    ("text", "line", "phrase"),
    [
        ('"""Whether it is so."""', 1, "Whether it is so."),
        ('def f():\n    """What it holds."""', 2, "What it holds."),
        ('X = 1\n"""Where it is."""', 2, "Where it is."),
        ('raise E(f"the run {run} is of no location")', 1, "is of"),  # plain: allow
        ("x = 1  # loaded by hand", 1, "by hand"),  # plain: allow
    ],
)
def test_a_phrase_is_found_in_a_module(text: str, line: int, phrase: str) -> None:
    (found,) = of_module("module.py", text)
    assert (found.line, found.text) == (line, phrase)


@pytest.mark.parametrize(
    "text",
    [
        '"""Return the windows."""',
        'NAME = "beside"',
        'raise E("this is of no use")  # plain: allow',
        'query = f"select `is of` from {table} where x"',
    ],
)
def test_short_texts_and_allowed_lines_of_a_module_are_left_alone(text: str) -> None:
    assert list(of_module("module.py", text)) == []


def test_pages_and_chosen_modules_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "docs" / "guide").mkdir(parents=True)
    (tmp_path / "docs" / "guide" / "page.md").write_text("It is of use.\n")  # plain: allow
    for name in ("chosen", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").write_text('"""Whether."""\n')
    found = findings(tmp_path, ("chosen",))
    assert [(f.path, f.line) for f in found] == [("docs/guide/page.md", 1), ("chosen/module.py", 1)]
