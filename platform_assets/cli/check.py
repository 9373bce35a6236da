"""`platform-assets check`."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import click

from platform_assets.cli import options
from platform_assets.terminal import echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from platform_assets.cli.environment import Environment
    from platform_assets.kafka.cluster import Cluster
    from platform_assets.model.declaration import TopicDeclaration

JSON_VERSION = 1
_TOPICS_SECONDS = 5.0
_MOST_BUILT = 100
"""Maximum number of topics whose definitions are built; each topic takes about 50 ms."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result for one service or topic. `absent` is not a mistake: the service is neither configured nor started yet."""

    what: str
    state: Literal["answers", "silent", "absent", "missing", "unknown"]
    cause: str | None = None

    @property
    def is_wrong(self) -> bool:
        """True if somebody has to act."""
        return self.state in ("silent", "missing", "unknown")

    def __str__(self) -> str:
        return f"{self.what}: {self.cause or self.state}"


@click.command()
@options.as_json("Print JSON: version, mistakes and warnings (file, line, message), answers.")
def check(as_json: bool) -> None:
    """Check the YAML of all topics, then whether brokers, topics and Spark answer. Nothing is changed.

    Each mistake is printed with file, line and fix. Queries of derived tables are checked against the declared columns
    of the tables that they read. Sums of floating-point numbers are printed as warnings. A topic that cannot be defined
    next to the others is also printed; the other topics are still defined. Services that are neither set in the
    environment nor started by `platform-assets up` are not checked. For a compacted topic with a state, the time after
    which Kafka may remove deletes is printed. If a topic's records name schemas in a registry, the registry must answer
    too.

    Exits 1 if there is a mistake, a topic is missing, or a service does not answer.
    """
    from datetime import UTC, datetime

    from platform_assets.cli.environment import Environment
    from platform_assets.components import declared, query_columns
    from platform_assets.components.yaml_files import Mistake

    environment, now = Environment.of_process(), datetime.now(UTC)
    judged = declared.judgement()
    wrong, warnings = query_columns.examined(judged.derived, judged.declared)
    wrong += query_columns.unpublishable(judged.published, judged.declared, judged.derived)
    mistakes = tuple(sorted((*declared.mistakes(environment.ledger(), now), *wrong)))
    beside = (
        () if mistakes else (*declared.beside(environment.ledger(), now), *declared.moved_starts(environment.ledger()))
    )
    found = {} if mistakes else {d.declaration.topic: d.declaration for d in judged.declared}
    topics = sorted(found)
    if len(topics) <= _MOST_BUILT and not mistakes and (refused := declared.refused_by_dagster()):
        mistakes, topics = (Mistake(declared.defs_folder(), 1, refused),), []
    published = sorted(each.declaration.topic for each in judged.published)
    answers = [] if mistakes else list(_answers(environment, [found[topic] for topic in topics], published))
    if len(topics) > _MOST_BUILT:
        command = "`dagster definitions validate -m platform_assets.definitions`"
        long = (
            f"not checked with Dagster, because that takes a long time for so many topics: to check them, run {command}"
        )
        answers = [Answer("definitions", "absent", long), *answers]
    if as_json:
        listed, warned = (
            [{"file": str(m.file), "line": m.line, "message": m.message} for m in each]
            for each in ((*mistakes, *beside), warnings)
        )
        echo_json({"version": JSON_VERSION, "mistakes": listed, "warnings": warned, "answers": [*map(asdict, answers)]})
    else:
        right = f"topics declared: {', '.join(topics) or 'none'}; "
        if judged.derived:
            right += f"derived tables: {', '.join(sorted(d.declaration.table.short for d in judged.derived))}; "
        right += f"published topics: {', '.join(published)}; " if published else ""
        right += "no mistakes" if not beside else "other topics have mistakes"
        lines: list[object] = [*mistakes, *beside] if mistakes else [right, *beside, *answers]
        lines += [f"warning: {warning}" for warning in warnings]
        for line in lines:
            echo(str(line))
    sys.exit(1 if mistakes or beside or any(a.is_wrong for a in answers) else 0)


def _answers(
    environment: Environment, topics: Iterable[TopicDeclaration], published: Iterable[str]
) -> Iterator[Answer]:
    from platform_assets.cli.answers import broker_silence, spark_silence

    topics = list(topics)
    if not environment.has_broker:
        yield Answer("kafka", "absent", "is not running: `platform-assets up` starts it")
    elif cause := broker_silence(environment):
        yield Answer("kafka", "silent", f"does not answer: {cause}")
    else:
        yield Answer("kafka", "answers")
        yield from _topics(environment, topics, published)
    if not environment.has_spark:
        yield Answer("spark", "absent", "is not running: `platform-assets up` starts it")
    elif cause := spark_silence(environment):
        yield Answer("spark", "silent", f"does not answer: {cause}")
    else:
        yield Answer("spark", "answers")
    by_registry = [d.topic for d in topics if d.decode is not None and d.decode.by_registry]
    if by_registry:
        yield _registry(environment, by_registry)


def _registry(environment: Environment, topics: list[str]) -> Answer:
    """Return the result for the registry, which these topics need."""
    from platform_assets.cli.answers import registry_silence
    from platform_assets.errors import ConfigurationError

    what = "schema registry"
    if not environment.has_registry:
        others = f" (and {len(topics) - 1:,} more)" if len(topics) > 1 else ""
        cause = (
            f"is not running, but topic {topics[0]}{others} cannot be decoded without it: set SCHEMA_REGISTRY_URL, or run "
            "`platform-assets up --registry`"
        )
        return Answer(what, "absent", cause)
    try:
        silence = registry_silence(environment)
    except ConfigurationError as e:
        return Answer(what, "unknown", str(e))
    return Answer(what, "answers") if silence is None else Answer(what, "silent", f"does not answer: {silence}")


def _topics(environment: Environment, topics: Iterable[TopicDeclaration], published: Iterable[str]) -> Iterator[Answer]:
    import time

    from platform_assets.errors import PlatformError, TopicMissingError

    cluster = environment.cluster().with_deadline(time.monotonic() + _TOPICS_SECONDS)
    declared: dict[str, TopicDeclaration | None] = {d.topic: d for d in topics}
    for topic, declaration in (declared | {t: declared.get(t) for t in published}).items():
        what = f"topic {topic}"
        try:
            cluster.topic(topic)
        except TopicMissingError as e:
            yield Answer(what, "missing", str(e))
        except PlatformError as e:
            yield Answer(what, "unknown", str(e))
        else:
            yield Answer(
                what, "answers", None if declaration is None else _lost_deletes(environment, cluster, declaration)
            )


def _lost_deletes(environment: Environment, cluster: Cluster, declaration: TopicDeclaration) -> str | None:
    """Return a note if compaction may remove deletes of a state before they are loaded, with the windows for which that
    may have happened; None if it cannot, or if the topic has no state with deletes."""
    from platform_assets.errors import PlatformError
    from platform_assets.ledger.position import loaded_late
    from platform_assets.model.retention import tombstones_kept
    from platform_assets.orchestration.retention_check import hours_text

    if declaration.state is None or not declaration.state.has_deletes:
        return None
    try:
        kept = tombstones_kept(cluster.topic_config(declaration.topic))
    except PlatformError as e:
        return f"answers. Whether compaction removes tombstones early is not known: {e}"
    if kept is None:
        return None
    topic, late = declaration.topic, loaded_late(environment.ledger(), declaration.raw_table, kept)
    number = "1 window was" if len(late) == 1 else f"{len(late):,} windows were"
    return (
        f"answers. It is compacted, so Kafka may remove a tombstone {hours_text(kept.total_seconds() / 3600)} after it "
        f"was written. If its window is loaded later, the deleted key can stay in state/{topic}. Load windows earlier than "
        "that, or increase the topic's delete.retention.ms. For deleted keys that are in the state, produce their "
        "tombstones again."
    ) + (f" {number} first loaded later than that after it began, for example window {late[-1]}." if late else "")
