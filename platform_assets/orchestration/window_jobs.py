"""Jobs whose run config lists windows: of one topic, for windows that are not partitions, and of a group of topics."""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.untrusted import line, markdown
from platform_assets.orchestration import run_steps
from platform_assets.orchestration.dagster_records import TABLE_TAG
from platform_assets.orchestration.names import (
    earlier_windows_check_op,
    earlier_windows_job,
    earlier_windows_op,
    group_job,
    group_op,
    run_tag,
)
from platform_assets.orchestration.resources import (
    KafkaResource,
    LakeResource,
    RunServices,
    SparkResource,
    read_config,
    values_of,
)


class EarlierWindows(dg.Config):
    """Windows that a run for one topic loads."""

    windows: list[str] = Field(
        description="Keys of sealed windows, such as 2026-01-31-14:05. Exactly these are loaded."
    )
    decode_only: bool = Field(
        default=False,
        description="True if the raw table already has these windows, so that they only have to be decoded.",
    )
    changes_only: bool = Field(
        default=False,
        description="True if the windows are also decoded, so that only their changes have to be made.",
    )


class WindowsOfMany(dg.Config):
    """Windows that a run for a group loads."""

    windows: dict[str, list[str]] = Field(
        description="Keys of sealed windows by topic, such as 2026-01-31-14:05. Exactly these windows are loaded."
    )


def build_listed_windows_job(declaration: TopicDeclaration) -> dg.JobDefinition:
    """Build the job of one topic for windows that are not partitions. Its config lists the windows by their ledger
    keys."""
    topic, table = declaration.topic, declaration.raw_table

    @dg.op(
        name=earlier_windows_op(topic),
        description=markdown(
            f"Loads windows of {table} by their keys in the ledger, and evaluates the table's checks."
        ),
        out=dg.Out(dg.Nothing),
        config_schema=values_of(EarlierWindows),
    )
    def _load(
        context: dg.OpExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> Iterator[Any]:
        config, services = read_config(EarlierWindows, context), RunServices(kafka, lake, spark)
        yield from run_steps.run_listed(
            context,
            [declaration],
            services,
            {topic: config.windows},
            decode_only=config.decode_only,
            changes_only=config.changes_only,
        )
        yield dg.Output(None)

    # Dagster executes a queued run with the steps that its job had when it was queued.
    @dg.op(
        name=earlier_windows_check_op(topic),
        description="Does nothing, because the previous step evaluates the checks. Runs queued by an earlier "
        "release have this step.",
        ins={"loaded": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
    )
    def _checked() -> None: ...

    @dg.job(
        name=earlier_windows_job(topic),
        tags={TABLE_TAG: run_tag(table)},
        description=markdown(
            f"Loads windows of {table} that an earlier schedule sealed and that are no longer partitions. The "
            f"topic's sensor requests this job; for a manual run, list the windows' keys in the run's config."
        ),
    )
    def _job() -> None:
        _checked(_load())

    return _job


def build_group_job(name: str, declarations: Sequence[TopicDeclaration]) -> dg.JobDefinition:
    """Build the job that loads windows of the group `name` in one run. The job's config lists the windows by topic."""
    known = {d.topic: d for d in declarations}

    @dg.op(
        name=group_op(name),
        description=markdown(
            f"Loads windows of the topics in group {name} by their keys in the ledger, and evaluates the topics' checks."
        ),
        out=dg.Out(dg.Nothing),
        config_schema=values_of(WindowsOfMany),
    )
    def _load(
        context: dg.OpExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> Iterator[Any]:
        config, services = read_config(WindowsOfMany, context), RunServices(kafka, lake, spark)
        for topic in sorted(set(config.windows) - set(known)):
            context.log.warning(line(f"topic {topic} is no longer declared, so its windows are skipped"))
        windows = {topic: keys for topic, keys in config.windows.items() if topic in known}
        yield from run_steps.run_listed(context, [known[t] for t in windows], services, windows)
        yield dg.Output(None)

    @dg.job(
        name=group_job(name),
        tags={TABLE_TAG: run_tag(None)},
        description=f"Loads windows of {len(known)} topics, and evaluates the checks of each. Their sensor requests "
        "this job; for a manual run, list the windows' keys by topic in the run's config.",
    )
    def _job() -> None:
        _load()

    return _job
