"""Managed child processes. They are started, awaited and ended by identity, never by name.

A process is identified by its pid and its start time, so a later process that reuses the pid is never signaled. The
descendants of a process are identified by a random mark in their environment. They can therefore be found even after
their parent has died.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil

from platform_assets.services import log_keeper
from platform_assets.services.errors import ServiceStartError
from platform_assets.services.inherited import SYSTEM, inherited
from platform_assets.services.log_keeper import created, rotate

MARK_VARIABLE: Final = "PLATFORM_PROCESS_MARK"
PROBE_INTERVAL_SECONDS: Final = 0.1
LOG_TAIL_LINES: Final = 15
_LOG_SECONDS: Final = 2.0
PRIVATE: Final = 0o077
"""The umask for a service whose files only its owner may read."""
CANCELLED: Final = "starting was cancelled"

_children: dict[int, subprocess.Popen[bytes]] = {}
_keepers: dict[int, subprocess.Popen[bytes]] = {}
# Held so that a child that outlives this program causes no warning, and so that `poll` reaps a dead one. Log keepers
# are held by the id of their service.


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A specification for starting one service and for checking that it is ready.

    Attributes:
        name: the readable name, which is also the name of the log file without its extension.
        command: the argument list. Arguments are public, so they must not contain a secret.
        environment: variables to add to the inherited variables; the value None removes an inherited variable. The
            values may contain secrets.
        directory: the working directory.
        log: the file for stdout and stderr. A new file begins at each start, and also when the current file is too
            large. A few earlier files are kept.
        address: the service's address for other programs, without secrets.
        ports: the loopback ports on which the service listens.
        timeout: the number of seconds within which the service must be ready.
        ready: returns True if the service answers. It must not raise, and must not block for more than a second or two.
        fingerprint: a string that differs for different settings, without secrets. It shows if a process was started
            with older settings.
        inherits: patterns for the names of the variables that the service inherits from this process.
        umask: the umask for files that the service creates; -1 for the umask of this process.
        log_bytes: the size at which a new log file begins.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str | None]
    directory: Path
    log: Path
    address: str
    ports: tuple[int, ...]
    timeout: float
    ready: Callable[[], bool]
    fingerprint: str = ""
    inherits: tuple[str, ...] = SYSTEM
    umask: int = -1
    log_bytes: int = log_keeper.MOST_BYTES


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A started process in the form that the run state stores.

    Attributes:
        service: the name in the spec.
        pid: the process id; 0 while the process is being started.
        started: an opaque string that distinguishes the process from a later process with the same pid.
        mark: a random string in the environment of the process and its descendants.
        log: the log file.
        address: the address for other programs, without secrets.
        ports: the ports on which the process listens.
        ready: true if the process has answered once.
        fingerprint: the fingerprint in the spec.
    """

    service: str
    pid: int
    started: str
    mark: str
    log: str
    address: str
    ports: tuple[int, ...]
    ready: bool = False
    fingerprint: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__} | {"ports": list(self.ports)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProcessRecord:
        """Parse the result of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: the value is not a result of `to_json`.
        """
        return cls(
            service=str(value["service"]),
            pid=int(value["pid"]),
            started=str(value["started"]),
            mark=str(value["mark"]),
            log=str(value["log"]),
            address=str(value["address"]),
            ports=tuple(int(port) for port in value["ports"]),
            ready=bool(value["ready"]),
            fingerprint=str(value.get("fingerprint", "")),
        )


def planned(spec: ServiceSpec) -> ProcessRecord:
    """Return the record of a process that is about to be started. Save the record before starting the process: if this
    program crashes during the start, the record makes cleaning up possible."""
    mark, log = secrets.token_hex(16), str(spec.log)
    return ProcessRecord(spec.name, 0, "", mark, log, spec.address, spec.ports, fingerprint=spec.fingerprint)


def spawn(spec: ServiceSpec, plan: ProcessRecord) -> ProcessRecord:
    """Start the process in its own session, so that a Ctrl-C in the terminal does not reach it.

    Returns:
        The planned record, with the pid and the start time.

    Raises:
        ServiceStartError: the program cannot be started.
    """
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    spec.directory.mkdir(parents=True, exist_ok=True)
    rotate(spec.log)
    keeper = _keep_log(spec)
    assert keeper.stdin is not None
    try:
        process = subprocess.Popen(
            spec.command,
            stdin=subprocess.DEVNULL,
            stdout=keeper.stdin,
            stderr=subprocess.STDOUT,
            cwd=spec.directory,
            env=environment_of(spec, plan.mark),
            start_new_session=True,
            umask=spec.umask,
        )
    except OSError as error:
        keeper.stdin.close()
        keeper.wait()
        raise ServiceStartError(spec.name, str(error), str(spec.log)) from error
    keeper.stdin.close()
    _keepers[process.pid] = keeper
    _children[process.pid] = process
    return replace(plan, pid=process.pid, started=start_of(process.pid) or "")


def wait_ready(spec: ServiceSpec, record: ProcessRecord, cancel: threading.Event | None = None) -> ProcessRecord:
    """Wait until the service answers.

    Args:
        spec: the spec of the service that was started.
        record: the record that `spawn` returned.
        cancel: an event; if it is set, waiting ends with an error.

    Returns:
        The record, marked as ready.

    Raises:
        ServiceStartError: the process died, the time ran out, or waiting was canceled. The error quotes the end of the
            log.
    """
    deadline = time.monotonic() + spec.timeout
    while True:
        if not is_alive(record):
            _await_log(record.pid)
            raise ServiceStartError(spec.name, f"the process ended{_tail_text(spec.log)}", str(spec.log))
        if spec.ready():
            return replace(record, ready=True)
        if time.monotonic() > deadline:
            reason = f"it was not ready within {spec.timeout:g} s{_tail_text(spec.log)}"
            raise ServiceStartError(spec.name, reason, str(spec.log))
        if cancel is not None and cancel.is_set():
            raise ServiceStartError(spec.name, CANCELLED, str(spec.log))
        # Returns as soon as the process dies, so that its end is reported at once.
        _await_end(record.pid, PROBE_INTERVAL_SECONDS)


def is_alive(record: ProcessRecord) -> bool:
    """Return True if the recorded process is running. A zombie or another process with the same pid does not count."""
    if record.pid == 0:
        return False
    if (child := _children.get(record.pid)) is not None:
        child.poll()
    return start_of(record.pid) == record.started != ""


def start_of(pid: int) -> str | None:
    """Return a process's start time as an opaque string that never changes, or None if the process is not running.

    On Linux, this is the kernel's count since boot, which does not change when the clock is set.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if psutil.LINUX:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            return f"{boot}:{fields[19]}"
        return f"{process.create_time():.2f}"
    except (psutil.Error, OSError, IndexError):
        return None


def family(record: ProcessRecord) -> list[psutil.Process]:
    """Return the recorded process if it is running, and every running process with the same mark. Descendants come
    last."""
    members: dict[int, psutil.Process] = {}
    if is_alive(record):
        members[record.pid] = psutil.Process(record.pid)
    for process in psutil.process_iter():
        try:
            if process.pid in members or process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(MARK_VARIABLE) == record.mark:
                members[process.pid] = process
        except (psutil.Error, OSError):
            continue
    return list(members.values())


def terminate(record: ProcessRecord, grace: float) -> bool:
    """End a service and its descendants, first with SIGTERM and then with SIGKILL.

    Args:
        record: the record of the service.
        grace: the number of seconds between SIGTERM and SIGKILL.

    Returns:
        True if any process had to be ended. After this call, no process with the identity in the record is running.
    """
    members = family(record)
    found = bool(members)
    if is_alive(record):
        # The service itself first: it ends its own children cleanly.
        _signal(members[:1], kill=False)
        _wait_gone(members[:1], grace)
    _signal(family(record), kill=False)
    _wait_gone(family(record), min(grace, 5.0))
    while rest := family(record):
        _signal(rest, kill=True)
        _wait_gone(rest, 5.0)
    if (child := _children.pop(record.pid, None)) is not None:
        child.poll()
        child.returncode = child.returncode if child.returncode is not None else 0
    _await_log(record.pid)
    return found


def log_tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """Return the last lines of a log, or nothing if there is no log."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 64 * 1024))
            return "\n".join(stream.read().decode("utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def environment_of(spec: ServiceSpec, mark: str) -> dict[str, str]:
    """Return all variables in the environment with which the service is started."""
    merged: dict[str, str | None] = {**inherited(os.environ, spec.inherits), **spec.environment, MARK_VARIABLE: mark}
    return {name: value for name, value in merged.items() if value is not None}


def _tail_text(log: Path) -> str:
    tail = log_tail(log)
    return f"; the last lines of its log:\n{tail}\n" if tail else ""


def _keep_log(spec: ServiceSpec) -> subprocess.Popen[bytes]:
    """Start the program that writes the service's output to the log. The program ends when the last process that can
    write output has ended."""
    # Created immediately, so that messages can name it.
    os.close(created(spec.log))
    return subprocess.Popen(
        (sys.executable, "-I", "-S", log_keeper.__file__),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={log_keeper.LOG_VARIABLE: str(spec.log), log_keeper.BYTES_VARIABLE: str(spec.log_bytes)},
        start_new_session=True,
    )


def _await_log(pid: int) -> None:
    """Wait until the complete output of a service is in the log, or until a few seconds have passed. This program must
    have started the service."""
    if (keeper := _keepers.pop(pid, None)) is None:
        return
    try:
        keeper.wait(_LOG_SECONDS)
    except subprocess.TimeoutExpired:
        _keepers[pid] = keeper


def _signal(processes: Sequence[psutil.Process], *, kill: bool) -> None:
    for process in processes:
        try:
            # psutil checks the start time before it sends a signal.
            process.kill() if kill else process.terminate()
        except psutil.NoSuchProcess:
            continue


def _wait_gone(processes: Sequence[psutil.Process], timeout: float) -> None:
    """Wait until none of the processes is running, or until `timeout` seconds have passed.

    If a process has ended but its parent, which is another program, has not collected its exit status, the process
    still counts as ended.
    """
    deadline = time.monotonic() + timeout
    left = list(processes)
    while left and (allowed := deadline - time.monotonic()) > 0:
        _, alive = psutil.wait_procs(left, timeout=min(allowed, PROBE_INTERVAL_SECONDS))
        left = [process for process in alive if start_of(process.pid) is not None]


def _await_end(pid: int, timeout: float) -> None:
    child = _children.get(pid)
    try:
        if child is not None:
            child.wait(timeout)
        else:
            psutil.Process(pid).wait(timeout)
    except (subprocess.TimeoutExpired, psutil.TimeoutExpired, psutil.NoSuchProcess):
        return
