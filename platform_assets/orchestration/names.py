"""Asset keys and Dagster names that follow from a topic's name, and from the prefix that a code location may have.

Two lakes in one Dagster may have topics of the same name. The prefix keeps apart all by which one is known there: asset keys, the
sensors' names and the tag of runs. Paths in the lake and entries of the ledger have none.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from typing import Final, get_args

import dagster as dg

from platform_assets.checks import decoded as checks
from platform_assets.checks.registry import CHECKS
from platform_assets.errors import ConfigurationError
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.names import catalogue_name, identifier
from platform_assets.model.tables import TableKind, TableRef

LOAD_ID: Final = "load_id"
OUTCOME: Final = "outcome"
"""Keys of a materialisation's metadata."""

PREFIX_VARIABLE: Final = "PLATFORM_ASSET_PREFIX"
"""`plant`, or `plant/north`: what stands before each asset key of a code location. None by default."""
_PREFIX: Final = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*")
_SOURCE: Final = "kafka"
_KINDS: Final = get_args(TableKind)
_MANY: Final = "many"


def key_prefix() -> tuple[str, ...]:
    """The parts of the prefix of this process's environment. Raises ConfigurationError."""
    given = os.environ.get(PREFIX_VARIABLE)
    if not given:
        return ()
    parts = tuple(given.split("/"))
    if not _PREFIX.fullmatch(given) or not {_SOURCE, _MANY, *_KINDS}.isdisjoint(parts):
        raise ConfigurationError(
            f"{PREFIX_VARIABLE} is {given!r}: give a name of letters, digits and underscores, or several with / between them, none of "
            f"which is {_SOURCE}, {_MANY}, {', '.join(_KINDS[:-1])} or {_KINDS[-1]}; or unset it"
        )
    return parts


def is_own(key: dg.AssetKey) -> bool:
    """Whether an asset is a topic or a table under the prefix of this process's environment. Raises ConfigurationError."""
    return tuple(key.path[:-2]) == key_prefix() and len(key.path) > 1 and key.path[-2] in (_SOURCE, *_KINDS)


def topic_key(topic: str) -> dg.AssetKey:
    """Key of the external source asset. Raises ConfigurationError."""
    return dg.AssetKey([*key_prefix(), _SOURCE, topic])


def table_key(table: TableRef) -> dg.AssetKey:
    """Key of a lake table. Raises ConfigurationError."""
    return dg.AssetKey([*key_prefix(), *table.parts])


def run_tag(table: TableRef | None) -> str:
    """What a run's tag says of the table that it loads windows into; without a `table`, of many. Raises ConfigurationError."""
    return "/".join((*key_prefix(), _MANY if table is None else table.name))


def read_run_tag(tag: str) -> tuple[tuple[str, ...], TableRef | None]:
    """The prefix and the table that such a tag names, whatever code location it is of; no table where it is of many.

    Raises ConfigurationError for any other text.
    """
    *prefix, kind, topic = ("", *tag.split("/"))
    if topic == _MANY and kind not in _KINDS:
        return tuple(tag.split("/")[:-1]), None
    return tuple(prefix[1:]), TableRef.parse(f"{kind}/{topic}")


def sensor_name(topic: str, together: str | None = None) -> str:
    """The name of a topic's sensor, which is that of all topics that are `together` under one name."""
    own = f"{identifier(topic)}_windows" if together is None else f"{together}_together_windows"
    # By its name alone `status` finds what Dagster has on record of a sensor, whatever code location it is of.
    return "__".join((*key_prefix(), own))


def group_job(name: str) -> str:
    """The job that loads windows of topics which are together under this name."""
    return f"{name}_together_load"


def group_op(name: str) -> str:
    """The op of that job whose config names the windows."""
    return f"{group_job(name)}_op"


# Ends of names of ops and jobs, none of which is the end of another one: different topics then have different names throughout.


def load_op(topic: str) -> str:
    """The op that loads the topic's raw table."""
    return f"{identifier(topic)}_raw_table"


def decode_op(topic: str) -> str:
    """The op that decodes it."""
    return f"{identifier(topic)}_decode"


def checks_op(topic: str) -> str:
    """The op that evaluates the checks of the raw table."""
    return f"{identifier(topic)}_checks"


def decoded_checks_op(topic: str) -> str:
    """The op that evaluates those of the decoded tables."""
    return f"{identifier(topic)}_checks_decoded"


def deep_audit_op(topic: str) -> str:
    """The op of the deep audit."""
    return f"{identifier(topic)}_deep_audit_check"


def deep_audit_job(topic: str) -> str:
    """The job of the deep audit."""
    return f"{identifier(topic)}_deep_audit"


def deep_audit_schedule(topic: str) -> str:
    """The schedule of that job."""
    return f"{deep_audit_job(topic)}_schedule"


def load_job(topic: str) -> str:
    """The job by which the topic's sensor has windows loaded that are partitions."""
    return f"{identifier(topic)}_load"


def assets_job(d: TopicDeclaration) -> str:
    """The same of any topic. Those that are together have one for each schedule, for what is not done by runs of many.

    A job a topic would be thousands, which take minutes to load; and a job has partitions of one kind.
    """
    if d.together is None:
        return load_job(d.topic)
    partitions = f"{d.schedule} from {d.first_edge.isoformat()}"
    return f"{d.together}_together_assets_{sha256(partitions.encode()).hexdigest()[:6]}"


def earlier_windows_job(topic: str) -> str:
    """The job by which it has all others loaded."""
    return f"{identifier(topic)}_earlier_windows"


def earlier_windows_op(topic: str) -> str:
    """The op of that job whose config names the windows."""
    return f"{earlier_windows_job(topic)}_load_op"


def earlier_windows_check_op(topic: str) -> str:
    """The op of that job that evaluates the checks."""
    return f"{earlier_windows_job(topic)}_check_op"


def catalogue_table(table: TableRef) -> tuple[str, str]:
    """Schema and name by which a catalogue knows a table, also one that does not tell case."""
    return table.kind, catalogue_name(table.topic)


def all_names(d: TopicDeclaration) -> frozenset[str]:
    """Every name that no other topic of a code location may have: those of sensors begin with `sensor `, and so on."""
    topic = d.topic
    ops = [
        load_op,
        decode_op,
        checks_op,
        decoded_checks_op,
        deep_audit_op,
        earlier_windows_op,
        earlier_windows_check_op,
    ]
    jobs = [load_job, earlier_windows_job, deep_audit_job]
    # Dagster keeps ops and jobs apart from sensors and schedules, and in each of the two no name is there twice.
    own = {f"op or job {name(topic)}" for name in (*ops, *jobs)}
    own |= {f"sensor {sensor_name(topic)}", f"schedule {deep_audit_schedule(topic)}"}
    return frozenset(own | {f"catalogue table {catalogue_name(topic)}"})


def tables_of(declaration: TopicDeclaration) -> list[dg.AssetKey]:
    """The assets of a topic that one run loads: its raw table, and those that are made from it."""
    raw = [table_key(declaration.raw_table)]
    return raw if declaration.decode is None else raw + decoded_keys(declaration)


def decoded_keys(declaration: TopicDeclaration) -> list[dg.AssetKey]:
    """Those that are made from the raw table."""
    return [table_key(declaration.decoded_table), table_key(declaration.dead_letter_table)]


def check_keys(declaration: TopicDeclaration) -> list[dg.AssetCheckKey]:
    """The checks of decoded tables; none where nothing is decoded."""
    if declaration.decode is None:
        return []
    names = (*checks.NAMES, *(e.name for e in declaration.decode.expect))
    return [dg.AssetCheckKey(table_key(declaration.decoded_table), name) for name in names]


def blocking_keys(declaration: TopicDeclaration) -> list[dg.AssetCheckKey]:
    """The checks of the raw table that hold back what is made from it while they fail."""
    return [dg.AssetCheckKey(table_key(declaration.raw_table), c.name) for c in CHECKS.values() if c.blocking]
