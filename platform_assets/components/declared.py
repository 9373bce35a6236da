"""The project's declared topics. The code location uses this module, and so do commands that run outside it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

import dagster as dg

from platform_assets.components import yaml_check, yaml_files
from platform_assets.components.left_out import left_out
from platform_assets.components.published_topic import PublishedTopic
from platform_assets.components.topic_table import TopicTable
from platform_assets.components.topic_tables import TopicTables
from platform_assets.components.yaml_check import Declared, Judgement
from platform_assets.components.yaml_files import Mistake
from platform_assets.errors import ConfigurationError, DeclarationsError
from platform_assets.lake.location import Lake
from platform_assets.ledger import cut_ranges
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.logs import logger
from platform_assets.model.publishing import PublishDeclaration
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.orchestration import planning
from platform_assets.services import platform
from platform_assets.services.home import checkout
from platform_assets.services.project import DEFS_VARIABLE
from platform_assets.windows.load import sealing
from platform_assets.windows.load.sealing import StartMovedError

_log = logger(__name__)

_ANY_SCHEDULE: Final = "0 0 * * *"
_PACKAGE: Final = Path(__file__).parents[1]
_MODULE: Final = "platform_defs"
"""Module name under which Python files from a folder outside this package are imported."""


def defs_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that contains the declarations: `PLATFORM_DEFS`, or this package's own `defs`.

    Raises ConfigurationError if the variable holds anything but an absolute path, or if it is not set and the platform
    does not run from a checkout.
    """
    given = (os.environ if environ is None else environ).get(DEFS_VARIABLE)
    if not given:
        return checkout(DEFS_VARIABLE) / _PACKAGE.name / "defs"
    if not Path(given).is_absolute():
        raise ConfigurationError(f"{DEFS_VARIABLE} must be an absolute path of a folder, not {given!r}")
    return Path(given)


def definitions() -> dg.Definitions:
    """Return everything that the definitions folder declares. Return nothing if the folder is empty, because Dagster
    itself refuses an empty folder.

    A topic that cannot be defined together with the other topics is left out: see `judgement`.
    """
    if _is_empty(defs_folder()):
        return dg.Definitions()
    tree = component_tree()
    for component, omitted in _components(tree):
        for why in omitted.values():
            _log.error("%s", why)
        component.leave_out(omitted)
    return tree.build_defs()


def component_tree() -> dg.ComponentTree:
    """Return the component tree of the definitions folder. The tree loads components on demand. Raises
    ConfigurationError."""
    folder = defs_folder()
    if not os.environ.get(DEFS_VARIABLE):
        return dg.ComponentTree.for_project(_PACKAGE)
    if not folder.is_dir():
        raise ConfigurationError(
            f"{DEFS_VARIABLE} points to {folder}, which does not exist: create the folder, or correct the variable"
        )
    spec = ModuleSpec(_MODULE, loader=None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    module = importlib.util.module_from_spec(spec)
    # Dagster finds the folder by the module's path, as that of a package without an `__init__.py`.
    module.__file__ = None
    sys.modules[_MODULE] = module
    return dg.ComponentTree(defs_module=module, project_root=folder.parent)


def judgement(folder: Path | None = None) -> Judgement:
    """Return the declarations in the YAML of the definitions folder, and the mistakes in it. Raises ConfigurationError.

    Variables for the YAML may also be set in the data folder's `platform.env`.
    """
    for name, value in platform.variables().items():
        os.environ.setdefault(name, value)
    where = folder or defs_folder()
    found = yaml_check.judge(where)
    return (
        found
        if _is_case_sensitive(d.declaration.topic for d in found.declared)
        else yaml_check.judge(where, case_sensitive=False)
    )


def mistakes(ledger: Ledger, now: datetime) -> tuple[Mistake, ...]:
    """Return every mistake in the YAML. This includes topics that are declared by name and would start with too many
    windows.

    Raises ConfigurationError.
    """
    found = judgement()
    named = (each for each in found.declared if not each.found)
    return tuple(sorted((*found.mistakes, *too_many_windows(named, ledger, now))))


def moved_starts(ledger: Ledger) -> tuple[Mistake, ...]:
    """Return a mistake for each topic whose `start` lies before the topic's first window, because no window of such a
    topic can be sealed.

    Raises ConfigurationError.
    """
    found: list[Mistake] = []
    for each in judgement().declared:
        try:
            sealing.check_start(each.declaration, ledger)
        except StartMovedError as e:
            found.append(Mistake(each.file, each.start_line, f"start: {e}"))
    return tuple(sorted(found))


def beside(ledger: Ledger, now: datetime) -> tuple[Mistake, ...]:
    """Return notes on single topics. They do not keep the other topics from loading. There is a note on each topic that
    is left out, and on each topic that was found by a pattern and would start with too many windows. Raises
    ConfigurationError."""
    judged = judgement()
    many = too_many_windows((each for each in judged.declared if each.found), ledger, now)
    return tuple(sorted((*judged.left_out, *many)))


def refused_by_dagster() -> str | None:
    """Return the reason why Dagster rejects declarations that are valid; None if it does not reject them. The cause may
    be the project's own Python code."""
    resources = dict.fromkeys(("kafka", "lake", "spark"), dg.ResourceDefinition.hardcoded_resource(None))
    try:
        whole = dg.Definitions.merge(definitions(), dg.Definitions(resources=resources))
        whole.get_repository_def().load_all_definitions()
    except Exception as e:  # noqa: BLE001  the project's own Python runs here
        cause: BaseException = e
        while cause.__cause__ is not None:
            cause = cause.__cause__
        return f"Dagster rejects the definitions, so no topic is loaded: {str(cause).strip() or type(cause).__name__}"
    return None


def too_many_windows(declared: Iterable[Declared], ledger: Ledger, now: datetime) -> tuple[Mistake, ...]:
    """Return a mistake for each topic that would start with too many windows. Topics that already have cuts are not
    included, because they continue from their cuts."""
    over = [(each, text) for each in declared if (text := planning.limit_refusal(each.declaration, now))]
    running = ledger.newest_edges([each.declaration.topic for each, _ in over])
    return tuple(
        Mistake(each.file, each.start_line, f"topic {each.declaration.topic!r}: {text}" if each.found else text)
        for each, text in over
        if each.declaration.topic not in running
    )


def declarations(project: Path | None = None) -> dict[str, TopicDeclaration]:
    """Map each declared topic's name to its declaration. Raises DeclarationsError, which lists every mistake in the
    YAML."""
    tree = component_tree() if project is None else dg.ComponentTree.for_project(project)
    refuse(judgement(tree.defs_module_path).mistakes)
    if _is_empty(tree.defs_module_path):
        return {}
    found: dict[str, TopicDeclaration] = {}
    for component, omitted in _components(tree):
        for d in (c.declaration for c in component.candidates() if c.declaration.topic not in omitted):
            if d.topic in found:
                raise ConfigurationError(f"topic {d.topic!r} is declared twice under defs/: keep one of them")
            found[d.topic] = d
    return dict(sorted(found.items()))


def published() -> dict[str, PublishDeclaration]:
    """Map each published topic's name to its declaration. Raises DeclarationsError, which lists every mistake in the
    YAML."""
    tree = component_tree()
    refuse(judgement(tree.defs_module_path).mistakes)
    if _is_empty(tree.defs_module_path):
        return {}
    found = (each.declaration() for each in tree.get_all_components(of_type=PublishedTopic))
    return {d.topic: d for d in sorted(found, key=lambda d: d.topic)}


def _components(tree: dg.ComponentTree) -> list[tuple[TopicTable | TopicTables, dict[str, str]]]:
    """Return all components that declare topics, each with a mapping from those of its topics that are left out to the
    reasons."""
    components: list[TopicTable | TopicTables] = [
        *tree.get_all_components(of_type=TopicTable),
        *tree.get_all_components(of_type=TopicTables),
    ]
    whose = [(at, candidate) for at, component in enumerate(components) for candidate in component.candidates()]
    case_sensitive = _is_case_sensitive(candidate.declaration.topic for _, candidate in whose)
    omitted: list[dict[str, str]] = [{} for _ in components]
    for number, why in left_out([candidate for _, candidate in whose], case_sensitive=case_sensitive).items():
        at, candidate = whose[number]
        omitted[at][candidate.declaration.topic] = why
    return list(zip(components, omitted, strict=True))


def _is_case_sensitive(topics: Iterable[str]) -> bool:
    """Return True if the lake has a separate folder for each topic, even for names that differ only by case. The lake
    is queried only if there are such names."""
    names = set(topics)
    if len({name.lower() for name in names}) == len(names):
        return True
    root = platform.environment().get("LAKE_ROOT")
    return root is None or Lake.at(root).is_case_sensitive()


def derived_tables() -> dict[DerivedRef, DerivedDeclaration]:
    """Return the declared derived tables. Raises DeclarationsError, which lists every mistake in the YAML."""
    found = judgement()
    refuse(found.mistakes)
    return {
        each.declaration.table: each.declaration for each in sorted(found.derived, key=lambda d: d.declaration.table)
    }


def derived_of(name: str) -> DerivedDeclaration:
    """Return the declaration of a derived table, given as `derived/<name>` or by its name alone. Raises DeclarationsError.
    Raises ConfigurationError, which lists the tables, if the name is unknown."""
    known = derived_tables()
    found = next((d for ref, d in known.items() if name in (ref.name, ref.short)), None)
    if found is None:
        names = ", ".join(ref.name for ref in known)
        raise ConfigurationError(
            f"{name!r} is not a derived table of this project; its derived tables are: {names or 'none'}"
        )
    return found


def patterns() -> list[tuple[Path, TopicTables]]:
    """Return every list of topics that has a pattern, each with the folder of the file that declares it. Raises
    ConfigurationError and DeclarationsError."""
    tree = component_tree()
    refuse(judgement(tree.defs_module_path).mistakes)
    if _is_empty(tree.defs_module_path):
        return []
    lists = (each for each in tree.get_all_components(of_type=TopicTables) if each.pattern is not None)
    return [(each.folder, each) for each in lists]


def _is_empty(folder: Path) -> bool:
    return not any(
        name in yaml_files.NAMES or name.endswith(".py") for _, _, names in os.walk(folder) for name in names
    )


def refuse(found: tuple[Mistake, ...]) -> None:
    """Raise DeclarationsError if mistakes were found."""
    if found:
        raise DeclarationsError([str(m) for m in found])


def table_of(name: str) -> tuple[TopicDeclaration, TableRef]:
    """Return the topic's declaration for a table of any kind, and the table. `name` is the table's name; for a raw
    table, it can also be the topic's name.

    Raises DeclarationsError. Raises ConfigurationError, which lists the tables, if the name is unknown.
    """
    known = declarations()
    named = {t.name: (d, t) for d in known.values() for t in d.tables} | {
        d.topic: (d, d.raw_table) for d in known.values()
    }
    if name not in named:
        names = ", ".join(t.name for d in known.values() for t in d.tables)
        raise ConfigurationError(f"{name!r} is not a table of this project; its tables are: {names or 'none'}")
    return named[name]


def table_held(name: str, ledger: Ledger) -> tuple[TopicDeclaration, TableRef]:
    """Look up a table like `table_of`, but also accept a raw table in the lake whose topic is no longer declared. The
    declaration of such a topic comes from the ledger: it has the topic and the topic's first window boundary, but no
    schedule."""
    known = declarations()
    retired = [t for t in ledger.lake.tables() if t.kind == "raw" and t.topic not in known]
    found = next((t for t in retired if name in (t.name, t.topic)), None)
    if found is None:
        return table_of(name)
    first = cut_ranges.first_edge(ledger, found.topic) or datetime.fromtimestamp(0, UTC)
    return TopicDeclaration(found.topic, _ANY_SCHEDULE, first, paused=True), found


def state_of(name: str) -> tuple[TopicDeclaration, StateDeclaration]:
    """Return the declarations of a topic with a state, given as `state/<topic>`, `state_deleted/<topic>` or by the topic's
    name. Raises DeclarationsError. Raises ConfigurationError, which lists the topics with a state, if there is none."""
    known = declarations()
    for d in known.values():
        if d.state is not None and name in (d.topic, *(table.name for table in d.state_tables)):
            return d, d.state
    names = ", ".join(d.state_tables[0].name for d in known.values() if d.state is not None)
    raise ConfigurationError(
        f"{name!r} is not a topic with `state` in its YAML; the states of this project are: {names or 'none'}"
    )


def derived_or_held(name: str, ledger: Ledger) -> TableRef | DerivedRef | StateRef:
    """Return the declared derived table with the name `derived/<name>`, the table of a declared state, or the table that
    `table_held` finds."""
    if (state := StateRef.parse(name)) is not None:
        state_of(name)
        return state
    if DerivedRef.parse(name) is not None:
        return derived_of(name).table
    return table_held(name, ledger)[1]


def declaration_of(table: str) -> TopicDeclaration:
    """Return the declaration for `table`, which is the name of a raw table or of its topic. Raises DeclarationsError.
    Raises ConfigurationError, which lists the tables, if the name is unknown."""
    known = declarations()
    found = next((d for d in known.values() if table in (d.raw_table.name, d.topic)), None)
    if found is None:
        names = ", ".join(d.raw_table.name for d in known.values())
        raise ConfigurationError(f"{table!r} is not a table of this project; its tables are: {names or 'none'}")
    return found
