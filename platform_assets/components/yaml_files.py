"""Read the YAML files of a definitions folder as Dagster does: which files it reads, and what is wrong with their form.

A file's tags, depth and size with aliases expanded are checked before its values are made.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from dagster_shared.yaml_utils import parse_yamls_with_source_position
from dagster_shared.yaml_utils.source_position import ValueAndSourcePositionTree

NAMES: Final = ("defs.yaml", "defs.yml", "component.yaml")
"""Names of files that Dagster reads in a folder. If several of these files exist, Dagster reads only the first."""

_FOLDER: Final = "dagster.DefsFolderComponent"
_MOST_VALUES: Final = 100_000
"""Maximum number of values in all documents of a file, with aliases expanded."""
_MOST_LEVELS: Final = 100
_TOO_DEEP: Final = f"its values are nested more than {_MOST_LEVELS} levels deep: use fewer levels"
_CORE: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset(
    _CORE + kind for kind in ("str", "int", "float", "bool", "null", "map", "seq", "merge", "timestamp", "value")
)
"""Supported YAML tags for values; YAML's own reader refuses other families of tags."""
_NAME_TAGS: Final = frozenset(_CORE + kind for kind in ("str", "int", "bool", "merge", "timestamp"))
"""Supported YAML tags for keys: Dagster cannot find values under keys that have other tags."""


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One mistake: `message` contains the problem and the fix; `line` counts from 1."""

    file: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every YAML file below `folder`, whatever its name, in the order of names."""
    for at, folders, files in os.walk(folder):
        # As Dagster does.
        folders[:] = sorted(f for f in folders if f != "__pycache__" and not f.startswith("."))
        yield from (Path(at, name) for name in sorted(files) if name.endswith((".yaml", ".yml")))


def documents_in(file: Path, folder: Path, own: Collection[str]) -> Iterator[ValueAndSourcePositionTree | Mistake]:
    """Yield the documents of a YAML file below `folder`, and the mistakes in its form. `own` are the types of components
    that a file under another name must not declare, because Dagster would not read it."""
    try:
        text = file.read_text(encoding="utf-8")
        roots = [*yaml.compose_all(text, Loader=yaml.SafeLoader)]
        refused = _refused(roots)
        documents = parse_yamls_with_source_position(text, str(file)) if refused is None else []
    except yaml.YAMLError as e:
        if file.name in NAMES:
            yield _syntax(file, e)
        return
    except (OSError, UnicodeDecodeError) as e:
        yield Mistake(
            file, 1, f"it cannot be read as UTF-8 text ({e}): save it as UTF-8, and make it readable for this user"
        )
        return
    except ValueError as e:
        # For example, a tagged number without digits, or with too many digits.
        refused, documents = (1, f"it contains a value that cannot be read ({e}): put the value in quotes"), []
    except RecursionError:
        refused, documents = (1, _TOO_DEEP), []
    if refused is not None:
        if file.name in NAMES:
            yield Mistake(file, *refused)
        return
    if file.name not in NAMES:
        if any(isinstance(d.value, dict) and d.value.get("type") in own for d in documents):
            yield Mistake(
                file, 1, f"Dagster reads only {NAMES[0]}: move this file to {file.with_suffix('')}/{NAMES[0]}"
            )
        return
    if shadow := _shadow(file, folder):
        yield Mistake(
            file,
            1,
            f"it is not loaded, because Dagster reads {shadow} instead: move this file to a folder next to that file's folder",
        )
    if not documents:
        yield Mistake(file, 1, "it declares nothing: add a component, or delete the file")
    yield from documents
    yield from (Mistake(file, line, f"{key!r} is given twice: keep one of them") for key, line in _doubled(roots))


def _syntax(file: Path, error: yaml.YAMLError) -> Mistake:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
    text = (
        f"it is not YAML: {problem or str(error).splitlines()[0]}. Check indentation, colons and quotes up to this line"
    )
    return Mistake(file, 1 if mark is None else mark.line + 1, text)


def _shadow(file: Path, folder: Path) -> Path | None:
    """Return the file that keeps Dagster from reading `file`; None if there is no such file."""
    beside = [file.with_name(name) for name in NAMES[: NAMES.index(file.name)]]
    above = [p / name for p in file.parent.parents if p.is_relative_to(folder) for name in NAMES]
    for other in (*beside, *above):
        if other.is_file() and (other in beside or _FOLDER not in other.read_text(encoding="utf-8", errors="replace")):
            return other
    return None


def _refused(roots: Sequence[yaml.Node]) -> tuple[int, str] | None:
    """If the documents must not be expanded, return the line and the reason; otherwise, return None. With aliases, a
    few lines can expand to more values than fit in memory."""
    sizes: dict[int, int] = {}
    levels: dict[int, int] = {}
    for node in _children_first(roots):
        if node.tag.startswith(_CORE) and node.tag not in _TAGS:
            tag = f"!!{node.tag.removeprefix(_CORE)}"
            return node.start_mark.line + 1, f"the tag {tag!r} is not supported here: leave it out"
        if isinstance(node, yaml.MappingNode):
            for key, _ in node.value:
                if key.tag not in _NAME_TAGS:
                    return key.start_mark.line + 1, f"the key {_shown(key)} is not text: put it in quotes"
        children = _children(node)
        if any(id(child) not in sizes for child in children):
            return node.start_mark.line + 1, "an alias contains itself: write out the value in place of the alias"
        sizes[id(node)] = 1 + sum(sizes[id(child)] for child in children)
        levels[id(node)] = 1 + max((levels[id(child)] for child in children), default=0)
        if levels[id(node)] > _MOST_LEVELS:
            return node.start_mark.line + 1, _TOO_DEEP
        if sizes[id(node)] > _MOST_VALUES:
            text = (
                f"its aliases expand to more than {_MOST_VALUES:,} values: write out the values in place of the aliases"
            )
            return node.start_mark.line + 1, text
    return None


def _shown(key: yaml.Node) -> str:
    return repr(key.value) if isinstance(key, yaml.ScalarNode) else "that begins here"


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _children_first(roots: Sequence[yaml.Node]) -> Iterator[yaml.Node]:
    """Yield each node after the nodes inside it. Each node is yielded only once, even if it has several aliases."""
    begun: set[int] = set()
    waiting = [(root, False) for root in reversed(roots)]
    while waiting:
        node, done = waiting.pop()
        if done:
            yield node
        elif id(node) not in begun:
            begun.add(id(node))
            waiting.append((node, True))
            waiting += [(child, False) for child in _children(node)]


def _doubled(roots: Sequence[yaml.Node]) -> Iterator[tuple[str, int]]:
    """Yield each duplicate key of a mapping, with the line of its second occurrence. YAML's reader silently accepts
    duplicate keys."""
    for node in _children_first(roots):
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, _ in node.value:
                if key.value in seen:
                    yield str(key.value), key.start_mark.line + 1
                seen.add(key.value)
