"""One process of a standalone Spark cluster, in the foreground, as a container runs it.

    python -m platform_assets.services.spark_node master --host 10.0.0.5 --recovery /var/lib/spark
    python -m platform_assets.services.spark_node worker --host 10.0.0.6 --master spark://spark-master:7077 --cores 2
    --memory 2g
    python -m platform_assets.services.spark_node connect --host 10.0.0.7 --master spark://spark-master:7077

If Spark's own variable `_SPARK_AUTH_SECRET` contains a secret, these processes encrypt their communication, and
communicate only with processes that have the same secret. Java replaces this process, so signals to this process reach
Spark.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from platform_assets.services import secret_files
from platform_assets.services.errors import ConfigurationError, PlatformError
from platform_assets.services.home import Home
from platform_assets.services.ivy import pyspark_jars
from platform_assets.services.java import SPARK_OPTIONS, UNICODE_PATHS, Java, find_java
from platform_assets.services.printable import printable
from platform_assets.services.spark_server import (
    CLIENT_VARIABLES,
    CONFIGURATION,
    GUARDED,
    HEAP_VARIABLE,
    LOGGING_FILE,
    TOKEN_VARIABLE,
    added_jars,
    server_command,
    server_settings,
    worker_environment,
)

AUTH_VARIABLE: Final = "_SPARK_AUTH_SECRET"
"""Spark's own variable that contains the secret. Spark passes the variable on to executors."""

MASTER_PORT, WORKER_PORT, DRIVER_PORT, BLOCKS_PORT, CONNECT_PORT = 7077, 7081, 7078, 7079, 15002
DAEMON_HEAP: Final = "512m"
"""Java heap of a master or a worker. It can be small, because tasks run in separate executors."""
_OF_ONE_MACHINE: Final = frozenset(
    {
        "spark.sql.shuffle.partitions",
        "spark.databricks.delta.snapshotPartitions",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism",
    }
)


def daemon_command(java: Java, main: str, arguments: Sequence[str], settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line that starts a master or a worker. `main` is the name of its class in
    `org.apache.spark.deploy`, and `settings` are Spark settings."""
    return (
        str(java.executable.resolve()), *SPARK_OPTIONS, f"-Xmx{DAEMON_HEAP}", "-XX:+ExitOnOutOfMemoryError",
        f"-Dlog4j2.configurationFile={LOGGING_FILE.as_uri()}",
        *(f"-D{name}={value}" for name, value in settings.items()),
        "-cp", str(pyspark_jars() / "*"), f"org.apache.spark.deploy.{main}", *arguments,
    )  # fmt: skip


def daemon_environment(java: Java) -> dict[str, str | None]:
    """Return the variables to add to the environment of a master or a worker; the value None removes a variable. A
    worker passes its environment on to executors."""
    return {
        **UNICODE_PATHS,
        **CLIENT_VARIABLES,
        "JAVA_HOME": str(java.executable.resolve().parent.parent),
        "SPARK_HOME": str(pyspark_jars().parent),
        "SPARK_SCALA_VERSION": "2.13",
    }


def guarding(environ: Mapping[str, str]) -> dict[str, str]:
    """Return settings with which a Spark process communicates only with processes that have the same secret in their
    environment. The result is empty if there is no secret."""
    if not environ.get(AUTH_VARIABLE):
        return {}
    return dict(GUARDED)


def recovering(folder: Path) -> dict[str, str]:
    """Return settings for a master that recognizes its workers and applications after a restart."""
    return {"spark.deploy.recoveryMode": "FILESYSTEM", "spark.deploy.recoveryDirectory": str(folder)}


def connect_settings(home: Home, host: str, master: str, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return settings for a Connect server on a cluster. Executors reach the server at `host`, and clients reach it
    only on loopback.

    Raises:
        ConfigurationError: the server would accept requests from anyone.
    """
    if not environ.get(TOKEN_VARIABLE):
        raise ConfigurationError(
            f"{TOKEN_VARIABLE} is not set: without a token, anyone who can reach the Connect server can run code on its cluster. "
            "Set it to a long random string, and use the same token in SPARK_REMOTE."
        )
    secret = environ.get(AUTH_VARIABLE)
    return {
        **{name: value for name, value in CONFIGURATION.items() if name not in _OF_ONE_MACHINE},
        **server_settings(home, host, master, port, environ),
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCKS_PORT),
        "spark.executor.extraClassPath": os.pathsep.join(map(str, added_jars(home))),
        # The secret is in a file that only the server's user can read. An executor gets it from its environment.
        **guarding(environ),
        **({"spark.authenticate.secret": secret} if secret else {}),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Replace this process with the process that the command line specifies. Return an exit code only if that is not
    possible."""
    chosen = parser().parse_args(arguments)
    try:
        secret_files.take(os.environ, secret_files.STORE)
        java = find_java(os.environ)
        home = Home.from_environment()
        home.prepare()
        command = (_connect if chosen.node == "connect" else _daemon)(java, home, chosen)
        variables = {**daemon_environment(java), **worker_environment(os.environ)}
        os.execve(command[0], command, {n: v for n, v in {**os.environ, **variables}.items() if v is not None})
    except (PlatformError, OSError) as error:
        print(printable(error), file=sys.stderr)
    return 1


def _daemon(java: Java, home: Home, chosen: argparse.Namespace) -> tuple[str, ...]:
    settings = guarding(os.environ)
    where = ("--host", chosen.host, "--port", str(chosen.port), "--webui-port", str(chosen.web_port))
    if chosen.node == "master":
        if chosen.recovery:
            settings |= recovering(Path(chosen.recovery))
        return daemon_command(java, "master.Master", where, settings)
    work = home.spark / "work"
    work.mkdir(parents=True, exist_ok=True)
    size = ("--cores", str(chosen.cores), "--memory", chosen.memory, "--work-dir", str(work))
    # A finished application leaves its folder, with the output of its executors.
    settings |= {"spark.worker.cleanup.enabled": "true", "spark.worker.cleanup.appDataTtl": "86400"}
    return daemon_command(java, "worker.Worker", (*where, *size, chosen.master), settings)


def _connect(java: Java, home: Home, chosen: argparse.Namespace) -> tuple[str, ...]:
    configuration = connect_settings(home, chosen.host, chosen.master, chosen.port, os.environ)
    configuration |= dict(_setting(text) for text in chosen.conf)
    return server_command(java, home, configuration, os.environ.get(HEAP_VARIABLE) or chosen.heap)


def _setting(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name.startswith("spark."):
        raise ConfigurationError(f"--conf {text!r} is not a Spark setting: write it as spark.name=value.")
    return name, value


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m platform_assets.services.spark_node",
        description=(__doc__ or "").splitlines()[0],
        allow_abbrev=False,
    )
    nodes = made.add_subparsers(dest="node", required=True)
    master = nodes.add_parser("master", help="the cluster's master")
    master.add_argument(
        "--recovery", metavar="FOLDER", help="folder for the state that the master needs after a restart"
    )
    worker = nodes.add_parser("worker", help="a worker, which starts executors")
    worker.add_argument("--cores", type=int, required=True)
    worker.add_argument("--memory", required=True, help="memory for the heaps of the worker's executors, such as 2g")
    connect = nodes.add_parser("connect", help="a Connect server on loopback, which runs its tasks on the cluster")
    connect.add_argument("--heap", default="3g")
    connect.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a Spark setting, which must not contain a secret",
    )
    for node, port in ((master, MASTER_PORT), (worker, WORKER_PORT), (connect, CONNECT_PORT)):
        node.add_argument("--host", required=True, help="address at which the other machines reach this machine")
        node.add_argument("--port", type=int, default=port)
        if node is not connect:
            node.add_argument("--web-port", type=int, default=0, help="port of the web page; default: any free port")
        if node is not master:
            node.add_argument("--master", required=True, metavar="spark://HOST:PORT")
    return made


if __name__ == "__main__":
    sys.exit(main())
