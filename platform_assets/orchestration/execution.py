"""Execute loads: for each topic, load the windows, report them, evaluate the checks and decode.

Every load goes through `Execution`: runs that materialize partitions, runs that list windows of one topic or of a
group, and the command `load`. If a window or a topic fails, the others are still loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar, cast

import dagster as dg

from platform_assets.checks.report import rendering
from platform_assets.errors import (
    BrokerUnreachableError,
    PlatformError,
    SparkUnreachableError,
    Terminal,
    UnknownOutcome,
)
from platform_assets.ledger import decisions, unloaded
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.model.untrusted import line, to_lines
from platform_assets.model.windows import edge_of
from platform_assets.orchestration import changes_checks, dagster_records, decoded_checks, events
from platform_assets.orchestration.dagster_records import RunLog
from platform_assets.orchestration.names import table_key, topic_key
from platform_assets.orchestration.planning import Failures, decided_at
from platform_assets.orchestration.publishing import Publisher
from platform_assets.orchestration.raw_checks import EvaluatedCheck, age, evaluation, judge
from platform_assets.orchestration.resources import Log, Services
from platform_assets.windows.change.changing import WindowChanger
from platform_assets.windows.decode.decoding import DecodedWindow, WindowDecoder
from platform_assets.windows.decode.decoding_many import decode_many
from platform_assets.windows.load.catching_up import TOPICS_IN_VAIN, load_group, load_many
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.load.replacing import Loaded, Outcome

_log = logger(__name__)

RunContext = dg.AssetExecutionContext | dg.OpExecutionContext
"""Context of a step, of an asset or of an op."""
Windows = Mapping[str, Sequence[str]]
"""Keys of windows, by topic."""

SHOWN_AHEAD: Final = 500
"""Number of windows, counted for each table, up to which a run that lists windows shows them in the UI before they are
loaded. Each of them costs an event in Dagster's store, some 8 ms."""
_RETRIES: Final = 2
"""Maximum number of retries of a step that loads windows."""
_RETRY_AFTER_SECONDS = 5

Done = TypeVar("Done", Loaded, DecodedWindow, covariant=True)


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Done]):
    """The outcome of one window in `table`: either `done` or `error` is set."""

    table: TableRef
    window: str
    done: Done | None
    error: PlatformError | None


Step = Attempt[Loaded] | Attempt[DecodedWindow] | EvaluatedCheck | dg.AssetMaterialization
"""Events that an execution yields as soon as they occur."""


# --- loops ------------------------------------------------------------------------------------------------------


def load_each(
    loaders: Sequence[tuple[Loader, Sequence[str]]], forget_session: Callable[[], None]
) -> Iterator[Attempt[Loaded]]:
    """Load each window with its loader. Windows of several topics may share a job of an engine."""
    wanted = [(loader, list(dict.fromkeys(keys))) for loader, keys in loaders]
    if len(wanted) == 1:
        ((only, keys),) = wanted
        found: Iterable[tuple[Loader, str, Loaded | PlatformError]] = (
            (only, key, outcome) for key, outcome in load_many(only, keys)
        )
    else:
        found = load_group(wanted)
    for loader, key, outcome in found:
        table = loader.declaration.raw_table
        if not isinstance(outcome, PlatformError):
            yield Attempt(table, key, outcome, None)
            continue
        if isinstance(outcome, UnknownOutcome):
            forget_session()
        yield Attempt(table, key, None, outcome)


def decode_each(
    decoder: WindowDecoder, keys: Iterable[str], forget_session: Callable[[], None]
) -> Iterator[Attempt[DecodedWindow]]:
    """Decode each of the windows `keys`, in this order. The windows may share jobs of the engine."""
    table = decoder.declaration.decoded_table
    for key, outcome in decode_many(decoder, list(dict.fromkeys(keys))):
        if not isinstance(outcome, PlatformError):
            yield Attempt(table, key, outcome, None)
            continue
        if isinstance(outcome, UnknownOutcome):
            forget_session()
        yield Attempt(table, key, None, outcome)


def while_services_answer(attempts: Iterable[Attempt[Done]], topics: int) -> Iterator[Attempt[Done]]:
    """Stop after a service did not answer for several topics in a row, or for all `topics`, because the next window
    would fail too.

    A failure for a single topic is not enough, because the cause may be a partition without a leader.
    """
    silent = set[str]()
    for attempt in attempts:
        yield attempt
        if attempt.error is None:
            silent.clear()
        elif is_of_a_service(attempt.error):
            silent.add(attempt.table.topic)
            if len(silent) >= min(TOPICS_IN_VAIN, topics):
                return


def is_of_a_service(error: PlatformError) -> bool:
    """Return True if Spark or the brokers are unavailable, so that the next window would fail the same way."""
    return isinstance(error, SparkUnreachableError | BrokerUnreachableError | UnknownOutcome)


# --- execution --------------------------------------------------------------------------------------------------


@dataclass
class Execution:
    """One attempt to load and decode windows of the topics `declared`; `instance` is None if there is no Dagster
    instance to report to.

    A `manual` execution, from a shell, tries every window even if services do not answer, and decodes even if checks
    fail, because a user requested these windows. `before` has the outcomes of an earlier attempt in the same run, by
    table. After the execution, `loaded`, `decoded` and `changed` have the finished windows, and `errors` has the failed
    windows by table.
    """

    declared: Mapping[str, TopicDeclaration]
    services: Services
    instance: dg.DagsterInstance | None
    run_id: str = ""
    manual: bool = False
    before: Mapping[TableRef, Mapping[str, str]] = field(default_factory=dict)
    description: str | None = None
    log: Log = _log
    loaded: dict[str, dict[str, Loaded]] = field(default_factory=dict)
    decoded: dict[str, dict[str, DecodedWindow]] = field(default_factory=dict)
    changed: dict[str, dict[str, Loaded]] = field(default_factory=dict)
    errors: dict[TableRef, dict[str, PlatformError]] = field(default_factory=dict)
    blocking: list[str] = field(default_factory=list)
    _decided: dict[TableRef, dict[str, datetime]] = field(default_factory=dict)

    def execute(self, windows: Windows, *, decode_only: bool = False, changes_only: bool = False) -> Iterator[Step]:
        """Load, report, check and decode `windows`, and make their changes. With `decode_only`, start with decoding the
        rows of these windows from the raw tables; with `changes_only`, only make changes from the decoded tables."""
        if changes_only:
            for topic, keys in windows.items():
                yield from self._change(topic, list(dict.fromkeys(keys)))
            return
        fresh: dict[str, Sequence[str]] = dict(windows)
        if not decode_only:
            fresh = {}
            for attempt in self.load(windows):
                yield attempt
                if attempt.done is not None:
                    topic = attempt.table.topic
                    fresh[topic] = [*fresh.get(topic, ()), attempt.window]
                    yield self.event(attempt.done)
            for topic, done in self.loaded.items():
                # An earlier attempt of this run may have loaded windows and ended before they were decoded.
                fresh[topic] = sorted({*fresh.get(topic, ()), *self._undecoded(topic, done)})
        records = None
        if self.instance is not None:
            records = RunLog(self.instance, [self.declared[t].raw_table for t in fresh])
        for topic, keys in fresh.items():
            if keys:
                yield from self._after(topic, keys, decode_only, records)

    def targets(
        self, windows: Windows, *, decode_only: bool = False, changes_only: bool = False
    ) -> dict[TableRef, list[str]]:
        """Return the windows that `execute` will load, by table."""
        found: dict[TableRef, list[str]] = {}
        for topic, keys in windows.items():
            d = self.declared[topic]
            raw = () if decode_only else (d.raw_table,)
            tables = (d.changes_table,) if changes_only else (*raw, *d.tables[1:])
            found |= dict.fromkeys(tables, sorted(set(keys)))
        return found

    def load(self, windows: Windows) -> Iterator[Attempt[Loaded]]:
        """Load each window into its raw table, and publish the tables' positions."""
        ledger, cluster = self.services.ledger, self.services.cluster
        engines = {name: self.services.load_engine(name) for name in {self.declared[t].engine for t in windows}}
        loaders = {
            t: Loader(d, cluster, ledger, engines[d.engine], run_id=self.run_id)
            for t, d in ((t, self.declared[t]) for t in windows)
        }
        self._decided |= decided_on(ledger, {self.declared[t].raw_table: keys for t, keys in windows.items()})
        for topic, keys in windows.items():
            self.loaded[topic] = self._loaded_before(topic, keys)
        left = [(loaders[t], [k for k in keys if k not in self.loaded[t]]) for t, keys in windows.items()]
        publishers = {t: Publisher(self.declared[t], ledger, cluster, to_lines(self.log.warning)) for t in windows}
        now = set[str]()
        attempts = load_each(left, self.services.forget_session)
        for attempt in attempts if self.manual else while_services_answer(attempts, len(windows)):
            topic = attempt.table.topic
            if attempt.done is None:
                self._failed(attempt)
            else:
                self.loaded[topic][attempt.window] = attempt.done
                now.add(topic)
                if len(windows) == 1:
                    publishers[topic].after_commit()
            yield attempt
        for topic in now:
            publishers[topic].now()

    def decode(self, topic: str, keys: Sequence[str]) -> Iterator[Attempt[DecodedWindow]]:
        """Decode each window of one topic."""
        d, ledger = self.declared[topic], self.services.ledger
        decoder = WindowDecoder(d, ledger, self.services.decode_engine(), run_id=self.run_id)
        self._decided |= decided_on(ledger, {d.decoded_table: keys})
        done = self.decoded.setdefault(topic, {})
        done |= self._decoded_before(d, keys)
        attempts = decode_each(decoder, [k for k in keys if k not in done], self.services.forget_session)
        for attempt in attempts if self.manual else while_services_answer(attempts, 1):
            if attempt.done is None:
                self._failed(attempt)
            else:
                done[attempt.window] = attempt.done
            yield attempt

    def change(self, topic: str, keys: Sequence[str]) -> Iterator[Attempt[Loaded]]:
        """Make the changes of each window of one topic."""
        d, ledger = self.declared[topic], self.services.ledger
        changer = WindowChanger(d, ledger, run_id=self.run_id)
        self._decided |= decided_on(ledger, {d.changes_table: keys})
        done = self.changed.setdefault(topic, {})
        for key in keys:
            try:
                done[key] = changer.make(key)
                attempt = Attempt(d.changes_table, key, done[key], None)
            except PlatformError as e:
                attempt = Attempt[Loaded](d.changes_table, key, None, e)
                self._failed(attempt)
            yield attempt

    def _change(self, topic: str, keys: Sequence[str]) -> Iterator[Step]:
        """Make the changes of windows, report them, and evaluate their checks, if the topic has a state."""
        d = self.declared[topic]
        if d.state is None and keys:
            # Raises the error that says so.
            WindowChanger(d, self.services.ledger).declared  # noqa: B018
        for attempt in self.change(topic, keys):
            yield attempt
            if attempt.done is not None:
                yield self.event(attempt.done)
        if keys:
            for found in changes_checks.results(d, self.services.ledger, self.instance, keys, self.run_id or None):
                blocks = not found.passed and found.severity == dg.AssetCheckSeverity.ERROR
                self.blocking += [f"{found.check_name} of {d.changes_table}"] if blocks else []
                yield EvaluatedCheck(rendering.as_event(found), blocks)

    def _after(self, topic: str, keys: Sequence[str], decode_only: bool, records: RunLog | None) -> Iterator[Step]:
        """Evaluate the checks of one topic's loads, then decode the windows and make their changes, unless a check
        blocks it."""
        d = self.declared[topic]
        try:
            alarming: list[str] = []
            if not decode_only:
                self.report_sealed(topic, keys)
            if not decode_only and not self.manual:
                for judged in self._checks(d, records):
                    yield judged
                    alarming += [f"{judged.event.check_name} of {d.raw_table}"] if judged.blocks else []
                yield from age(d, self.services)
            self.blocking += alarming
            if d.decode is not None and not alarming:
                for attempt in self.decode(topic, keys):
                    yield attempt
                    if attempt.done is not None:
                        yield from events.decoded_events(attempt.done, d, self.services.ledger.lake)
            if self.manual and not decode_only:
                yield from self._checks(d, records)
            if d.decode is not None and (done := self.decoded.get(topic)):
                before = len(self.blocking)
                yield from self._decoded_checks(d, sorted(done))
                if d.state is not None and (self.manual or len(self.blocking) == before):
                    yield from self._change(topic, sorted(done))
        except PlatformError as e:
            if self.manual:
                raise
            # The windows are loaded; the next run evaluates their checks.
            self.log.error(line(f"{d.raw_table} was not checked: {e}"))
            self.blocking.append(f"{d.raw_table} could not be checked ({type(e).__name__})")

    def _checks(self, d: TopicDeclaration, records: RunLog | None) -> Iterator[EvaluatedCheck]:
        yield from judge(evaluation(d, self.services, self.instance, self.run_id, records=records, log=self.log))

    def _decoded_checks(self, d: TopicDeclaration, keys: Sequence[str]) -> Iterator[EvaluatedCheck]:
        if d.decode is None:
            return
        run_id = self.run_id or None
        for found in decoded_checks.results(d, d.decode, self.services.ledger, self.instance, keys, run_id):
            blocks = not found.passed and found.severity == dg.AssetCheckSeverity.ERROR
            self.blocking += [f"{found.check_name} of {d.decoded_table}"] if blocks else []
            yield EvaluatedCheck(rendering.as_event(found), blocks)

    def event(self, loaded: Loaded) -> dg.AssetMaterialization:
        """Return the materialization of a loaded window."""
        d = self.declared[loaded.receipt.topic]
        return events.window_event(loaded.receipt, loaded.outcome, d, self.services.ledger.lake, self.description)

    def _failed(self, attempt: Attempt[Loaded] | Attempt[DecodedWindow]) -> None:
        if attempt.error is not None:
            self.errors.setdefault(attempt.table, {})[attempt.window] = attempt.error

    def report_sealed(self, topic: str, keys: Sequence[str]) -> None:
        """Report windows that no sensor has reported on the topic asset, for example because the load itself sealed
        these windows."""
        if self.instance is None:
            return
        known = dagster_records.reported_partitions(self.instance, topic_key(topic), keys)
        for key in keys:
            window = None if key in known else self.services.ledger.window(topic, key)
            if window is not None:
                self.instance.report_runless_asset_event(events.sealed_event(window))

    def _loaded_before(self, topic: str, keys: Sequence[str]) -> dict[str, Loaded]:
        """Return the windows that an earlier attempt in this run loaded and reported."""
        table = self.declared[topic].raw_table
        outcomes = {k: o for k, o in self.before.get(table, {}).items() if k in set(keys)}
        receipts = self.services.ledger.receipts(table, sorted(outcomes)) if outcomes else {}
        return {key: Loaded(receipt, cast(Outcome, outcomes[key])) for key, receipt in receipts.items()}

    def _decoded_before(self, d: TopicDeclaration, keys: Sequence[str]) -> dict[str, DecodedWindow]:
        """Return the windows that an earlier attempt in this run decoded and reported."""
        wanted = [key for key in keys if key in self.before.get(d.decoded_table, {})]
        decoded = self.services.ledger.receipts(d.decoded_table, wanted) if wanted else {}
        dead = self.services.ledger.receipts(d.dead_letter_table, wanted) if wanted else {}
        return {key: DecodedWindow(decoded[key], dead[key], "unchanged") for key in decoded if key in dead}

    def _undecoded(self, topic: str, keys: Iterable[str]) -> list[str]:
        d = self.declared[topic]
        if d.decode is None or not self.before:
            return []
        return [key for key in keys if key not in self.before.get(d.decoded_table, {})]

    def failures(self) -> dict[TableRef, Failures]:
        """Return, by table and for the sensor, the reasons why windows failed."""
        found = dict[TableRef, Failures]()
        for table, errors in self.errors.items():
            decode = self.declared[table.topic].decode if table.kind != "raw" else None
            declaration = "" if decode is None else decode.fingerprint
            found[table] = Failures.of(errors, declaration, self._decided[table])
        return found


def decided_on(ledger: Ledger, windows: Mapping[TableRef, Collection[str]]) -> dict[TableRef, dict[str, datetime]]:
    """Return the decisions about these windows that were made before the run reads anything: see `planning.Waiting`."""
    parking = decisions.parking_of_many(ledger.lake, windows)
    found = dict[TableRef, dict[str, datetime]]()
    for table, named in windows.items():
        keys = list(_keys(named))
        accepted = unloaded.accepted(ledger, table, keys) if keys else {}
        unparked = {key: at for key, at in parking[table].unparked.items() if key in named}
        found[table] = decided_at(accepted, unparked)
    return found


def _keys(named: Iterable[str]) -> Iterator[str]:
    """Yield those of `named` that are window keys; the others fail when their turn comes."""
    for key in named:
        with suppress(ValueError):
            edge_of(key)
            yield key


# --- in a run of Dagster ----------------------------------------------------------------------------------------


def of_run(context: RunContext, declarations: Iterable[TopicDeclaration], services: Services) -> Execution:
    """Return the execution for one attempt of a step. Raises dg.Failure for a throwaway instance."""
    declared = {d.topic: d for d in declarations}
    run_id = context.run.run_id
    try:
        for d in declared.values():
            dagster_records.check_is_kept(context.instance, d.raw_table)
    except PlatformError as e:
        raise dg.Failure(line(e), metadata={"error": type(e).__name__}, allow_retries=False) from e
    before: dict[TableRef, Mapping[str, str]] = {}
    if context.retry_number:
        reported = dagster_records.reported_by(context.instance, run_id)
        before = {t: reported.get(table_key(t), {}) for d in declared.values() for t in (d.raw_table, d.decoded_table)}
    return Execution(declared, services, context.instance, run_id, before=before, log=context.log)


def log_attempt(context: RunContext, attempt: Attempt[Loaded] | Attempt[DecodedWindow], number: int, of: int) -> None:
    """Write a line about the attempt to the run's log, with the window's number and the total number of windows."""
    done, where = attempt.done, f"{attempt.table}: window {attempt.window}"
    if done is None:
        context.log.error(line(f"{where} failed: {attempt.error}"))
    elif isinstance(done, Loaded):
        r = done.receipt
        text = f"{r.rows:,} rows from {r.ranges.size:,} offsets, table version {r.table_version}, {r.seconds:.1f} s"
        context.log.info(line(f"{where} ({number} of {of}): {done.outcome}, {text}"))
    else:
        text = (
            f"{done.decoded.rows:,} decoded rows, {done.dead_letters.rows:,} dead letters, {done.decoded.seconds:.1f} s"
        )
        context.log.info(line(f"{where} ({number} of {of}): {done.outcome}, {text}"))


def raise_failures(context: RunContext, execution: Execution, windows: int) -> None:
    """Raise dg.RetryRequested or dg.Failure if one of the `windows` failed, and record the reasons for the sensor."""
    if not execution.errors:
        return
    failures = execution.failures()
    dagster_records.record_failures(context.instance, context.run.run_id, failures)
    single = len(execution.declared) == 1 and len(execution.errors) == 1
    flat = {
        (key if single else f"{key} of {table}"): error
        for table, errors in execution.errors.items()
        for key, error in errors.items()
    }
    raw, decoded, changed = execution.loaded, execution.decoded, execution.changed
    done = {(topic, key) for topic, keys in (raw or decoded or changed).items() for key in keys}
    done -= {(table.topic, key) for table, errors in execution.errors.items() for key in errors}
    text = failure_text(flat, windows, len(done))
    raise as_dagster(flat, text, context.retry_number) from next(iter(flat.values()))


def failure_text(errors: Mapping[str, PlatformError], windows: int, loaded: int) -> str:
    """Return the error text for a run of `windows` windows. `errors` has the windows that failed; `loaded` is the
    number of windows that were loaded."""
    if windows == 1:
        return str(next(iter(errors.values())))
    text = f"{len(errors)} of {windows} windows failed, {loaded} were loaded"
    not_tried = windows - len(errors) - loaded
    text += f", {not_tried} were not tried because a service was not available. " if not_tried else ". "
    # Often one cause makes many windows fail, and each error names its window.
    return text + " ".join(f"Window {key}: {error}" for key, error in errors.items())


def as_dagster(errors: Mapping[str, PlatformError], text: str, retries: int) -> Exception:
    """Return an exception with this text. It requests a retry of the step, up to `_RETRIES` times, if a retry can help.

    After that, the topic's sensor requests the windows again when `planning` says so.
    """
    if retries >= _RETRIES or all(isinstance(e, Terminal) for e in errors.values()):
        kinds = ", ".join(sorted({type(e).__name__ for e in errors.values()}))
        return dg.Failure(line(text), metadata={"error": kinds, "windows": sorted(errors)}, allow_retries=False)
    return dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=_RETRY_AFTER_SECONDS)


def load_partitions(
    context: RunContext, declaration: TopicDeclaration, services: Services, keys: Sequence[str]
) -> dict[str, Loaded]:
    """Load windows in a step that materializes them. Raises whatever `raise_failures` raises; loaded windows are
    reported before that."""
    execution, topic = of_run(context, [declaration], services), declaration.topic
    _log_each(context, execution.load({topic: keys}), len(keys))
    execution.report_sealed(topic, list(execution.loaded[topic]))
    if execution.errors:
        # A failed step loses its own events.
        before = execution.before.get(declaration.raw_table, {})
        for key, loaded in execution.loaded[topic].items():
            if key not in before:
                context.log_event(execution.event(loaded))
        raise_failures(context, execution, len(keys))
    return execution.loaded[topic]


def decode_partitions(
    context: RunContext, declaration: TopicDeclaration, services: Services, keys: Sequence[str]
) -> dict[str, DecodedWindow]:
    """Decode windows in a step that materializes them. In all other respects, this is like `load_partitions`."""
    execution, topic = of_run(context, [declaration], services), declaration.topic
    _log_each(context, execution.decode(topic, keys), len(keys))
    if execution.errors:
        before = execution.before.get(declaration.decoded_table, {})
        for key, window in execution.decoded[topic].items():
            for event in () if key in before else events.decoded_events(window, declaration, services.ledger.lake):
                context.log_event(event)
        raise_failures(context, execution, len(keys))
    return execution.decoded[topic]


def change_partitions(
    context: RunContext, declaration: TopicDeclaration, services: Services, keys: Sequence[str]
) -> dict[str, Loaded]:
    """Make the changes of windows in a step that materializes them. In all other respects, this is like
    `load_partitions`."""
    execution, topic = of_run(context, [declaration], services), declaration.topic
    _log_each(context, execution.change(topic, keys), len(keys))
    if execution.errors:
        for done in execution.changed[topic].values():
            context.log_event(execution.event(done))
        raise_failures(context, execution, len(keys))
    return execution.changed[topic]


def _log_each(context: RunContext, attempts: Iterable[Attempt[Done]], windows: int) -> None:
    number = 0
    for attempt in attempts:
        number += attempt.done is not None
        log_attempt(context, attempt, number, windows)


def run_listed(
    context: dg.OpExecutionContext,
    declarations: Iterable[TopicDeclaration],
    services: Services,
    windows: Windows,
    *,
    decode_only: bool = False,
    changes_only: bool = False,
) -> Iterator[dg.AssetCheckEvaluation]:
    """Execute a run whose config lists its windows. Raises whatever `raise_failures` raises, and dg.Failure if a
    blocking check fails."""
    execution = of_run(context, declarations, services)
    if not context.retry_number:
        targets = execution.targets(windows, decode_only=decode_only, changes_only=changes_only)
        if sum(len(keys) for keys in targets.values()) <= SHOWN_AHEAD:
            try:
                dagster_records.report_planned(context.instance, context.run, str(context.op_handle), targets)
            except dagster_records.store_errors() as e:
                # Not to the run's log, which is in the same storage.
                _log.warning(
                    "run %s: Dagster's storage did not take the windows that the run will load, so the UI does not show "
                    "them as in progress. The run continues: %s",
                    context.run_id,
                    line(str(e)),
                )
    wanted, number = sum(len(set(keys)) for keys in windows.values()), 0
    for step in execution.execute(windows, decode_only=decode_only, changes_only=changes_only):
        if isinstance(step, Attempt):
            number += step.done is not None
            log_attempt(context, step, number, wanted)
        elif isinstance(step, EvaluatedCheck):
            yield step.event
        else:
            context.log_event(step)
    raise_failures(context, execution, wanted)
    if execution.blocking:
        raise dg.Failure(line(f"checks failed: {', '.join(execution.blocking)}"), allow_retries=False)
