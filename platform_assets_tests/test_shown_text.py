"""Every place of the code that gives text to Dagster's UI, a log or a terminal: text from outside goes through `model/untrusted.py`.

Read from the code, so that a place that is added is found too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import platform_assets

ROOT: Final = Path(platform_assets.__file__).parent
IN_MARKDOWN: Final = frozenset({"markdown", "code", "describe"})
IN_LINES: Final = frozenset({"line", "lines"})
LEVELS: Final = frozenset({"debug", "info", "warning", "error", "critical", "exception", "log"})
TERMINAL: Final = "terminal/"
EXCEPTIONS: Final = {
    ("orchestration/foresight.py", "headline"): "each way in which it is made is `markdown` or a constant",
    ("orchestration/assets.py", "check.description"): "a constant of the check's module",
    ("checks/report/rendering.py", "found.description"): "of a result, which was escaped when it was made",
    ("orchestration/by_hand.py", "result.description"): "of a result, which was escaped when it was made",
    ("components/topic_table.py", "self.description"): "Markdown that the owner of the topic's YAML writes on purpose",
    (
        "orchestration/assets.py",
        "(description or markdown(f'Kafka topic {declaration.topic}.')) + "
        "' A partition is a sealed window: offsets that never change.'",
    ): "Markdown that the owner of the topic's YAML writes on purpose",
    ("orchestration/foresight.py", "_DESCRIPTION"): "a constant",
    ("orchestration/run_config.py", "given.description"): "of a field of a config class: a constant",
    ("lake/location.py", "description"): "of a Delta table: no page shows it",
    (
        "lake/raw_table.py",
        "f'Every committed record of Kafka topic {topic}, exactly once, as bytes'",
    ): "of a Delta table",
    (
        "lake/dead_letter_table.py",
        "f'Records of Kafka topic {topic} that could not be decoded, as they were sent, with the reason'",
    ): "of a Delta table",
    (
        "lake/decoded_table.py",
        "f'Records of Kafka topic {topic} as typed rows; those that could not be decoded are in dead_letters/{topic}'",
    ): "of a Delta table",
    ("ledger/decisions.py", "(__doc__ or '').splitlines()[0]"): "a constant",
    ("ledger/store.py", "(__doc__ or '').splitlines()[0]"): "a constant",
    ("orchestration/foresight.py", "outcome.skip_reason"): "of a result, which was escaped when it was made",
    ("orchestration/unreported.py", "result.skip_reason"): "of a result, which was escaped when it was made",
    ("kernels/__main__.py", "print"): "what numba and this machine say, while the platform is installed",
    ("demo/run.py", "logging.getLogger"): "the root, to which the demo adds a file",
    ("model/logs.py", "logging.getLogger"): "the one that escapes",
}
"""Expressions that are as they are, each with why no text of a stranger gets there unescaped."""

Place = tuple[str, int, str]


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        if "defs" not in path.relative_to(ROOT).parts:
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def name_of(call: ast.AST) -> str:
    return ast.unparse(call.func) if isinstance(call, ast.Call) else ""


def is_safe(value: ast.expr, by: frozenset[str]) -> bool:
    """Whether it is a constant, a number, or comes from one of the functions `by`."""
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.JoinedStr):
        return all(is_safe(part, by) for part in value.values)
    if isinstance(value, ast.FormattedValue):
        # Of a text, this format would be an error.
        numeric = value.format_spec is not None and ast.unparse(value.format_spec) in (
            "f','",
            "f':,'",
            "f'g'",
            "f'.1f'",
        )
        return numeric or name_of(value.value) == "len" or is_safe(value.value, by)
    if isinstance(value, ast.BinOp):
        return is_safe(value.left, by) and is_safe(value.right, by)
    if isinstance(value, ast.BoolOp):
        return all(is_safe(each, by) for each in value.values)
    if isinstance(value, ast.IfExp):
        return is_safe(value.body, by) and is_safe(value.orelse, by)
    if isinstance(value, ast.Call):
        maps = [ast.unparse(arg) for arg in value.args]
        return name_of(value) in by or any(part.startswith(f"map({each}, ") for part in maps for each in by)
    return False


def texts(tree: ast.Module) -> Iterator[tuple[ast.expr, frozenset[str]]]:
    """Each expression that is shown, with the functions of which one has to make it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node)
        for keyword in node.keywords:
            if keyword.arg == "description" and name != "Field":
                yield keyword.value, IN_MARKDOWN
            if keyword.arg == "skip_reason":
                yield keyword.value, IN_LINES
        if name.endswith(("MetadataValue.md", "MarkdownMetadataValue")):
            yield node.args[0], IN_MARKDOWN
        elif (
            name.endswith((".Failure", ".SkipReason"))
            or name in ("click.confirm", "click.prompt")
            or (name.rpartition(".")[2] in LEVELS and name.rpartition(".")[0].endswith("context.log"))
        ):
            yield node.args[0], IN_LINES


def unescaped(file: str, tree: ast.Module) -> Iterator[Place]:
    for value, by in texts(tree):
        if not is_safe(value, by):
            yield file, value.lineno, ast.unparse(value)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    given = {
        id(arg)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node) == "to_lines"
        for arg in node.args
    }
    for node in ast.walk(tree):
        name = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""
        if name.endswith(tuple(f"context.log.{level}" for level in LEVELS)) and id(node) not in called | given:
            yield file, getattr(node, "lineno", 0), name
        if not file.startswith(TERMINAL):
            prints = name in ("print", "sys.stdout.write", "sys.stderr.write") and id(node) in called
            if name in ("click.echo", "click.secho", "logging.getLogger") or prints:
                yield file, getattr(node, "lineno", 0), name
            if name == "Console" and id(node) in called:
                yield file, getattr(node, "lineno", 0), name


def test_text_from_outside_is_escaped_wherever_it_is_shown() -> None:
    found = [place for file, tree in sources() for place in unescaped(file, tree)]
    unknown = [place for place in found if (place[0], place[2]) not in EXCEPTIONS]
    assert not unknown, "\n".join(f"{file}:{number}: {text}" for file, number, text in unknown)
    stale = set(EXCEPTIONS) - {(file, text) for file, _, text in found}
    assert not stale


@pytest.mark.parametrize(
    "code",
    [
        "dg.AssetCheckResult(description=f'at {place}')",
        "dg.AssetObservation(asset, description=text)",
        "dg.MetadataValue.md('\\n'.join(said))",
        "raise dg.Failure(str(e))",
        "dg.SkipReason(why)",
        "dg.SensorResult(skip_reason=str(e))",
        "context.log.info(f'window {key}')",
        "self.context.log.error(text)",
        "Publisher(context.log.warning)",
        "click.echo(text)",
        "report(click.echo)",
        "print(text)",
        "Console().print(text)",
        "_log = logging.getLogger(__name__)",
        "click.confirm(question)",
    ],
)
def test_a_place_that_shows_text_as_it_is_is_found(code: str) -> None:
    assert list(unescaped("x.py", ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "dg.AssetCheckResult(description='constant')",
        "dg.AssetCheckResult(description=markdown(f'at {place}'))",
        "dg.AssetMaterialization(description=f'sealed: {n:,} offsets of {len(x)}')",
        "dg.MetadataValue.md('\\n'.join(map(markdown, said)))",
        "raise dg.Failure(line(e))",
        "context.log.info(line(f'window {key}'))",
        "Publisher(to_lines(context.log.warning))",
        "echo(text)",
    ],
)
def test_a_place_that_shows_it_escaped_is_none(code: str) -> None:
    assert not list(unescaped("x.py", ast.parse(code)))
