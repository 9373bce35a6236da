"""Mutants: small defects in the product that the tests must find.

A seed chooses the mutants among all modules of the product. Each mutant is written into a copy of the checkout, where
the tests of its line run until one fails. Results are lines of JSON in a file; a later call with the same file goes on
where the earlier call ended.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from platform_assets.services import platform
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support.schedule import recorded
from testbed.homes import home_at

PRODUCT: Final = "platform_assets"
TESTS: Final = "platform_assets_tests"
WITHOUT_SERVICES: Final = "not (broker or spark or alone or browser or soak or cluster)"
WITH_SERVICES: Final = "(broker or spark or alone or browser) and not (soak or cluster)"

Outcome = Literal["killed", "survived", "timeout", "no tests"]

_NEGATED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip
_MOVED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module. `module` is relative to the checkout. The change replaces the bytes from `start` to `end`,
    which is exclusive."""

    module: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int

    def of(self, source: bytes) -> bytes:
        """Return the module's source with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a mutant. `killer` is the test that failed first. `complete` is False if the limit of seconds left
    tests out; `seconds` is the time that the tests took."""

    mutant: Mutant
    outcome: Outcome
    killer: str | None
    tests: int
    complete: bool
    seconds: float


# --- mutants --------------------------------------------------------------------------------------------------------


def mutants_of(module: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines. Texts, annotations and imports have none."""
    starts = [0]
    for line in source.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    found = []
    for node, kind, after in _changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        found.append(Mutant(module, node.lineno, kind, source[start:end].decode(), after, start, end))
    return sorted(found, key=lambda m: (m.start, m.end, m.kind, m.after))


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _changes(node: ast.AST) -> Iterator[tuple[Any, str, str]]:
    """Yield each node that can change below `node`, the kind of the change, and the new source of the node."""
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        # Nodes inside of a formatted text have no exact position before Python 3.12.
        return
    if isinstance(node, ast.expr):
        yield from ((node, kind, f"({ast.unparse(changed)})") for kind, changed in _expressions(node))
    elif isinstance(node, ast.stmt):
        yield from _statements(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (
                isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            ):
                yield from _changes(child)


def _expressions(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(left, [op], others):
            yield "comparison", ast.Compare(left, [_NEGATED[type(op)]()], others)
            if type(op) in _MOVED:
                yield "boundary", ast.Compare(left, [_MOVED[type(op)]()], others)
        case ast.BoolOp(op, values):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "boolean", operand
        case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC and not (_is_text(left) or _is_text(right)):
            yield "arithmetic", ast.BinOp(left, _ARITHMETIC[type(op)](), right)
        case ast.Constant(bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.IfExp(test, body, other):
            yield "swapped branch", ast.IfExp(test, other, body)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _statements(node: ast.stmt) -> Iterator[tuple[Any, str, str]]:
    match node:
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
            yield node, "removed statement", "pass"
        case ast.If(test):
            yield test, "swapped branch", f"(not ({ast.unparse(test)}))"
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            yield node, "return value", "return None"


def chosen(root: Path, seed: int, count: int, module: str | None = None) -> list[Mutant]:
    """Return `count` different mutants, or all of them if there are fewer. A module is as likely as its number of lines.
    The first mutants of a seed do not depend on `count`."""
    paths = sorted(p.relative_to(root).as_posix() for p in (root / PRODUCT).rglob("*.py"))
    sources = {path: (root / path).read_bytes() for path in paths if module is None or path == module}
    if not sources:
        raise ValueError(f"there is no module {module!r}: give a path below the checkout, such as {paths[-1]}")
    weights = {path: source.count(b"\n") for path, source in sources.items() if source.strip()}
    left: dict[str, list[Mutant]] = {}
    rng = random.Random(seed)
    made: list[Mutant] = []
    while weights and len(made) < count:
        (path,) = rng.choices(list(weights), list(weights.values()))
        if path not in left:
            left[path] = mutants_of(path, sources[path])
        if not left[path]:
            del weights[path]
            continue
        mutant = left[path].pop(rng.randrange(len(left[path])))
        if _compiles(mutant.of(sources[path])):
            made.append(mutant)
    return made


# --- tests of a mutant --------------------------------------------------------------------------------------------------


class Selection:
    """Tests that can find a mutant, the shortest first.

    With a coverage file that has a context for each test (`--cov-context=test`), these are the tests that execute the
    mutant's line in the test process. Without one, or for a line that none executes there, these are the files of tests
    that import the module or have its name, and after these those of the modules that import it.
    """

    def __init__(self, root: Path, coverage: Path | None) -> None:
        self._root = root
        self._seconds = recorded()
        self._files = _texts(root / TESTS, "test_*.py", root)
        self._modules = _texts(root / PRODUCT, "*.py", root)
        self._data: Any = None
        if coverage is not None:
            from coverage import CoverageData

            self._data = CoverageData(str(coverage))
            self._data.read()

    def of(self, mutant: Mutant) -> list[str]:
        if covering := self._covering(mutant):
            return self._sorted(covering)
        found, modules, known = list[str](), {mutant.module}, {mutant.module}
        while modules:
            found += self._sorted(self._importing(modules).difference(found))
            modules = self._above(modules) - known
            known |= modules
        return found

    def _sorted(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds([test]), test))

    def seconds(self, tests: Sequence[str]) -> float:
        """Return the seconds that the files of these tests are expected to take."""
        return sum(self._seconds.get(file, 2.0) for file in {test.partition("::")[0] for test in tests})

    def _covering(self, mutant: Mutant) -> set[str]:
        if self._data is None:
            return set()
        contexts: dict[int, list[str]] = defaultdict(list)
        for file in self._data.measured_files():
            if file.endswith(f"/{mutant.module}"):
                contexts.update(self._data.contexts_by_lineno(file))
        names = {re.sub(r"(@[^|@]*)?\|\w+$", "", context) for context in contexts[mutant.line] if context}
        return {name for name in names if name.partition("::")[0] in self._files}

    def _importing(self, modules: Collection[str]) -> set[str]:
        needles = [_import_of(module) for module in modules]
        named = {re.sub(rf"^{PRODUCT}/(.*/)?", rf"{TESTS}/\1test_", module) for module in modules}
        return {
            file
            for file, text in self._files.items()
            if file in named or any(needle.search(text) for needle in needles)
        }

    def _above(self, modules: Collection[str]) -> set[str]:
        needles = [_import_of(module) for module in modules]
        return {module for module, text in self._modules.items() if any(n.search(text) for n in needles)}


def _texts(folder: Path, pattern: str, root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in folder.rglob(pattern)}


def _import_of(module: str) -> re.Pattern[str]:
    """Return a pattern that finds imports of a module, also if its name is in a list of several lines."""
    dotted = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = dotted.rpartition(".")
    several = rf"from {re.escape(package)} import (?:\([^)]*|[^\n(]*)\b{re.escape(name)}\b"
    return re.compile(rf"{re.escape(dotted)}\b|{several}")


def copied(root: Path, to: Path) -> None:
    """Copy the files of the checkout that Git knows, or would add, to a new folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, check=True,
    ).stdout  # fmt: skip
    shutil.rmtree(to, ignore_errors=True)
    for name in filter(None, listed.decode().split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def tried(mutant: Mutant, copy: Path, tests: Selection, marks: str, most: float) -> Result:
    """Write a mutant into the copy, and run its tests until one fails: those without services first. `most` is the
    expected number of seconds after which further tests are left out. Restore the module."""
    path = copy / mutant.module
    source = path.read_bytes()
    every = tests.of(mutant)
    some = [test for n, test in enumerate(every) if n == 0 or tests.seconds(every[: n + 1]) <= most]
    started, ran, killer, outcome = time.monotonic(), 0, None, None
    path.write_bytes(mutant.of(source))
    try:
        for expression in (WITHOUT_SERVICES, WITH_SERVICES):
            if some and outcome is None:
                outcome, killer, passed = _run(copy, some, f"({expression}) and ({marks})", tests.seconds(some))
                ran += passed
    finally:
        path.write_bytes(source)
    if outcome is None:
        outcome = "survived" if ran else "no tests"
    return Result(mutant, outcome, killer, ran, len(some) == len(every), round(time.monotonic() - started, 1))


def _run(copy: Path, tests: Sequence[str], marks: str, seconds: float) -> tuple[Outcome | None, str | None, int]:
    """Run tests until one fails. Return the outcome, or None if all passed, the test that failed, and the number of tests
    that ran."""
    base, arguments = copy.parent / "pytest", copy.parent / "tests.txt"
    arguments.write_text("".join(f"{test}\n" for test in tests))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-n", "0"]
    command += ["--basetemp", str(base), "-m", marks, f"@{arguments}"]
    with subprocess.Popen(
        command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTEST_ADDOPTS": ""},
    ) as process:  # fmt: skip
        try:
            # A mutant can make a test wait for ever. Nothing but that takes so much longer than before.
            text, _ = process.communicate(timeout=600 + 10 * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            platform.down(home_at(base / "platform home"), report=lambda _: None)
            return "timeout", None, 0
    ran = sum(int(n) for n in re.findall(r"(\d+) (?:passed|failed|error)", text.rpartition("\n")[0] + text[-200:])[-3:])
    if process.returncode in (0, 5):
        return None, None, ran
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", text, re.MULTILINE)
    return "killed", failed[1] if failed else text.strip().rpartition("\n")[2], max(ran, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutants, and print a line for each. Return 0 if none survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--tests", choices=("test", "test-all"), default="test", help="also run tests marked `long`")
    parser.add_argument("--module", help="mutate this module alone, such as platform_assets/model/windows.py")
    parser.add_argument("--coverage", type=Path, help="coverage file with a context for each test")
    parser.add_argument("--seconds", type=float, default=300.0, help="expected seconds of the tests of one mutant")
    parser.add_argument("--results", type=Path, default=CHECKOUT / ".platform" / "mutants" / "results.jsonl")
    given = parser.parse_args(arguments)
    copy = given.results.parent / "checkout"
    copied(CHECKOUT, copy)
    known = set()
    if given.results.exists():
        known = {json.dumps(json.loads(line)["mutant"]) for line in given.results.read_text().splitlines()}
    tests, survived = Selection(CHECKOUT, given.coverage), 0
    for number, mutant in enumerate(chosen(CHECKOUT, given.seed, given.count, given.module), 1):
        if json.dumps(asdict(mutant)) in known:
            continue
        result = tried(mutant, copy, tests, "not long" if given.tests == "test" else "long or not long", given.seconds)
        with given.results.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        survived += result.outcome == "survived"
        print(
            f"{number} {result.outcome} in {result.seconds} s: {mutant.module}:{mutant.line} {mutant.kind}: "
            f"{mutant.before!r} became {mutant.after!r}; {result.killer or f'{result.tests} tests'}",
            flush=True,
        )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
