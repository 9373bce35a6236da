"""Execute loads: for each topic, load the windows, report them, evaluate the checks and decode.

Every load goes through `Execution`: runs that materialize partitions, runs that list windows of one topic or of a
group, and the command `load`. If a window or a topic fails, the others are still loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar, cast

import dagster as dg

from platform_assets.checks.report import rendering
from platform_assets.errors import (
    BrokerUnreachableError,
    PlatformError,
    SparkUnreachableError,
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
from platform_assets.orchestration.names import topic_key
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

Windows = Mapping[str, Sequence[str]]
"""Keys of windows, by topic."""

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
