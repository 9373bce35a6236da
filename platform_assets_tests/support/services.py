"""Small substitutes for services. With these substitutes, tests of the supervisor's rules take only milliseconds."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from platform_assets.services.home import Home
from platform_assets.services.process import MARK_VARIABLE, ProcessRecord, ServiceSpec
from platform_assets.services.supervisor import Launch

SERVES = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); print('serving', flush=True); time.sleep(600)"
HANGS = "import time; print('thinking', flush=True); time.sleep(600)"
DIES = "import sys; print('about to fail'); sys.exit('no such luck')"
DEAF = (
    "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
)
WITH_CHILD = (
    "import pathlib, subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); "
    "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); time.sleep(600)"
)


def spec_of(home: Home, name: str, code: str, *, timeout: float = 30.0) -> ServiceSpec:
    """Return a service that runs this Python interpreter, and is ready when its flag file exists."""
    flag = home.root / f"{name}.flag"
    return ServiceSpec(
        name=name,
        command=(sys.executable, "-c", code, str(flag)),
        environment={},
        directory=home.root,
        log=home.log_file(name),
        address=f"nowhere:{name}",
        ports=(),
        timeout=timeout,
        ready=flag.exists,
    )


def launch_of(home: Home, name: str, code: str, *, answers: bool = True, timeout: float = 30.0) -> Launch:
    """Return the launch of this service. Each start removes the flag file of the previous start."""

    def build() -> ServiceSpec:
        (home.root / f"{name}.flag").unlink(missing_ok=True)
        return spec_of(home, name, code, timeout=timeout)

    return Launch(name, build, lambda record: answers)


def child_of(home: Home, name: str) -> int:
    """Return the pid of the child process that `WITH_CHILD` started."""
    return int(Path(home.root / f"{name}.flag").read_text())


def kill(record: ProcessRecord) -> None:
    """Kill a service's own process in the same way as the system would, and wait until the process has ended."""
    process = psutil.Process(record.pid)
    process.kill()
    process.wait(30)


def naming(path: Path) -> list[int]:
    """Return the pids of processes that have a path in their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(str(path) in part for part in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def marked(record: ProcessRecord) -> list[int]:
    """Return the pids of the processes that have the mark of a record. The operating system reports the marks, and the
    code under test is not used."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK_VARIABLE) == record.mark:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
