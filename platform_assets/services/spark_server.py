"""One Spark Connect server on loopback, with the Kafka and Delta jars. The server requires a token."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from platform_assets.services import state
from platform_assets.services.connect_probe import accepts
from platform_assets.services.home import Home
from platform_assets.services.inherited import STORE, WORKERS
from platform_assets.services.ivy import pyspark_jars
from platform_assets.services.jars import class_path, replacements
from platform_assets.services.java import SPARK_OPTIONS, UNICODE_PATHS, Java, find_java
from platform_assets.services.ports import LOOPBACK, SPARK_VARIABLE, choose_ports
from platform_assets.services.process import ServiceSpec

SERVICE: Final = "spark"
HEAP_VARIABLE: Final = "SPARK_HEAP"
TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""Spark's own variable, from which the server reads its token. This keeps the token out of argument lists and logs."""

LOGGING_FILE: Final = Path(__file__).with_name("spark-log4j2.properties")
START_TIMEOUT_SECONDS: Final = 180.0
SECRET_NAMES: Final = "secret|password|token|access[.]?key|jaas|keystore.key|auth.user.info"
"""Pattern for the names of settings whose values Spark must not show. The last three alternatives match Kafka settings.
"""

CONFIGURATION: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A window without records is a commit too: its offsets are recorded like any other's.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    "spark.redaction.regex": f"(?i){SECRET_NAMES}",
    "spark.sql.redaction.options.regex": f"(?i)url|{SECRET_NAMES}",
    # The platform's sessions set this option and the previous one themselves; here they are for other sessions, and for
    # servers that forbid setting them.
    "spark.sql.redaction.string.regex": f'(?i)key:[ ]"[^"]*(?:{SECRET_NAMES})[^"]*"[^"]*value:.*',
    "spark.sql.session.timeZone": "UTC",
    # Each load has a separate consumer group, so Spark never reuses what it caches for the next read of the same group:
    # records fetched after a range's end stay for five minutes and would fill the heap when windows are loaded in a
    # row.
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
    "spark.kafka.consumer.cache.timeout": "5s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
    "spark.kafka.consumer.cache.capacity": "16",
    "spark.ui.enabled": "false",
    "spark.scheduler.mode": "FAIR",
    # Tables on one machine are small: a parallel task would cost more than it saves.
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    # By default, each VACUUM lists its table in 10,000 tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}
"""Settings that loads rely on, followed by settings for one machine. A cluster needs all settings before
`spark.ui.enabled`."""

GUARDED: Final[Mapping[str, str]] = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    # By default Spark encrypts without authenticating, and falls back to an older protocol (CVE-2025-55039).
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
}
"""Settings that make Spark's processes communicate only with processes that have the same secret. A server that runs
its tasks itself generates a secret. Any other server must be given a secret."""

CLIENT_VARIABLES: Final[Mapping[str, None]] = dict.fromkeys(
    ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", "MASTER")
)
"""Variables that are meant for clients, including variables that pyspark sets in this process. If a server inherited
them, it would behave like a client."""

PURGE_VARIABLE: Final = "MIMALLOC_PURGE_DELAY"
PURGE_MILLISECONDS: Final = "1000"
"""Time for which Arrow's allocator keeps memory that a Python worker has freed. With the default of 10 ms, the
allocator returns the memory of each block to the system, and the system has to clear that memory for the next block.
Clearing takes up to a tenth of a load's processor time."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Settings with which a server is started.

    Attributes:
        heap: maximum Java heap, for example `3g`. `SPARK_HEAP` in the environment takes precedence.
        master: the Spark master, which determines where tasks run, for example `local[*]`.
        configuration: Spark settings that are added to the defaults or replace them. They must not contain secrets,
            because they are stored in a file.
    """

    heap: str = "3g"
    master: str = "local[*]"
    configuration: Mapping[str, str] = field(default_factory=dict)


def spark_spec(
    home: Home,
    settings: SparkSettings | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    clients: Mapping[str, str] = MappingProxyType({}),
) -> ServiceSpec:
    """Write the server's options and token, and return the spec to start the server.

    The server is started as a Java class and not with spark-submit, whose launcher needs a Java module that a bundled
    runtime lacks.

    Args:
        home: the home that contains the scratch folder, the logs and the token.
        settings: heap, master and Spark settings.
        environ: the environment to read; the process's own by default.
        clients: variables for the Kafka clients in the server's Python workers, in addition to the variables of this
            process.

    Raises:
        PortTakenError, ConfigurationError: `SPARK_CONNECT_PORT` is wrong, or the port is in use; or pyspark is not
            installed.
        JavaNotFoundError: no Java was found.
    """
    env = os.environ if environ is None else environ
    chosen = settings or SparkSettings()
    java = find_java(env)
    (port,) = choose_ports(1, SPARK_VARIABLE, remembered=state.remembered_ports(home, SERVICE), environ=env)
    state.remember_ports(home, SERVICE, (port,))
    token = ensure_token(home)
    # Left by a server that was killed; no other server runs in this home while one is being started.
    shutil.rmtree(_scratch(home), ignore_errors=True)
    configuration = {
        **CONFIGURATION,
        **server_settings(home, LOOPBACK, chosen.master, port, env),
        "spark.driver.bindAddress": LOOPBACK,
        **(GUARDED if chosen.master.startswith("local") else {}),
        **chosen.configuration,
    }
    return ServiceSpec(
        name=SERVICE,
        command=server_command(java, home, configuration, env.get(HEAP_VARIABLE) or chosen.heap),
        environment={
            **UNICODE_PATHS,
            **CLIENT_VARIABLES,
            **worker_environment(env),
            **clients,
            "SPARK_LOCAL_DIRS": None,
            TOKEN_VARIABLE: token,
            "SPARK_LOCAL_IP": LOOPBACK,
        },
        directory=home.spark,
        log=home.log_file(SERVICE),
        address=f"sc://localhost:{port}",
        ports=(port,),
        timeout=START_TIMEOUT_SECONDS,
        ready=lambda: accepts(LOOPBACK, port, token),
        inherits=(*WORKERS, *(STORE if home.is_in_store else ())),
    )


def server_settings(home: Home, host: str, master: str, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return settings for a server's addresses and folders. Tasks that `master` runs reach the server at `host`;
    clients reach the server at `port` on loopback."""
    return {
        "spark.app.name": "platform-assets",
        "spark.master": master,
        "spark.driver.host": host,
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(_scratch(home)),
        # As a path: in a URI, Spark treats "%20" as part of the folder's name, and creates a folder with that name.
        "spark.sql.warehouse.dir": str(home.spark / "warehouse"),
        **(object_store(environ) if home.is_in_store else {}),
    }


def server_command(java: Java, home: Home, configuration: Mapping[str, str], heap: str) -> tuple[str, ...]:
    """Return the command line for a server with these settings. The settings are written to a file that only its owner
    can read. Raises OSError."""
    scratch = _scratch(home)
    scratch.mkdir(parents=True, exist_ok=True)
    options = [
        *SPARK_OPTIONS,
        f"-Xmx{heap}",
        "-XX:+UseG1GC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        "-Duser.timezone=UTC",
        f"-Djava.io.tmpdir={scratch}",
        f"-Dderby.system.home={home.spark / 'derby'}",
        f"-Dlog4j2.configurationFile={LOGGING_FILE.as_uri()}",
        *(f"-D{key}={value}" for key, value in configuration.items()),
        "-cp",
        # pyspark's own jars precede the added ones: if both contain a class, the one that Spark was built with is used.
        os.pathsep.join([*map(str, replacements(home)), str(pyspark_jars() / "*"), *map(str, added_jars(home))]),
    ]
    arguments = home.run / "spark.arguments"
    state.write_private(arguments, "".join(f"{_quoted(option)}\n" for option in options))
    return str(java.executable), f"@{arguments}", "org.apache.spark.sql.connect.service.SparkConnectServer"


def added_jars(home: Home) -> tuple[Path, ...]:
    """Return the jars that Spark needs for the lake of `home`, in addition to pyspark's jars."""
    return (*class_path(home, "spark"), *(class_path(home, "s3a") if home.is_in_store else ()))


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in a server's environment that are meant for its Python workers."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        PURGE_VARIABLE: environ.get(PURGE_VARIABLE) or PURGE_MILLISECONDS,
    }


def _scratch(home: Home) -> Path:
    return home.spark / "scratch"


def object_store(environ: Mapping[str, str]) -> dict[str, str]:
    """Return settings with which Spark reads and writes files in the object store that the environment specifies. The
    settings contain no secrets.

    Credentials come from the environment of Spark's own processes. Spark never commits in the object store, because
    none of Delta's LogStores for Spark is safe with concurrent writers.
    """
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or environ.get("AWS_ENDPOINT")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    found = {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": region,
        # As in delta-rs: a bucket of a self-hosted store has no host name.
        "spark.hadoop.fs.s3a.path.style.access": "true" if endpoint else None,
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false" if (endpoint or "").startswith("http://") else None,
        "spark.hadoop.fs.s3a.attempts.maximum": "4",
        "spark.hadoop.fs.s3a.retry.limit": "4",
    }
    return {name: value for name, value in found.items() if value is not None}


def ensure_token(home: Home) -> str:
    """Return the home's token. If there is no token, create a token in a file that only its owner can read.

    Raises:
        OSError: the file can be neither read nor written.
    """
    if (known := read_token(home)) is not None:
        return known
    token = secrets.token_urlsafe(32)
    state.write_private(home.token_file, token + "\n")
    return token


def read_token(home: Home) -> str | None:
    """Return the home's token, or None before the first start."""
    try:
        return home.token_file.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None


def remote(home: Home, address: str) -> str:
    """Return the value of `SPARK_REMOTE` for a server's address. The value contains the token: never print it."""
    token = read_token(home)
    return f"{address}/;token={token}" if token else address


def _quoted(option: str) -> str:
    """Quote one option for Java's argument file."""
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'
