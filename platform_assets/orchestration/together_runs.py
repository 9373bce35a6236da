"""The job that loads windows of many topics in one run: each topic's are materialised and checked as by a run of its own.

Its config names the windows of each topic by their keys in the ledger. A topic that fails holds up no other: what failed is
written on the run, topic by topic, for the sensor, which asks for it again.
"""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from pydantic import Field

from platform_assets.checks.registry import CHECKS
from platform_assets.checks.report import rendering
from platform_assets.engines.choice import choose_engine, decode_engine
from platform_assets.engines.protocol import LoadEngine
from platform_assets.errors import PlatformError, UnknownOutcome
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.untrusted import line, markdown, to_lines
from platform_assets.orchestration import decode_runs, decoded_checks, foresight, load_runs, runs
from platform_assets.orchestration.attempts import decided_on, failure_text, is_of_a_service
from platform_assets.orchestration.names import run_tag, table_key, together_job, together_op
from platform_assets.orchestration.publishing import Publisher
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.orchestration.retries import Failures
from platform_assets.orchestration.run_config import read, values_of
from platform_assets.orchestration.run_log import RunLog
from platform_assets.windows.catching_up import TOPICS_IN_VAIN, load_together
from platform_assets.windows.decoding import WindowDecoder
from platform_assets.windows.loading import Loader


class WindowsOfMany(dg.Config):
    """Which windows a run loads."""

    windows: dict[str, list[str]] = Field(
        description="By topic, the keys of sealed windows, such as 2026-01-31-14:05: each is loaded, and no other."
    )


def build_job(name: str, declarations: Sequence[TopicDeclaration]) -> dg.JobDefinition:
    """The job of topics that are together under `name`."""
    known = {d.topic: d for d in declarations}

    @dg.op(
        name=together_op(name),
        description=markdown(
            f"Loads windows of topics that are together as {name}, by their keys in the ledger, and evaluates their checks."
        ),
        out=dg.Out(dg.Nothing),
        config_schema=values_of(WindowsOfMany),
    )
    def _load(
        context: dg.OpExecutionContext,
        kafka: KafkaResource,
        lake: LakeResource,
        spark: SparkResource,
    ) -> Iterator[Any]:
        config = read(WindowsOfMany, context)
        run = _Run(context, kafka, lake, spark)
        for topic in sorted(set(config.windows) - set(known)):
            context.log.warning(line(f"topic {topic} is not declared any more: its windows are left alone"))
        yield from run.load([(known[topic], keys) for topic, keys in config.windows.items() if topic in known])
        yield dg.Output(None)

    @dg.job(
        name=together_job(name),
        tags={runs.TABLE_TAG: run_tag(None)},
        description=f"Loads windows of {len(known)} topics, and evaluates the checks of each. Their sensor asks for it; by hand, "
        "its config names windows by topic and key.",
    )
    def _job() -> None:
        _load()

    return _job


@dataclass
class _Run:
    """One try of a run that loads windows of many topics."""

    context: dg.OpExecutionContext
    kafka: KafkaResource
    lake: LakeResource
    spark: SparkResource
    errors: dict[TableRef, dict[str, PlatformError]] = field(default_factory=dict)
    blocking: list[str] = field(default_factory=list)

    def load(self, windows: Sequence[tuple[TopicDeclaration, Sequence[str]]]) -> Iterator[dg.AssetCheckEvaluation]:
        """Load, report and check; raises dg.RetryRequested or dg.Failure at the end, where something failed."""
        instance, run_id = self.context.instance, self.context.run.run_id
        for d, _ in windows:
            try:
                runs.check_is_kept(instance, d.raw_table)
            except PlatformError as e:
                raise dg.Failure(line(e), metadata={"error": type(e).__name__}, allow_retries=False) from e
        loaders = self._loaders([d for d, _ in windows])
        before = self._before(loaders) if self.context.retry_number else {topic: frozenset() for topic in loaders}
        left = [(loaders[d.topic], [k for k in dict.fromkeys(keys) if k not in before[d.topic]]) for d, keys in windows]
        decided = decided_on(
            Ledger(self.lake.lake()), {loaders[d.topic].declaration.raw_table: keys for d, keys in windows}
        )
        wanted, number = sum(len(keys) for _, keys in windows), sum(map(len, before.values()))
        done: dict[str, list[str]] = {}
        in_vain: set[str] = set()
        for loader, key, outcome in load_together(left):
            d = loader.declaration
            if isinstance(outcome, PlatformError):
                self.errors.setdefault(d.raw_table, {})[key] = outcome
                self.context.log.error(line(f"{d.raw_table}: window {key} failed: {outcome}"))
                if isinstance(outcome, UnknownOutcome):
                    self.spark.forget()
                # It may be this topic alone, such as one of a partition without a leader.
                in_vain |= {d.topic} if is_of_a_service(outcome) else set()
                if len(in_vain) == TOPICS_IN_VAIN:
                    break
                continue
            in_vain.clear()
            number += 1
            done.setdefault(d.topic, []).append(key)
            r = outcome.receipt
            self.context.log.info(
                line(
                    f"{d.raw_table}: window {key} ({number} of {wanted}): {outcome.outcome}, {r.rows:,} rows of "
                    f"{r.ranges.size:,} offsets, table version {r.table_version}"
                )
            )
            load_runs.report(self.context, d, str(self.lake.lake().table(d.raw_table)), {key: outcome})
        log = RunLog(instance, (loaders[topic].declaration.raw_table for topic in done))
        for topic, keys in done.items():
            yield from self._after(loaders[topic], sorted(keys), log)
        if self.errors:
            found = {table: Failures.of(errors, decided=decided[table]) for table, errors in self.errors.items()}
            runs.record_failures_of_many(instance, run_id, found)
            flat = {f"{k} of {t}": e for t, errors in self.errors.items() for k, e in errors.items()}
            text = failure_text(flat, wanted, number)
            raise load_runs.as_dagster(flat, text, self.context.retry_number) from next(iter(flat.values()))
        if self.blocking:
            raise dg.Failure(line(f"checks failed: {', '.join(self.blocking)}"), allow_retries=False)

    def _loaders(self, declarations: Sequence[TopicDeclaration]) -> dict[str, Loader]:
        root, cluster = self.lake.lake(), self.kafka.cluster()
        ledger = Ledger(root)
        engines: dict[str, LoadEngine] = {
            name: choose_engine(root, self.kafka.settings, self.spark.session, name, self.spark.remote)
            for name in {d.engine for d in declarations}
        }
        run_id = self.context.run.run_id
        return {d.topic: Loader(d, cluster, ledger, engines[d.engine], run_id=run_id) for d in declarations}

    def _before(self, loaders: Mapping[str, Loader]) -> dict[str, frozenset[str]]:
        """The windows that an earlier try of this run has loaded and reported, by topic."""
        reported = runs.all_reported_by(self.context.instance, self.context.run.run_id)
        return {t: frozenset(reported.get(table_key(each.declaration.raw_table), ())) for t, each in loaders.items()}

    def _after(self, loader: Loader, keys: Sequence[str], log: RunLog) -> Iterator[dg.AssetCheckEvaluation]:
        """What follows the loads of one topic: its position, its topic's windows, its checks, its decoding."""
        d = loader.declaration
        Publisher(d, loader.ledger, loader.cluster, to_lines(self.context.log.warning)).now()
        try:
            load_runs.report_sealed(self.context, loader, keys)
            evaluation = load_runs.evaluation(
                self.context, d, self.kafka, self.lake, self.spark, counting=CHECKS.values(), log=log
            )
            alarming: list[str] = []
            for event, blocks in load_runs.judged(evaluation):
                yield event
                alarming += [f"{event.check_name} of {d.raw_table}"] if blocks else []
            yield rendering.as_event(foresight.evaluate(d, loader.ledger, loader.cluster))
            self.blocking += alarming
            if d.decode is not None and not alarming:
                yield from self._decoded(loader, keys)
        except PlatformError as e:
            # The windows are loaded, and the next run judges them.
            self.context.log.error(line(f"{d.raw_table} was not checked: {e}"))
            self.blocking.append(f"{d.raw_table} could not be checked ({type(e).__name__})")

    def _decoded(self, loader: Loader, keys: Sequence[str]) -> Iterator[dg.AssetCheckEvaluation]:
        """Decode what was loaded. What fails is asked for by the sensor, in a run of the topic's own, which says why."""
        d, root = loader.declaration, self.lake.lake()
        if d.decode is None:
            return
        engine = decode_engine(root, self.spark.session, self.spark.remote)
        decoder = WindowDecoder(d, loader.ledger, engine, run_id=self.context.run.run_id)
        for key in keys:
            try:
                decoded = decoder.decode(key)
            except PlatformError as e:
                self.context.log.error(line(f"{d.decoded_table}: window {key} was not decoded: {e}"))
                return
            for materialised in decode_runs.events(d, {key: decoded}, root):
                self.context.log_event(materialised)
        run_id = self.context.run.run_id
        for event, blocks in decoded_checks.judged(
            d, d.decode, loader.ledger, self.context.instance, list(keys), run_id
        ):
            yield event
            self.blocking += [f"{event.check_name} of {d.decoded_table}"] if blocks else []
