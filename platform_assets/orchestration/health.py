"""Reasons why a table is not being loaded: failed windows, windows that need a decision, a stopped sensor, checks
without a result.

The facts come from the ledger and from Dagster's records; `problems` is pure and judges these facts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorTick, TickStatus
from dagster_shared.error import SerializableErrorInfo

from platform_assets.checks.report.description import plain
from platform_assets.errors import PlatformError
from platform_assets.ledger import decisions, unloaded
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import count_edges, edge_of, window_starting_at
from platform_assets.orchestration import dagster_records
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.planning import tries_of

State = Literal["under way", "to be asked for", "failed", "waits for somebody", "parked"]
"""State of a window that is not loaded. to be asked for: a coming tick will request it; failed: its last run failed,
and it will be requested again; waits for somebody: the error of its last run says what to decide; parked: an operator
parked it, and `error` says who did so and why."""

_LONGEST: Final = 1_500
"""Maximum number of characters of an error to show. The remedy comes last, so errors of the platform must be shorter
than this."""
_NAMED: Final = 3
_KEEPING_UP: Final = 3
"""Number of windows that may wait in normal operation. The growth of the backlog is also judged over this many windows.
"""


@dataclass(frozen=True, slots=True)
class UnloadedWindow:
    """A sealed window that is not loaded. Times are ISO 8601 in UTC.

    `tries` is the number of runs that failed to load the window; `failed_at` is when the last of these runs ended, with
    `error`; `failing_since` is when the first of them ended. `again_at` is when the window will be requested again; it
    is None if the window needs a decision or is due now.
    """

    window: str
    state: State
    tries: int
    failed_at: str | None
    again_at: str | None
    error: str | None
    failing_since: str | None = None


@dataclass(frozen=True, slots=True)
class SensorStatus:
    """The sensor of a topic according to Dagster's records. `ticked_at` (ISO 8601, UTC) and `error` describe the last
    tick that ended.

    If that tick failed, `good_at` is when the last successful tick began, or None. `ticking_since` is when a tick began
    that has not ended yet, if there is such a tick; it stays set if the daemon dies during a tick.
    """

    name: str
    running: bool
    ticked_at: str | None
    error: str | None
    good_at: str | None = None
    ticking_since: str | None = None


def sensors(instance: dg.DagsterInstance) -> dict[str, InstigatorState]:
    """Return the sensors by name, as far as Dagster has records of them."""
    found: dict[str, InstigatorState] = {}
    for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR):
        known = found.get(state.instigator_name)
        # Renaming a code location leaves the state of its sensors in Dagster's store.
        if known is None or not known.is_running:
            found[state.instigator_name] = state
    return found


def sensor(instance: dg.DagsterInstance, states: Mapping[str, InstigatorState], name: str) -> SensorStatus | None:
    """Return the sensor with this name; None if Dagster has no record of it."""
    state = states.get(name)
    if state is None:
        return None
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=3)
    last = next((tick for tick in ticks if tick.status is not TickStatus.STARTED), None)
    error = _error_of(last)
    good = None
    if error is not None:
        statuses = [TickStatus.SUCCESS, TickStatus.SKIPPED]
        found = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1, statuses=statuses)
        good = next(iter(found), None)
    ticking = next((tick for tick in ticks[:1] if tick.status is TickStatus.STARTED), None)
    running = state.status is not InstigatorStatus.STOPPED
    return SensorStatus(name, running, _began(last), error, _began(good), _began(ticking))


def windows(
    declaration: TopicDeclaration,
    instance: dg.DagsterInstance | None,
    keys: Sequence[str],
    under_way: Collection[str],
    parked: Mapping[str, Decision],
    table: TableRef | None = None,
) -> list[UnloadedWindow]:
    """Return the state of each of the windows `keys`, which are in ascending order and not in `table`; runs in progress
    will load the windows `under_way`.

    If `table` is None, the raw table is meant.
    """
    into = table or declaration.raw_table
    tries = {} if instance is None else tries_of(keys, dagster_records.failed_runs(instance, into, keys))
    found: list[UnloadedWindow] = []
    for key in keys:
        tried = tries.get(key)
        state: State = "to be asked for"
        if key in under_way:
            state = "under way"
        elif key in parked:
            state = "parked"
        elif tried is not None:
            state = "waits for somebody" if tried.waits_for_somebody else "failed"
        again = None if tried is None or state != "failed" else _iso(tried.again_at(declaration.sensor_interval))
        failed_at = None if tried is None else _iso(tried.last.ended)
        number, error = (0, None) if tried is None else (tried.number, tried.last.error_of(key))
        since = None if tried is None else _iso(tried.since)
        if state == "parked":
            error = f"parked by {parked[key].decided_by}: {parked[key].reason}"
        found.append(UnloadedWindow(key, state, number, failed_at, again, error, since))
    return found


def failed_windows(
    declaration: TopicDeclaration, table: TableRef, ledger: Ledger, instance: dg.DagsterInstance
) -> list[str]:
    """Return the keys of sealed windows that are not in `table` because their last run failed, and for which no run is
    in progress.

    Parked windows are excluded.
    """
    newest = ledger.newest_edges([declaration.topic]).get(declaration.topic)
    keys = [] if newest is None else sorted(unloaded.find(ledger, table, newest).windows)
    if not keys:
        return []
    under_way = dagster_records.windows_in_flight(instance, table_key(table), keys)
    found = windows(declaration, instance, keys, under_way, decisions.parking(ledger.lake, table).parked, table)
    return [window.window for window in found if window.state in ("failed", "waits for somebody")]


@dataclass(frozen=True, slots=True)
class Backlog:
    """Sealed windows that wait to be loaded: `now` is their present number, `before` is the number at the time that is
    `over` ago, and `oldest` is when the oldest of them ended."""

    now: int
    before: int
    over: timedelta
    oldest: datetime


def backlog(
    declaration: TopicDeclaration,
    waiting: Sequence[datetime],
    loaded: Iterable[tuple[datetime, datetime]],
    now: datetime,
) -> Backlog | None:
    """Return the backlog at `now`, and the backlog a few windows earlier; None if no window waits.

    The backlog is computed from the ends of windows that are not loaded, and from the ends and recording times of
    loaded windows. A window counts from its end on, no matter when it was sealed."""
    if not waiting:
        return None
    over = max(_KEEPING_UP * _length(declaration), patience(declaration))
    then = now - over
    before = sum(end <= then for end in waiting) + sum(end <= then < recorded for end, recorded in loaded)
    return Backlog(len(waiting), before, over, min(waiting))


def patience(declaration: TopicDeclaration) -> timedelta:
    """Return the time for which work for the next tick may be left undone."""
    return max(3 * declaration.sensor_interval, timedelta(minutes=2))


def catching_up(
    declaration: TopicDeclaration, sensor: SensorStatus | None, sealed: int, pending: datetime | None, now: datetime
) -> str | None:
    """Return the progress of a ticking sensor that has more edges to cut than fit into one tick; None if the sensor is
    not late or does not tick.

    `sealed` windows are done, and `pending` is the first edge that has passed and has no cut.
    """
    if (
        declaration.paused
        or pending is None
        or now - pending <= patience(declaration)
        or not _ticks(declaration, sensor, now)
    ):
        return None
    since = count_edges(declaration.schedule, pending, now)
    counted_windows = f"{sealed:,} window{'' if sealed == 1 else 's'}"
    return (
        f"it is catching up: {counted_windows} are sealed, and {since:,} more have ended, the first of them at "
        f"{_iso(pending)}; each tick seals at most {declaration.max_edges_per_tick:,}"
    )


def _ticks(declaration: TopicDeclaration, sensor: SensorStatus | None, now: datetime) -> bool:
    """Return True if the last tick of the sensor was recent, or is still running, and there was no error."""
    if sensor is None or not sensor.running or sensor.error is not None:
        return False
    began = [datetime.fromisoformat(at) for at in (sensor.ticked_at, sensor.ticking_since) if at is not None]
    return any(now - at <= patience(declaration) for at in began)


def problems(
    declaration: TopicDeclaration,
    unloaded: Sequence[UnloadedWindow],
    sensor: SensorStatus | None,
    pending: datetime | None,
    now: datetime,
    held_back: str | None = None,
    behind: Backlog | None = None,
) -> Iterator[str]:
    """Yield the problems: what is wrong, since when, and what to do, in one or two sentences each.

    `pending` is the first edge that has passed and has no cut, if there is one; `held_back` is the reason why it has no
    cut, if known; `behind` is the backlog.
    """
    late = patience(declaration)
    if held_back is not None:
        yield held_back
    if sensor is not None and not sensor.running:
        ticked = "has never ticked" if sensor.ticked_at is None else f"ticked last at {sensor.ticked_at}"
        yield (
            f"its sensor {sensor.name} is stopped, and {ticked}, so no window is being sealed or loaded: start it in the "
            "UI under Automation"
        )
    elif sensor is not None and sensor.error is not None:
        since = (
            "no recorded tick succeeded" if sensor.good_at is None else f"no tick has succeeded since {sensor.good_at}"
        )
        yield (
            f"its sensor {sensor.name} is failing, last at {sensor.ticked_at}, and {since}; nothing is being sealed or "
            f"requested. The sensor keeps retrying by itself. The error of the last tick: {_shortened(sensor.error)}"
        )
    elif pending is not None and now - pending > late and held_back is None and not _ticks(declaration, sensor, now):
        yield (
            f"the window that ends at {_iso(pending)} has not been sealed, because the sensor is not ticking. "
            f"Check that Dagster's daemon is running (`platform-assets up`), and that `platform-assets check` "
            f"finds no mistakes, because nothing is loaded until all are fixed"
        )
    failed = list(failing(unloaded, "failed to load"))
    yield from failed
    if behind is not None and behind.now > max(behind.before, _KEEPING_UP) and not failed:
        yield (
            f"loads are not keeping up: {behind.now} sealed windows are waiting, the oldest since {_iso(behind.oldest)}; "
            f"{behind.over.total_seconds() / 60:.0f} minutes ago, there were {behind.before}. Under Runs in the UI, find "
            "what is delaying them: a hanging run, a queue full of other runs, or a Spark server that is too small"
        )
    ignored = [
        w for w in unloaded if w.state == "to be asked for" and now - edge_of(w.window) > late + _length(declaration)
    ]
    # Dagster receives the windows sealed by a tick one by one, before it receives the run requests.
    asking = sensor is not None and sensor.ticking_since is not None and _ticks(declaration, sensor, now)
    if ignored and sensor is not None and not asking:
        yield (
            f"{counted(ignored)} sealed but not loaded, with no known run; the sensor will request a run at its next tick"
        )


def failing(windows: Sequence[UnloadedWindow], what: str) -> Iterator[str]:
    """Yield sentences that say which windows failed in the operation `what`, since when and why, and which windows need
    a decision."""
    failed = [w for w in windows if w.tries and w.state in ("failed", "under way")]
    if failed:
        last = max(failed, key=lambda w: w.failed_at or "")
        again = min((w.again_at for w in failed if w.again_at is not None), default=None)
        then = "a run is in progress" if again is None else f"to be requested again at {again} or later"
        most = max(w.tries for w in failed)
        tried = "tried once" if most == 1 else f"tried {most} times"
        since = min(w.failing_since for w in failed if w.failing_since is not None)
        yield (
            f"{counted(failed)} {what}, first at {since}, most recently at {last.failed_at} ({tried}); {then}. The error of "
            f"the last run: {_shortened(last.error or '')}"
        )
    refused = [w for w in windows if w.state == "waits for somebody"]
    for window in refused[:_NAMED]:
        yield (
            f"window {window.window} has needed attention since {window.failing_since}: "
            f"{_shortened(window.error or '')}"
        )
    if len(refused) > _NAMED:
        yield f"{len(refused) - _NAMED} more windows need attention: `platform-assets status --json` lists them"


def _length(declaration: TopicDeclaration) -> timedelta:
    first = window_starting_at(declaration.schedule, declaration.first_edge)
    return timedelta() if first is None else first.end - first.start


def counted(windows: Sequence[UnloadedWindow]) -> str:
    """Return the number of windows and the first few of them: `4 windows (a, b, c and 1 more)`."""
    named = ", ".join(w.window for w in windows[:_NAMED])
    more = f" and {len(windows) - _NAMED} more" if len(windows) > _NAMED else ""
    return f"{len(windows)} window{'' if len(windows) == 1 else 's'} ({named}{more})"


def _began(tick: InstigatorTick | None) -> str | None:
    return None if tick is None else _iso(datetime.fromtimestamp(tick.timestamp, UTC))


def _error_of(tick: InstigatorTick | None) -> str | None:
    """Return the error of a tick: the platform's own error, which contains the remedy, or otherwise the root cause."""
    if tick is None or tick.status is not TickStatus.FAILURE:
        return None
    error: SerializableErrorInfo | None = tick.error
    if error is None:
        return "not recorded; see the tick in the UI under Automation"
    known = {kind.__name__ for kind in _kinds(PlatformError)}
    while error.cause is not None and error.cls_name not in known:
        error = error.cause
    return error.message.strip()


def _kinds(kind: type[PlatformError]) -> Iterator[type[PlatformError]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from _kinds(derived)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class CheckStatus:
    """The last evaluation of one check. `at` is ISO 8601 in UTC; `passed` and `at` are None if the check never ran.

    `warning` is true for a check that did not pass but only warns.
    """

    name: str
    passed: bool | None
    at: str | None
    headline: str
    warning: bool = False

    @property
    def failed(self) -> bool:
        """True if the check did not pass and its result is more than a warning."""
        return self.passed is False and not self.warning


def checks_not_run(
    table: TableRef,
    checks: Sequence[CheckStatus],
    window: str | None,
    since: datetime | None,
    patience: timedelta,
    now: datetime,
) -> Iterator[str]:
    """Return what to do about checks of `table` that never ran although the table has windows.

    `window` is one of these windows. `since` is when the first of the windows was recorded, None if there is none. The
    run that loaded the window may take up to `patience` to evaluate its checks.
    """
    missing = [check.name for check in checks if check.passed is None]
    if not missing or window is None or since is None or now - since <= patience:
        return
    yield (
        f"the result of {', '.join(missing)} is not known: Dagster has no record of "
        f"{'it' if len(missing) == 1 else 'them'}, for example because its storage was replaced. "
        f"`platform-assets load {table} {window}` evaluates and reports the checks; `platform-assets audit {table}` "
        f"checks all windows without Dagster"
    )


def latest_checks(instance: dg.DagsterInstance | None, keys: Sequence[dg.AssetCheckKey]) -> tuple[CheckStatus, ...]:
    """Return the status of each of these checks, in the given order. Without an instance, no check is known to have
    run."""
    if instance is None:
        return tuple(CheckStatus(key.name, None, None, "no DAGSTER_HOME") for key in keys)
    known = dagster_records.newest_evaluations(instance, keys)
    found: list[CheckStatus] = []
    for key in keys:
        if key not in known:
            found.append(CheckStatus(key.name, None, None, "never evaluated"))
            continue
        record, evaluation = known[key]
        at = datetime.fromtimestamp(record.create_timestamp, UTC).isoformat(timespec="seconds")
        warning = not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.WARN
        found.append(CheckStatus(key.name, evaluation.passed, at, plain(evaluation.description or ""), warning))
    return tuple(found)
