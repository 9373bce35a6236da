"""What keeps a table from being loaded: windows that fail or wait for somebody, and a sensor that does not ask for them.

Gathered from the ledger and from what Dagster has on record; `problems` judges it, and is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorTick, TickStatus
from dagster_shared.error import SerializableErrorInfo

from platform_assets.ledger.decisions import Decision
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import edge_of, window_starting_at
from platform_assets.orchestration import runs
from platform_assets.orchestration.names import sensor_name
from platform_assets.orchestration.retries import tries_of

State = Literal["under way", "to be asked for", "failed", "waits for somebody", "of an earlier schedule", "parked"]
"""Of a window that is not loaded. to be asked for: by a tick to come; failed: its last run did, and it is asked for again;
waits for somebody: its last run says what has to be decided; of an earlier schedule: it is no partition any more, and loaded
from a shell alone; parked: an operator has set it aside, and `error` says who and why."""

_LONGEST: Final = 400
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class UnloadedWindow:
    """A sealed window that is not loaded. Times are ISO 8601 in UTC.

    `tries` is the number of runs that failed to load it; `failed_at` when the last of them ended and `error` what it said;
    `again_at` when the window is asked for again, None where it waits for somebody, or for nothing.
    """

    window: str
    state: State
    tries: int
    failed_at: str | None
    again_at: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class SensorStatus:
    """The sensor of a topic as Dagster has it on record: `ticked_at` (ISO 8601, UTC) and `error` are of its last tick."""

    name: str
    running: bool
    ticked_at: str | None
    error: str | None


def sensors(instance: dg.DagsterInstance) -> dict[str, InstigatorState]:
    """Sensors by name, as far as Dagster has any on record."""
    found: dict[str, InstigatorState] = {}
    for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR):
        known = found.get(state.instigator_name)
        # A code location that was renamed leaves the state of its sensors behind.
        if known is None or not known.is_running:
            found[state.instigator_name] = state
    return found


def sensor(instance: dg.DagsterInstance, states: Mapping[str, InstigatorState], topic: str) -> SensorStatus | None:
    """The sensor of `topic`; None where Dagster has nothing on record of it."""
    name = sensor_name(topic)
    state = states.get(name)
    if state is None:
        return None
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=3)
    last = next((tick for tick in ticks if tick.status is not TickStatus.STARTED), None)
    at = None if last is None else _iso(datetime.fromtimestamp(last.timestamp, UTC))
    return SensorStatus(name, state.status is not InstigatorStatus.STOPPED, at, _error_of(last))


def windows(
    declaration: TopicDeclaration,
    instance: dg.DagsterInstance | None,
    keys: Sequence[str],
    under_way: Collection[str],
    parked: Mapping[str, Decision],
) -> list[UnloadedWindow]:
    """The state of each of the windows `keys`, which ascend and are not loaded; runs will bring those of `under_way`."""
    tries = {} if instance is None else tries_of(keys, runs.failed_runs(instance, declaration.raw_table, keys))
    found: list[UnloadedWindow] = []
    for key in keys:
        tried = tries.get(key)
        state: State = "to be asked for"
        if key in under_way:
            state = "under way"
        elif key in parked:
            state = "parked"
        elif window_starting_at(declaration.schedule, edge_of(key)) is None:
            state = "of an earlier schedule"
        elif tried is not None:
            state = "waits for somebody" if tried.waits_for_somebody else "failed"
        again = None if tried is None or state != "failed" else _iso(tried.again_at(declaration.sensor_interval))
        failed_at = None if tried is None else _iso(tried.last.ended)
        number, error = (0, None) if tried is None else (tried.number, tried.last.error)
        if state == "parked":
            error = f"parked by {parked[key].decided_by}: {parked[key].reason}"
        found.append(UnloadedWindow(key, state, number, failed_at, again, error))
    return found


def problems(
    declaration: TopicDeclaration,
    unloaded: Sequence[UnloadedWindow],
    sensor: SensorStatus | None,
    pending: datetime | None,
    now: datetime,
) -> Iterator[str]:
    """What is wrong, since when and what to do, in a sentence or two each.

    `pending` is the first edge that has closed and has no cut, where there is one.
    """
    table, late = declaration.raw_table, max(3 * declaration.sensor_interval, timedelta(minutes=2))
    if sensor is not None and not sensor.running:
        yield f"its sensor {sensor.name} is stopped, so no window is sealed or loaded: start it in the UI under Automation"
    elif sensor is not None and sensor.error is not None:
        yield f"its sensor {sensor.name} fails, last at {sensor.ticked_at}: {_shortened(sensor.error)}"
    elif pending is not None and now - pending > late:
        yield (
            f"no window has been sealed since the one that ended before {_iso(pending)}: the sensor does not tick, or has "
            "not caught up. See that Dagster's daemon runs (`platform-assets up`)"
        )
    failing = [w for w in unloaded if w.tries and w.state in ("failed", "under way")]
    if failing:
        last = max(failing, key=lambda w: w.failed_at or "")
        again = min((w.again_at for w in failing if w.again_at is not None), default=None)
        then = "a run for it is under way" if again is None else f"asked for again from {again} on"
        yield (
            f"{_counted(failing)} failed to load, the last time at {last.failed_at}, after {last.tries} tries; {then}. "
            f"The run said: {_shortened(last.error or '')}"
        )
    for window in [w for w in unloaded if w.state == "waits for somebody"][:_NAMED]:
        yield f"window {window.window} waits for somebody: {_shortened(window.error or '')}"
    earlier = [w for w in unloaded if w.state == "of an earlier schedule"]
    if earlier:
        yield (
            f"{_counted(earlier)} of an earlier schedule cannot be asked for: "
            f"`platform-assets load {table} {' '.join(w.window for w in earlier[:_NAMED])}`"
        )
    ignored = [
        w for w in unloaded if w.state == "to be asked for" and now - edge_of(w.window) > late + _length(declaration)
    ]
    if ignored and sensor is not None:
        yield f"{_counted(ignored)} sealed and not loaded, and no run for it is known; the sensor asks at its next tick"


def _length(declaration: TopicDeclaration) -> timedelta:
    first = window_starting_at(declaration.schedule, declaration.first_edge)
    return timedelta() if first is None else first.end - first.start


def _counted(windows: Sequence[UnloadedWindow]) -> str:
    named = ", ".join(w.window for w in windows[:_NAMED])
    more = f" and {len(windows) - _NAMED} more" if len(windows) > _NAMED else ""
    return f"{len(windows)} window{'' if len(windows) == 1 else 's'} ({named}{more})"


def _error_of(tick: InstigatorTick | None) -> str | None:
    if tick is None or tick.status is not TickStatus.FAILURE:
        return None
    error: SerializableErrorInfo | None = tick.error
    if error is None:
        return "its last tick failed without saying why"
    while error.cause is not None:
        error = error.cause
    return error.message.strip()


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")
