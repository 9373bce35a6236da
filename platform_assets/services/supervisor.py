"""Start services in parallel, or not at all, and keep the run state correct in the meantime."""

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
"""Seconds that a service may take to end after a request; a killed broker checks its logs at the next start."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One service to bring up.

    Attributes:
        service: its name.
        build: prepares it and returns its spec; called only if it has to be started.
        answers: returns True if the process of an earlier start still works.
        changed: returns the settings that have changed since that start, for people; empty if none.
    """

    service: str
    build: Callable[[], ServiceSpec]
    answers: Callable[[ProcessRecord], bool]
    changed: Callable[[ProcessRecord], str] = lambda record: ""


def bring_up(home: Home, launches: Sequence[Launch], report: Reporter) -> tuple[ProcessRecord, ...]:
    """Start, in parallel, the services that do not run; if one fails, end all that this call started.

    A service that runs and answers is left alone. One that is dead, hung, half-started or was started with other
    settings is ended completely and started.

    Args:
        home: whose services; its lock must be held.
        launches: what to bring up; they must not need each other.
        report: called with a line of text for each step.

    Returns:
        The records of the services that this call started.

    Raises:
        ServiceStartError: one did not come up; the first failure, with its log.
        PlatformError: as the builders raise.
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
    """End one service completely and remove it from the run state; return True if anything was running."""
    found = terminate(record, grace)
    state.remove_record(home, record.service)
    report(f"{record.service}: ended" if found else f"{record.service}: was not running")
    return found


def end_all(home: Home, records: Sequence[ProcessRecord], report: Reporter, grace: float = GRACE_SECONDS) -> int:
    """End services, sending the request to all of them at once, and remove them from the run state; return how many
    were running.

    Brokers need that: each hands over to the others while it ends, and would wait for those that have already ended.
    """
    with ThreadPoolExecutor(max(1, len(records))) as pool:
        return sum(pool.map(lambda record: end(home, record, report, grace), records))


@contextmanager
def signals_end_in_order() -> Iterator[None]:
    """Turn a request to end this program into an exception, so that the processes that it started are ended too.

    Without this, SIGTERM and SIGHUP end Python immediately. Signals that the shell made this program ignore (SIGINT
    in the background of a script, SIGHUP under nohup) are still ignored here, but not by the programs that it
    starts: these would inherit that, and Dagster's would then ignore SIGTERM as well. Only the main thread may set
    handlers; in other threads, nothing is changed.
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
    """Do nothing: unlike SIG_IGN, a handler is not inherited by programs."""


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
                else "an earlier start left it half-started"
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
