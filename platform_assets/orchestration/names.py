"""Asset keys and Dagster names, derived from a topic's name and an optional prefix of the code location.

Two lakes in one Dagster instance may have topics with the same name. The prefix keeps their asset keys, sensor names
and run tags apart. Paths in the lake and entries of the ledger have no prefix.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from typing import Final

import dagster as dg

from platform_assets.checks import changes as checks_of_changes
from platform_assets.checks import decoded as checks
from platform_assets.checks import state as checks_of_state
from platform_assets.checks.registry import CHECKS
from platform_assets.errors import ConfigurationError
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.derived import DerivedRef
from platform_assets.model.names import catalogue_name, identifier
from platform_assets.model.tables import KINDS, RESERVED_KINDS, STATE_KINDS, StateRef, TableRef

LOAD_ID: Final = "load_id"
OUTCOME: Final = "outcome"
"""Keys of a materialization's metadata."""

PREFIX_VARIABLE: Final = "PLATFORM_ASSET_PREFIX"
"""Prefix of each asset key of a code location, such as `plant` or `plant/north`. None by default."""
_PREFIX: Final = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*")
_SOURCE: Final = "kafka"
_TAKEN: Final = (*KINDS, *RESERVED_KINDS, *STATE_KINDS[1:], "published")
_MANY: Final = "many"
STATE_TAG: Final = "platform_assets/state"
"""Tag of the runs that fold changes into a state."""


def key_prefix() -> tuple[str, ...]:
    """Return the parts of the prefix from this process's environment. Raises ConfigurationError."""
    given = os.environ.get(PREFIX_VARIABLE)
    if not given:
        return ()
    parts = tuple(given.split("/"))
    if not _PREFIX.fullmatch(given) or not {_SOURCE, _MANY, *_TAKEN}.isdisjoint(parts):
        raise ConfigurationError(
            f"{PREFIX_VARIABLE} is {given!r}: give one name, or several separated by /. Names consist of "
            "letters, digits and underscores, and none can be "
            f"{_SOURCE}, {_MANY}, {', '.join(_TAKEN[:-1])} or {_TAKEN[-1]}. Or unset the variable"
        )
    return parts


def is_own(key: dg.AssetKey) -> bool:
    """Return True if an asset is a topic or a table under this process's prefix. Raises ConfigurationError."""
    return tuple(key.path[:-2]) == key_prefix() and len(key.path) > 1 and key.path[-2] in (_SOURCE, *KINDS)


def topic_key(topic: str) -> dg.AssetKey:
    """Return the key of the external source asset. Raises ConfigurationError."""
    return dg.AssetKey([*key_prefix(), _SOURCE, topic])


def table_key(table: TableRef | StateRef) -> dg.AssetKey:
    """Return the key of a lake table. Raises ConfigurationError."""
    return dg.AssetKey([*key_prefix(), *table.parts])


def run_tag(table: TableRef | None) -> str:
    """Return the value of a run's tag for the table into which the run loads windows. Without a `table`, the run loads
    windows into many tables. Raises ConfigurationError."""
    return "/".join((*key_prefix(), _MANY if table is None else table.name))


def read_run_tag(tag: str) -> tuple[tuple[str, ...], TableRef | None]:
    """Parse such a tag, of any code location, into prefix and table. The table is None if the tag stands for many
    tables.

    Raises ConfigurationError for any other string.
    """
    *prefix, kind, topic = ("", *tag.split("/"))
    if topic == _MANY and kind not in KINDS:
        return tuple(tag.split("/")[:-1]), None
    return tuple(prefix[1:]), TableRef.parse(f"{kind}/{topic}")


def sensor_name(topic: str, together: str | None = None) -> str:
    """Return the name of a topic's sensor. All topics of the group `together` share one sensor."""
    own = f"{identifier(topic)}_windows" if together is None else f"{together}_together_windows"
    # `status` finds Dagster's record of a sensor by name only, in any code location.
    return "__".join((*key_prefix(), own))


def group_job(name: str) -> str:
    """Return the name of the job that loads windows of this group."""
    return f"{name}_together_load"


def group_op(name: str) -> str:
    """Return the name of the op of the group's job. The op's config lists the windows."""
    return f"{group_job(name)}_op"


# Suffixes of op and job names. No suffix ends with another one, so different topics always have different names.


def load_op(topic: str) -> str:
    """Return the name of the op that loads the topic's raw table."""
    return f"{identifier(topic)}_raw_table"


def decode_op(topic: str) -> str:
    """Return the name of the op that decodes the topic."""
    return f"{identifier(topic)}_decode"


def changes_op(topic: str) -> str:
    """Return the name of the op that makes the topic's changes."""
    return f"{identifier(topic)}_make_changes"


def changes_checks_op(topic: str) -> str:
    """Return the name of the op that evaluates the checks of the table of changes."""
    return f"{identifier(topic)}_checks_changes"


def fold_op(topic: str) -> str:
    """Return the name of the op that folds changes into the topic's state."""
    return f"{identifier(topic)}_fold_state"


def fold_job(topic: str) -> str:
    """Return the name of the job that folds changes into the topic's state."""
    return f"{identifier(topic)}_fold"


def state_checks_op(topic: str) -> str:
    """Return the name of the op that evaluates the checks of the topic's state."""
    return f"{identifier(topic)}_checks_state"


def checks_op(topic: str) -> str:
    """Return the name of the op that evaluates the raw table's checks."""
    return f"{identifier(topic)}_checks"


def decoded_checks_op(topic: str) -> str:
    """Return the name of the op that evaluates the decoded tables' checks."""
    return f"{identifier(topic)}_checks_decoded"


def deep_audit_op(topic: str) -> str:
    """Return the name of the op of the deep audit."""
    return f"{identifier(topic)}_deep_audit_check"


def deep_audit_job(topic: str) -> str:
    """Return the name of the job of the deep audit."""
    return f"{identifier(topic)}_deep_audit"


def deep_audit_schedule(topic: str) -> str:
    """Return the name of the schedule of the deep audit."""
    return f"{deep_audit_job(topic)}_schedule"


def load_job(topic: str) -> str:
    """Return the name of the job with which the topic's sensor loads windows that are partitions."""
    return f"{identifier(topic)}_load"


def assets_job(d: TopicDeclaration) -> str:
    """Return the name of the job with which the topic's sensor loads partitions, whether or not the topic is in a
    group. A group has one such job for each schedule. It loads windows that the runs of the group's own job do not
    load.

    One job per topic would mean thousands of jobs, which take minutes to load. All partitions in a job have the same
    definition.
    """
    if d.together is None:
        return load_job(d.topic)
    partitions = f"{d.schedule} from {d.first_edge.isoformat()}"
    return f"{d.together}_together_assets_{sha256(partitions.encode()).hexdigest()[:6]}"


def earlier_windows_job(topic: str) -> str:
    """Return the name of the job that loads all windows that are not partitions."""
    return f"{identifier(topic)}_earlier_windows"


def earlier_windows_op(topic: str) -> str:
    """Return the name of the op of the job `earlier_windows_job`. The op's config lists the windows."""
    return f"{earlier_windows_job(topic)}_load_op"


def earlier_windows_check_op(topic: str) -> str:
    """Return the name of the op of the job `earlier_windows_job` that evaluates the checks."""
    return f"{earlier_windows_job(topic)}_check_op"


def catalogue_table(table: TableRef | DerivedRef | StateRef) -> tuple[str, str]:
    """Return the schema and the name of a table for a catalog. They are unique even if the catalog ignores case."""
    if isinstance(table, DerivedRef):
        return table.parts
    return table.kind, catalogue_name(table.topic)


def all_names(d: TopicDeclaration) -> frozenset[str]:
    """Return every name that must be unique among the topics of a code location. Each name is prefixed with its kind,
    for example `sensor `."""
    topic = d.topic
    ops = [
        load_op,
        decode_op,
        changes_op,
        checks_op,
        decoded_checks_op,
        changes_checks_op,
        fold_op,
        state_checks_op,
        deep_audit_op,
        earlier_windows_op,
        earlier_windows_check_op,
    ]
    jobs = [load_job, earlier_windows_job, deep_audit_job, fold_job]
    # Dagster has one namespace for ops and jobs and one for sensors and schedules.
    own = {f"op or job {name(topic)}" for name in (*ops, *jobs)}
    own |= {f"sensor {sensor_name(topic)}", f"schedule {deep_audit_schedule(topic)}"}
    return frozenset(own | {f"catalogue table {catalogue_name(topic)}"})


def tables_of(declaration: TopicDeclaration) -> list[dg.AssetKey]:
    """Return the assets of a topic that one run loads: its raw table and the derived tables."""
    raw = [table_key(declaration.raw_table)]
    return raw if declaration.decode is None else raw + decoded_keys(declaration)


def decoded_keys(declaration: TopicDeclaration) -> list[dg.AssetKey]:
    """Return the tables derived from the raw table."""
    return [table_key(table) for table in declaration.tables if table.kind != "raw"]


def check_keys(declaration: TopicDeclaration) -> list[dg.AssetCheckKey]:
    """Return the checks of the decoded tables; none if the topic is not decoded."""
    if declaration.decode is None:
        return []
    names = (*checks.NAMES, *(e.name for e in declaration.decode.expect))
    return [dg.AssetCheckKey(table_key(declaration.decoded_table), name) for name in names]


def changes_check_keys(declaration: TopicDeclaration) -> list[dg.AssetCheckKey]:
    """Return the checks of the table of changes; none if the topic has no state."""
    if declaration.state is None:
        return []
    return [dg.AssetCheckKey(table_key(declaration.changes_table), name) for name in checks_of_changes.NAMES]


def state_tag(declaration: TopicDeclaration) -> str:
    """Return the value of `STATE_TAG` of runs that fold the topic's state. Raises ConfigurationError."""
    return "/".join((*key_prefix(), f"{STATE_KINDS[0]}/{declaration.topic}"))


def state_keys(declaration: TopicDeclaration) -> list[dg.AssetKey]:
    """Return the tables of the topic's state, which have no partitions; none if it has no state."""
    return [table_key(table) for table in declaration.state_tables]


def state_check_keys(declaration: TopicDeclaration) -> list[dg.AssetCheckKey]:
    """Return the checks of the topic's state; none if it has no state."""
    keys = state_keys(declaration)
    found = [dg.AssetCheckKey(key, name) for key in keys[:1] for name in checks_of_state.NAMES]
    return found + [dg.AssetCheckKey(key, checks_of_state.HISTORY) for key in keys[2:]]


def blocking_state(declaration: TopicDeclaration) -> list[dg.AssetCheckKey]:
    """Return the checks of the table of changes that block the topic's state while the checks fail."""
    return [dg.AssetCheckKey(table_key(declaration.changes_table), checks_of_changes.CONSERVATION)]


def blocking_changes(declaration: TopicDeclaration) -> list[dg.AssetCheckKey]:
    """Return the checks of the decoded tables that block the table of changes while the checks fail."""
    if declaration.decode is None:
        return []
    names = (*checks.NAMES, *(e.name for e in declaration.decode.expect if e.severity == "error"))
    return [dg.AssetCheckKey(table_key(declaration.decoded_table), name) for name in names]


def blocking_keys(declaration: TopicDeclaration) -> list[dg.AssetCheckKey]:
    """Return the checks of the raw table that block derived tables while the checks fail."""
    return [dg.AssetCheckKey(table_key(declaration.raw_table), c.name) for c in CHECKS.values() if c.blocking]
