"""Operator decisions as Dagster jobs, with the same steps as the commands `accept-loss`, `accept-generation` and so on.

A run cannot ask for confirmation. So a run reports what would be decided and changes nothing, unless it is launched with `dry_run:
false`.
"""

# No postponed annotations here: Dagster reads those of the ops.
from collections.abc import Callable

import dagster as dg
from pydantic import Field

from platform_assets.engines.choice import choose_engine
from platform_assets.errors import ConfigurationError, PlatformError
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.untrusted import line, markdown
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource, read_config, values_of
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.erase.erasure_ranges import parsed_ranges

Declared = Callable[[str], TopicDeclaration]
"""Return the declaration for a topic's name or a raw table's name. Raises ConfigurationError for an unknown name."""
RESOURCES = {"kafka", "lake", "spark"}


class DecisionConfig(dg.Config):
    """The topic, and the author of the decision."""

    topic: str = Field(description="Name of the topic, or of its raw table, such as raw/orders.")
    reason: str = Field(description="Reason; kept in the ledger.")
    by: str | None = Field(
        default=None, description="Author of the decision; kept in the ledger as given, together with the run id."
    )


class AcceptanceConfig(DecisionConfig):
    """The topic, the author, and whether to change anything."""

    dry_run: bool = Field(
        default=True, description="Only report what would be decided. Set it to false to record the decision."
    )


class LossConfig(AcceptanceConfig):
    """Like `AcceptanceConfig`, but with the window."""

    window: str = Field(description="Key of the window, such as 2026-01-31-05:00, in UTC.")


class ParkingConfig(DecisionConfig):
    """Like `DecisionConfig`, but with the windows."""

    windows: list[str] = Field(description="Keys of the windows, such as 2026-01-31-05:00, in UTC.")
    decoded: bool = Field(
        default=False,
        description="True if the windows belong to the decoded table, false if they belong to the raw table.",
    )

    def table(self, deciding: Deciding) -> TableRef:
        """The table that the windows belong to."""
        d = deciding.declaration
        return d.decoded_table if self.decoded else d.raw_table


class ErasureConfig(AcceptanceConfig):
    """Like `AcceptanceConfig`, but with the records to erase. They are specified only by offsets: Dagster keeps run
    configurations, so a key would stay there."""

    offsets: list[str] = Field(
        default=[],
        description="Offsets to erase, as PARTITION:START-END; END is exclusive. If the list is empty, an "
        "interrupted erasure continues.",
    )
    generation: int | None = Field(default=None, description="Generation of the topic's log. Default: the newest.")
    past_versions_expire: bool = Field(
        default=False,
        description="For a bucket that keeps past versions: true if a lifecycle rule eventually deletes these versions.",
    )


def definitions(declared: Declared) -> dg.Definitions:
    """Build the jobs `accept_loss`, `accept_generation`, `accept_cluster`, `park_windows`, `unpark_windows` and `erase_records`."""

    @dg.op(required_resource_keys=RESOURCES, config_schema=values_of(LossConfig))
    def accept_loss_of_window(context: dg.OpExecutionContext) -> None:
        config = read_config(LossConfig, context)
        _decide(context, declared, config, lambda deciding: deciding.loss(config.window))

    @dg.op(required_resource_keys=RESOURCES, config_schema=values_of(AcceptanceConfig))
    def accept_new_log(context: dg.OpExecutionContext) -> None:
        config = read_config(AcceptanceConfig, context)
        _decide(context, declared, config, Deciding.generation)

    @dg.op(required_resource_keys=RESOURCES, config_schema=values_of(AcceptanceConfig))
    def accept_other_cluster(context: dg.OpExecutionContext) -> None:
        config = read_config(AcceptanceConfig, context)
        _decide(context, declared, config, Deciding.continuation)

    @dg.op(required_resource_keys=RESOURCES, config_schema=values_of(ParkingConfig))
    def park_each_window(context: dg.OpExecutionContext) -> None:
        config = read_config(ParkingConfig, context)
        _decide(context, declared, config, lambda deciding: deciding.park(config.windows, config.table(deciding)))

    @dg.op(required_resource_keys=RESOURCES, config_schema=values_of(ParkingConfig))
    def unpark_each_window(context: dg.OpExecutionContext) -> None:
        config = read_config(ParkingConfig, context)
        _decide(context, declared, config, lambda deciding: deciding.unpark(config.windows, config.table(deciding)))

    @dg.op(required_resource_keys=RESOURCES, config_schema=values_of(ErasureConfig))
    def erase_named_records(context: dg.OpExecutionContext) -> None:
        config = read_config(ErasureConfig, context)

        def erase(deciding: Deciding) -> None:
            try:
                offsets = parsed_ranges(config.offsets)
            except ValueError as e:
                raise ConfigurationError(f"offsets: {e}") from e
            deciding.erasure(offsets, (), config.generation, past_versions_expire=config.past_versions_expire)

        _decide(context, declared, config, erase)

    @dg.job(
        description="Erases records by offset, from raw and decoded tables and their old files (as `platform-assets erase` does)."
    )
    def erase_records() -> None:
        erase_named_records()

    @dg.job(
        description="Accepts that offsets of a window will never be loaded (as `platform-assets accept-loss` does)."
    )
    def accept_loss() -> None:
        accept_loss_of_window()

    @dg.job(
        description="Accepts a topic's current log after the topic was recreated or truncated "
        "(as `platform-assets accept-generation` does)."
    )
    def accept_generation() -> None:
        accept_new_log()

    @dg.job(
        description="Accepts another cluster, and confirms that each offset stands for the same record there "
        "(as `platform-assets accept-cluster` does)."
    )
    def accept_cluster() -> None:
        accept_other_cluster()

    @dg.job(description="Parks windows, so that the sensor no longer requests them (as `platform-assets park` does).")
    def park_windows() -> None:
        park_each_window()

    @dg.job(description="Brings parked windows back (as `platform-assets unpark` does).")
    def unpark_windows() -> None:
        unpark_each_window()

    return dg.Definitions(
        jobs=[accept_loss, accept_generation, accept_cluster, park_windows, unpark_windows, erase_records]
    )


def _decide(
    context: dg.OpExecutionContext, declared: Declared, config: DecisionConfig, decide: Callable[[Deciding], object]
) -> None:
    """Carry out a decision. Write each line to the run's log, and all lines to the step's metadata. Raises dg.Failure
    if the decision is refused."""
    kafka: KafkaResource = context.resources.kafka
    lake: LakeResource = context.resources.lake
    spark: SparkResource = context.resources.spark
    messages: list[str] = []

    def report(text: str) -> None:
        context.log.info(line(text))
        messages.append(text)

    dry_run = isinstance(config, AcceptanceConfig) and config.dry_run
    try:
        declaration = declared(config.topic)
        author = Author.of(config.by, config.reason, context.run_id)
        deciding = Deciding(
            declaration,
            Ledger(lake.lake()),
            kafka.cluster,
            kafka.settings,
            lambda: choose_engine(lake.lake(), kafka.settings, spark.session, declaration.engine, spark.remote),
            None if dry_run else author,
            report,
            lambda _: None,
        )
        decide(deciding)
    except PlatformError as e:
        raise dg.Failure(line(e), metadata={"error": type(e).__name__}, allow_retries=False) from e
    if dry_run:
        report("dry run: nothing was changed; launch the job again with `dry_run: false` to record the decision")
    context.add_output_metadata({"said": dg.MetadataValue.md("\n\n".join(map(markdown, messages)))})
