"""Code that passes text to Dagster's UI, a log or a terminal: all untrusted text goes through `model/untrusted.py`.

The embedded services cannot import that module and use `platform_assets/services/printable.py`. The test finds the
calls in the source, so it also covers new ones.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import dagster as dg
import pytest

import platform_assets
from platform_assets.errors import ConfigurationError
from platform_assets.model.untrusted import line as untrusted_line
from platform_assets.services import jars, spark_node
from platform_assets.services.printable import printable

ROOT: Final = Path(platform_assets.__file__).parent
IN_MARKDOWN: Final = frozenset({"markdown", "code", "describe"})
IN_LINES: Final = frozenset({"line", "lines", "printable"})
ESCAPING: Final = {
    "platform_assets.model.untrusted": frozenset({"markdown", "code", "line", "lines", "to_lines"}),
    "platform_assets.checks.report.description": frozenset({"describe"}),
    "platform_assets.services.printable": frozenset({"printable"}),
}
"""Modules whose functions escape text. Functions with the same names in other modules do not count."""
POSITIONS: Final = {
    made.__name__: list(inspect.signature(made).parameters).index("description")
    for made in (
        dg.AssetCheckEvaluation,
        dg.AssetMaterialization,
        dg.AssetObservation,
        dg.ExpectationResult,
        dg.Failure,
    )
}
"""Calls that accept a description as a positional argument."""
LEVELS: Final = frozenset({"debug", "info", "warning", "error", "critical", "exception", "log"})
TERMINAL: Final = "terminal/"
SERVICES: Final = "services/"
EXCEPTIONS: Final = {
    ("orchestration/retention_check.py", "headline"): "each way in which it is made is `markdown` or a constant",
    ("checks/expectations.py", "chosen"): "measured windows of a class of the platform's own, which has Dagster's name",
    ("orchestration/raw_checks.py", "check.description"): "a constant of the check's module",
    ("checks/report/rendering.py", "found.description"): "of a result, which was escaped when it was made",
    ("orchestration/events.py", "description"): "a constant of whoever reports the window",
    (
        "orchestration/published.py",
        "(description or markdown(f'Kafka topic {declaration.topic}.')) + "
        "markdown(f' It has each {what} of {declaration.table} once.')",
    ): "Markdown that the owner of the topic's YAML writes on purpose",
    (
        "components/published_topic.py",
        "self.description",
    ): "Markdown that the owner of the topic's YAML writes on purpose",
    ("components/topic_table.py", "self.description"): "Markdown that the owner of the topic's YAML writes on purpose",
    (
        "orchestration/definitions.py",
        "(description or markdown(f'Kafka topic {declaration.topic}.')) + "
        "' Each partition is a sealed window: a range of offsets that never changes.'",
    ): "Markdown that the owner of the topic's YAML writes on purpose",
    ("orchestration/resources.py", "given.description"): "of a field of a config class: a constant",
    ("lake/location.py", "description"): "of a Delta table: no page shows it",
    ("lake/new_tables.py", "description"): "of a Delta table: no page shows it",
    (
        "lake/raw_table.py",
        "f'Every committed record of Kafka topic {topic}, exactly once, as bytes'",
    ): "of a Delta table",
    (
        "lake/dead_letter_table.py",
        "f'Records of Kafka topic {topic} that could not be decoded, as they were sent, with the reason'",
    ): "of a Delta table",
    (
        "lake/changes_table.py",
        "f'Last record for each key of Kafka topic {topic} in each window, deletes included'",
    ): "of a Delta table",
    (
        "lake/decoded_table.py",
        "description or f'Records of Kafka topic {topic} as typed rows; those that could not be decoded are in dead_letters/{topic}'",
    ): "of a Delta table",
    (
        "components/derived_table.py",
        "self.description",
    ): "Markdown that the owner of the table's YAML writes on purpose",
    ("lake/derived_table.py", "f'Derived table {table.short}'"): "of a Delta table",
    (
        "orchestration/derived_definitions.py",
        "(description or markdown(f\"Result of a query over {', '.join((each.name for each in parsed.inputs))}.\"))"
        " + '\\n\\n```sql\\n' + declaration.sql.replace('```', '` ` `') + '\\n```'",
    ): "the owner's Markdown, or escaped names; then the owner's SQL, which cannot end its code block",
    ("lake/state_table.py", "description"): "of a Delta table",
    ("windows/state/folding.py", "f'{what} of Kafka topic {self.topic}'"): "of a Delta table",
    ("ledger/decisions.py", "(__doc__ or '').splitlines()[0]"): "a constant",
    ("ledger/store.py", "(__doc__ or '').splitlines()[0]"): "a constant",
    ("services/jars.py", "__doc__"): "a constant",
    ("services/spark_node.py", "(__doc__ or '').splitlines()[0]"): "a constant",
    ("kernels/__main__.py", "print"): "what numba and this machine say, while the platform is installed",
    ("demo/run.py", "logging.getLogger"): "the root, to which the demo adds a file",
    ("model/logs.py", "logging.getLogger"): "the one that escapes",
}
"""Expressions shown without escaping, each with the reason why it cannot contain untrusted text."""

IMPORTED: Final = "from platform_assets.model.untrusted import code, line, markdown, to_lines"
Place = tuple[str, int, str]


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        if "defs" not in path.relative_to(ROOT).parts:
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def escaping(tree: ast.Module) -> frozenset[str]:
    """Return the functions in ESCAPING that the module imports without renaming and does not redefine."""
    nodes = list(ast.walk(tree))
    taken = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    taken |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    taken |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            known = ESCAPING.get(node.module or "", frozenset())
            found |= {each.name for each in node.names if each.name in known and each.asname is None}
            taken |= {each.asname or each.name for each in node.names if each.name not in known or each.asname}
    return frozenset(found - taken)


def name_of(call: ast.AST) -> str:
    return ast.unparse(call.func) if isinstance(call, ast.Call) else ""


def is_safe(value: ast.expr, by: frozenset[str]) -> bool:
    """Return True if the expression is a constant, a number, or the result of a function in `by`."""
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.JoinedStr):
        return all(is_safe(part, by) for part in value.values)
    if isinstance(value, ast.FormattedValue):
        # For a string, this format would raise an error.
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


def texts(file: str, tree: ast.Module) -> Iterator[tuple[ast.expr, frozenset[str]]]:
    """Yield each expression that is shown, with the functions that may produce it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node)
        owner, _, last = name.rpartition(".")
        for keyword in node.keywords:
            if keyword.arg == "description" and name != "Field":
                yield keyword.value, IN_LINES if last == "Failure" else IN_MARKDOWN
            if keyword.arg in ("skip_reason", "skip_message"):
                yield keyword.value, IN_LINES
            if keyword.arg == "exc_info" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                yield ast.parse(f"exc_info({ast.unparse(keyword.value)})", mode="eval").body, frozenset()
        if name.endswith(("MetadataValue.md", "MarkdownMetadataValue")):
            yield node.args[0], IN_MARKDOWN
        elif last in POSITIONS and len(node.args) > POSITIONS[last]:
            yield node.args[POSITIONS[last]], IN_LINES if last == "Failure" else IN_MARKDOWN
        elif last == "SensorResult" and len(node.args) > 1:
            yield node.args[1], IN_LINES
        elif file.startswith(SERVICES) and (
            name in ("print", "sys.stdout.write", "sys.stderr.write")
            or (last in LEVELS and owner in ("_log", "logging"))
        ):
            yield from ((each, IN_LINES) for each in node.args)
        elif (
            last == "SkipReason"
            or name in ("click.confirm", "click.prompt", "warnings.warn", "warn")
            or (last in LEVELS - {"exception"} and owner.endswith(("context.log", "self.log")))
        ) and node.args:
            yield node.args[0], IN_LINES
        elif last == "exception" and owner.endswith("log"):
            yield node, frozenset()
        elif last == "from_markup" and node.args:
            yield node.args[0], frozenset()


def unescaped(file: str, tree: ast.Module) -> Iterator[Place]:
    known = escaping(tree)
    for value, by in texts(file, tree):
        if not is_safe(value, by & known):
            yield file, value.lineno, ast.unparse(value)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    given = {
        id(arg)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node) == "to_lines" and "to_lines" in known
        for arg in node.args
    }
    for node in ast.walk(tree):
        name = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""
        if name.endswith(tuple(f"context.log.{level}" for level in LEVELS)) and id(node) not in called | given:
            yield file, getattr(node, "lineno", 0), name
        if file.startswith(SERVICES):
            if name == "click.echo" or (name == "Console" and id(node) in called):
                yield file, getattr(node, "lineno", 0), name
        elif not file.startswith(TERMINAL):
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
        "dg.AssetObservation(asset, text)",
        "raise dg.Failure(description=str(e))",
        "dg.SensorResult([], why)",
        "Text.from_markup(text)",
        "warnings.warn(f'at {place}')",
        "_log.info('at', exc_info=True)",
        "_log.info('at', exc_info=error)",
        "_log.exception('at')",
        "context.log.exception('at')",
        "dg.MetadataValue.md(markdown(text))",
        "from elsewhere import markdown\ndg.MetadataValue.md(markdown(text))",
        "from elsewhere import x as markdown\ndg.MetadataValue.md(markdown(text))",
        f"{IMPORTED}\ndef code(text): return text\ndg.MetadataValue.md(code(text))",
        f"{IMPORTED}\nfor code in all: dg.MetadataValue.md(code(text))",
    ],
)
def test_a_place_that_shows_text_as_it_is_is_found(code: str) -> None:
    assert list(unescaped("x.py", ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["print(error)", "print(line(error))", "_log.warning('%s', error)", "sys.stderr.write(text)", "click.echo(text)"],
)
def test_a_place_of_the_services_that_shows_text_as_it_is_is_found(code: str) -> None:
    assert list(unescaped("services/x.py", ast.parse(code)))
    safe = "\n".join(
        (
            "from platform_assets.services.printable import printable",
            "print(printable(error))",
            "_log.warning('%s', printable(f'at {text}'))",
        )
    )
    assert not list(unescaped("services/x.py", ast.parse(safe)))


def test_an_error_of_the_services_makes_no_terminal_act(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ConfigurationError("a\x1b[2J\nb")

    monkeypatch.setattr(jars, "install", fail)
    monkeypatch.setattr(spark_node, "find_java", fail)
    assert jars.main([]) == 1
    assert spark_node.main(["master", "--host", "127.0.0.1"]) == 1
    assert capsys.readouterr().err == "a\\x1b[2J\\nb\n" * 2


def test_services_print_as_the_platform_does() -> None:
    text = "".join(map(chr, range(0x3000))) + "\udcff\U000e0001"
    assert printable(text) == untrusted_line(text)


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
        "dg.AssetObservation(asset, markdown(text))",
        "warnings.warn(line(text))",
        "Text.from_markup('[b]constant[/b]')",
        "_log.info('at', exc_info=False)",
    ],
)
def test_a_place_that_shows_it_escaped_is_none(code: str) -> None:
    assert not list(unescaped("x.py", ast.parse(f"{IMPORTED}\n{code}")))
