"""Find phrases that make an English reader stumble, in pages, docstrings, messages and comments.

`python -m platform_assets_tests.support.plain_english` prints each phrase with its file and line, and `make lint` fails
if there is any such phrase. A line with `plain: allow` is skipped.

The list is short on purpose: each pattern is nearly always wrong, so there are few false alarms.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platform_assets.services.home import CHECKOUT

ALLOW: Final = "plain: allow"
LONGEST_LINE: Final = 120
PHRASES: Final = {
    r"\b(?:is|are|was|were) of (?!type\b)": "say what it has or belongs to, not `is of`",
    r"\bto be had\b": "write `available`",
    r"\bthat (?:is|are) none\b": "name what it is not",
    r"\bby hand\b": "write `manually` or `manual`",
    r"\bmend(?:s|ed|ing)?\b": "write `repair`, `fix` or `correct`",
    r"\bbesides?\b(?![,:])": "write `next to`, `in addition to` or `except`",
    r"^(?:The same of|Likewise)\b": "repeat the words, so that the sentence stands alone",
    r"\bwhat is to be\b": "say who does what",
    r"\bhas to be taken for\b": "write `is treated as`",
    r"\bgoes on\b": "write `continues`",
    r"\b(?:is|are|has|have|does|do) no more\b(?! than)": "write `no longer`",
    r"\bfor ever\b": "write `permanently`",
    r"\b(?:a|the) former\b": "write `previous` or `earlier`",
    r"\bmaterialis": "write `materialize`, as Dagster does",
    r"× ±": "put the spread in parentheses",
}
BEGINNINGS: Final = re.compile(r"(?:What|Whether|Where|Who|When)\b(?! to\b)")
"""Words with which a docstring must not begin. Docstrings begin with an imperative or a noun phrase."""
PAGES: Final = ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md")
CODE: Final = ("platform_assets", "testbed", "benchmarks", "examples")
TESTS: Final = ("platform_assets_tests",)

_PHRASES: Final = {
    re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.MULTILINE): hint for pattern, hint in PHRASES.items()
}
_CODE_SPAN: Final = re.compile(r"`[^`\n]*`")
_FENCE: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_GENERATED: Final = re.compile(r"<!-- [\w ]+:begin -->.*?<!-- [\w ]+:end -->", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A phrase to rewrite."""

    path: str
    line: int
    text: str
    hint: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: {self.hint}"


def of_page(path: str, text: str) -> Iterator[Finding]:
    """Yield the findings in a Markdown page. Code, and parts of the page that are generated from code, are skipped."""
    prose = text
    for skipped in (_GENERATED, _FENCE, _CODE_SPAN):
        prose = skipped.sub(lambda match: re.sub(r"[^\n]", "x", match.group()), prose)
    yield from _phrases(path, prose, 1, text.splitlines())
    for number, line in enumerate(prose.splitlines(), 1):
        if len(line) > LONGEST_LINE and " " in line.strip()[:LONGEST_LINE] and not re.match(r"\||#|!\[|\s*[x*]", line):
            yield Finding(path, number, line[:40], f"{len(line)} characters: break the line at {LONGEST_LINE}")


def of_module(path: str, text: str) -> Iterator[Finding]:
    """Yield the findings in a Python module: in docstrings, in comments, and in strings of more than three words."""
    lines = text.splitlines()
    tree = ast.parse(text)
    docstrings = dict(_docstrings(tree))
    for at, doc in docstrings.items():
        if BEGINNINGS.match(doc) and not any(ALLOW in lines[n - 1] for n in (at.lineno, at.end_lineno or at.lineno)):
            hint = "begin a docstring with an imperative or a noun phrase"
            yield Finding(path, at.lineno, doc.partition("\n")[0][:40], hint)
    inner: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner.update(ast.walk(node))
            inner.discard(node)
    for node in ast.walk(tree):
        if node in inner or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        said = _text(node)
        if said.count(" ") > 2:
            yield from _phrases(path, _CODE_SPAN.sub("x", said), node.lineno, lines, node.end_lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _phrases(path, _CODE_SPAN.sub("x", token.string), token.start[0], lines, token.start[0])


def _docstrings(tree: ast.AST) -> Iterator[tuple[ast.Constant, str]]:
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        for child in body if isinstance(body, list) else []:
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                yield child.value, child.value.value.strip()


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(v.value if isinstance(v, ast.Constant) and isinstance(v.value, str) else "…" for v in node.values)


def _phrases(path: str, prose: str, first: int, lines: Sequence[str], last: int | None = None) -> Iterator[Finding]:
    for pattern, hint in _PHRASES.items():
        for match in pattern.finditer(prose):
            number = min(first + prose.count("\n", 0, match.start()), len(lines))
            if not any(ALLOW in line for line in lines[number - 1 : max(last or number, number)]):
                yield Finding(path, number, " ".join(match.group().split()), hint)


def findings(checkout: Path, code: Sequence[str]) -> list[Finding]:
    """Return the findings in all pages, and in the modules in the folders or files `code`."""
    found: list[Finding] = []
    for pattern in PAGES:
        for page in sorted(checkout.glob(pattern)):
            found += of_page(str(page.relative_to(checkout)), page.read_text("utf-8"))
    for name in code:
        place = checkout / name
        for module in [place] if place.is_file() else sorted(place.rglob("*.py")):
            found += of_module(str(module.relative_to(checkout)), module.read_text("utf-8"))
    return found


def main() -> int:
    """Print the findings, and return the exit code."""
    found = findings(CHECKOUT, CODE)
    for each in found:
        print(each, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
