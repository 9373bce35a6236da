"""The job that loads windows which are no partitions of today's schedule, because an earlier one sealed them.

Dagster names a run's windows by partitions of the schedule that it knows. This job's run names them by their keys in the
ledger, in its config; what it does with them is what any run does.
"""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from platform_assets.checks.registry import CHECKS
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.untrusted import line, markdown
from platform_assets.orchestration import decode_runs, decoded_checks, load_runs, runs
from platform_assets.orchestration.names import (
    earlier_windows_check_op,
    earlier_windows_job,
    earlier_windows_op,
    run_tag,
)
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.orchestration.run_config import read, values_of


class EarlierWindows(dg.Config):
    """Which windows a run loads."""

    windows: list[str] = Field(
        description="Keys of sealed windows, such as 2026-01-31-14:05: each is loaded, and no other."
    )
    decode_only: bool = Field(
        default=False, description="Whether the raw table has them already, so that they are decoded and not loaded."
    )


def build_job(declaration: TopicDeclaration) -> dg.JobDefinition:
    """The job of one topic. It loads the windows that its config names, and evaluates the checks of each load."""
    topic, table = declaration.topic, declaration.raw_table

    @dg.op(
        name=earlier_windows_op(topic),
        description=markdown(f"Loads windows of {table} by their keys in the ledger."),
        out=dg.Out(dg.Nothing),
        config_schema=values_of(EarlierWindows),
    )
    def _load(
        context: dg.OpExecutionContext,
        kafka: KafkaResource,
        lake: LakeResource,
        spark: SparkResource,
    ) -> None:
        config = read(EarlierWindows, context)
        if not config.decode_only:
            done = load_runs.load(context, declaration, config.windows, kafka, lake, spark)
            load_runs.report(context, declaration, str(lake.lake().table(table)), done)
        if declaration.decode is not None:
            decoded_now = decode_runs.decode(context, declaration, config.windows, lake, spark)
            for event in decode_runs.events(declaration, decoded_now, lake.lake()):
                context.log_event(event)

    @dg.op(
        name=earlier_windows_check_op(topic),
        description=markdown(f"Evaluates the checks of {table}."),
        ins={"loaded": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
    )
    def _evaluate(
        context: dg.OpExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> Iterator[Any]:
        evaluation = load_runs.evaluation(context, declaration, kafka, lake, spark, counting=CHECKS.values())
        blocking: list[str] = []
        for event, blocks in load_runs.judged(evaluation):
            yield event
            blocking += [event.check_name] if blocks else []
        if declaration.decode is not None:
            of_run = sorted(runs.named_by(context.run, evaluation.ledger.edges(topic)[:-1])) or None
            for event, blocks in decoded_checks.judged(
                declaration, declaration.decode, evaluation.ledger, context.instance, of_run, context.run.run_id
            ):
                yield event
                blocking += [event.check_name] if blocks else []
        if blocking:
            raise dg.Failure(line(f"checks failed: {', '.join(blocking)}"), allow_retries=False)
        yield dg.Output(None)

    @dg.job(
        name=earlier_windows_job(topic),
        tags={runs.TABLE_TAG: run_tag(table)},
        description=markdown(
            f"Loads windows of {table} that an earlier schedule sealed and that are no partitions any more. The "
            "topic's sensor asks for it; by hand, its config names windows by their keys."
        ),
    )
    def _job() -> None:
        _evaluate(_load())

    return _job
