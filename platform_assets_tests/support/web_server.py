"""The web server for one module of the tests, started in the same way as by `up`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from platform_assets.services.dagster_services import web_answers
from platform_assets.services.home import CHECKOUT
from platform_assets.services.ports import DAGSTER_VARIABLE, LOOPBACK, choose_ports


@contextmanager
def webserver(module: str, root: Path, environment: Mapping[str, str], *options: str) -> Iterator[str]:
    """Provide the UI's address for the code location in `module`. The web server's log is in the folder `root`."""
    (port,) = choose_ports(1, DAGSTER_VARIABLE, environ=environment)
    with (root / "webserver.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "platform_assets.services.webserver", "--host", LOOPBACK, "--port", str(port),
             "--module-name", module, "--working-directory", str(CHECKOUT), *options],
            env=dict(environment), cwd=root, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 180
            while not web_answers(port):
                assert server.poll() is None, (root / "webserver.log").read_text()
                assert time.monotonic() < deadline, (root / "webserver.log").read_text()
                time.sleep(0.5)
            yield f"http://{LOOPBACK}:{port}"
        finally:
            server.terminate()
            server.wait(60)
