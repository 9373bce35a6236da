"""Start several services in parallel, and keep the run state correct while they start. If a service fails, end all of
them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

from platform_assets.services import state
from platform_assets.services.errors import ServiceStartError
from platform_assets.services.home import Home
from platform_assets.services.process import (
    CANCELLED,
    ProcessRecord,
    ServiceSpec,
    family,
    is_alive,
    planned,
    spawn,
    terminate,
    wait_ready,
)

Reporter = Callable[[str], None]

GRACE_SECONDS: Final = 30.0
"""Seconds within which a service must end once it is asked to. If a broker has to be killed, it checks its logs at its
next start."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One service to start.

    Attributes:
        service: the name of the service.
        build: prepares the service and returns its spec. It is called only if the service has to be started.
        answers: returns True if the process from an earlier start still answers.
        changed: returns a readable list of the settings that have changed since that start; empty if none have changed.
    """

    service: str
    build: Callable[[], ServiceSpec]
    answers: Callable[[ProcessRecord], bool]
    changed: Callable[[ProcessRecord], str] = lambda record: ""


def bring_up(home: Home, launches: Sequence[Launch], report: Reporter) -> tuple[ProcessRecord, ...]:
    """Start, in parallel, the services that are not running. If a service fails, end all services that this call
    started.

    A service that runs and answers is not changed. A service that is dead, hung or half-started, or that was started
    with other settings, is ended completely and then started.

    Args:
        home: the home of the services. Its lock must be held.
        launches: the services to start. They must not need each other.
        report: called with a line of text for each step.

    Returns:
        The records of the services that this call started.

    Raises:
        ServiceStartError: a service did not start. If several services fail, this error is about the first failure. It
            quotes that service's log.
        PlatformError: as raised by the `build` functions.
    """
    cancel = threading.Event()
    started: list[ProcessRecord] = []

    def one(launch: Launch) -> None:
        try:
            if (record := _ensure(home, launch, report, cancel)) is not None:
                started.append(record)
        except BaseException:
            cancel.set()
            raise

    try:
        with ThreadPoolExecutor(max(1, len(launches))) as pool:
            futures = [pool.submit(one, launch) for launch in launches]
            try:
                errors = [error for future in futures if (error := future.exception()) is not None]
            except BaseException:
                cancel.set()
                raise
        if errors:
            raise next((error for error in errors if not _was_cancelled(error)), errors[0])
    except BaseException:
        end_all(home, started, report)
        raise
    return tuple(started)


def end(home: Home, record: ProcessRecord, report: Reporter, grace: float = GRACE_SECONDS) -> bool:
    """End one service completely and remove it from the run state. Return True if any of its processes was running."""
    found = terminate(record, grace)
    state.remove_record(home, record.service)
    report(f"{record.service}: ended" if found else f"{record.service}: was not running")
    return found


def end_all(home: Home, records: Sequence[ProcessRecord], report: Reporter, grace: float = GRACE_SECONDS) -> int:
    """Request all of these services to end at the same time, and remove them from the run state. Return the number of
    services that were running.

    Brokers must end at the same time: while a broker ends, it hands over to the other brokers, and it would wait for
    those that have already ended.
    """
    with ThreadPoolExecutor(max(1, len(records))) as pool:
        return sum(pool.map(lambda record: end(home, record, report, grace), records))


@contextmanager
def signals_end_in_order() -> Iterator[None]:
    """Turn a request to end this program into an exception, so that the processes that the program started are ended
    too.

    Without this, SIGTERM and SIGHUP end Python immediately. The shell may have made this program ignore a signal
    (SIGINT in the background of a script, SIGHUP under nohup). In that case, this program still ignores the signal, but
    the programs that it starts do not. If Dagster's programs inherited an ignored SIGINT, they would ignore SIGTERM
    too. Only the main thread can set handlers; in other threads, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    ignored = [
        n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) in (signal.SIG_IGN, _ignored)
    ]
    wanted = {signal.SIGTERM: stop, signal.SIGHUP: stop} | dict.fromkeys(ignored, _ignored)
    former = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _ignored(number: int, frame: FrameType | None) -> None:
    """Do nothing. Programs that this program starts do not inherit a handler, whereas they would inherit SIG_IGN."""


def _was_cancelled(error: BaseException) -> bool:
    return isinstance(error, ServiceStartError) and error.reason == CANCELLED


def _ensure(home: Home, launch: Launch, report: Reporter, cancel: threading.Event) -> ProcessRecord | None:
    known = state.read_records(home).get(launch.service)
    if known is not None:
        whole = known.ready and is_alive(known)
        changed = launch.changed(known) if whole else ""
        if whole and not changed and launch.answers(known):
            report(f"{launch.service}: already running at {known.address} (pid {known.pid})")
            return None
        if family(known):
            why = (
                f"{changed} changed"
                if changed
                else "it does not answer"
                if whole
                else "an earlier start did not complete"
            )
            report(f"{launch.service}: {why}; ending it (pid {known.pid}) and starting it again")
        end(home, known, lambda _: None, grace=10.0)
    spec = launch.build()
    report(f"{launch.service}: starting at {spec.address}, log {spec.log}")
    record = planned(spec)
    try:
        state.write_record(home, record)
        record = spawn(spec, record)
        state.write_record(home, record)
        record = wait_ready(spec, record, cancel)
        if cancel.is_set():
            raise ServiceStartError(spec.name, CANCELLED, str(spec.log))
        state.write_record(home, record)
    except BaseException:
        terminate(record, grace=5.0)
        state.remove_record(home, spec.name)
        raise
    report(f"{launch.service}: ready (pid {record.pid})")
    return record
