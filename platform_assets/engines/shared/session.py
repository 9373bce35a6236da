"""A Spark Connect session that fails fast and shows its address in errors.

pyspark is imported inside the functions, so a code location loads without pyspark.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import socket
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from platform_assets.errors import ConfigurationError, SparkUnreachableError
from platform_assets.lake.location import Lake
from platform_assets.model.logs import logger

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


_log = logger(__name__)

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's first data source API, the default for Kafka, converts each record to a row of objects and back.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # Other programs read the default, INT96, as nanoseconds, which wrap around in the year 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A flipped byte in a column that no digest covers then raises an error instead of changing the value.
    "parquet.page.verify-checksum.enabled": "true",
    # A server may have them on: rows of files that are deleted or damaged would then be left out without an error.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # `${...}` in a derived table's query would otherwise be replaced by a value of the server.
    "spark.sql.variable.substitute": "false",
}

SECRET_NAMES: Final = "secret|password|token|access[.]?key|jaas|keystore.key|auth.user.info"
"""Pattern for the names of options whose values Spark must not show. The last three alternatives are Kafka options."""
REDACTED: Final = {
    # Options in plans.
    "spark.sql.redaction.options.regex": f"(?i)url|{SECRET_NAMES}",
    # Statements in Connect's page of the UI and in event logs: an option's value ends with its line.
    "spark.sql.redaction.string.regex": f'(?i)key:[ ]"[^"]*(?:{SECRET_NAMES})[^"]*"[^"]*value:.*',
}
"""Patterns for text that Spark must not show. Each session sets them in addition to its server's patterns, because a
user's own server might show everything that is sent to it."""
_REDACTED_BY_SERVER: Final = "spark.redaction.regex"

_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED_FROM: Final = 200_000
"""Number of records from which Spark's code generation pays off. It was measured with 30,000, 100,000 and 300,000
records of 172 bytes."""


def address_of(remote: str) -> tuple[str, int]:
    """Return the host and the port of `sc://host:port/;parameters`. Raises ConfigurationError, without showing the
    parameters."""
    parts = urlsplit(remote.split(";", 1)[0])
    if parts.scheme != "sc" or not parts.hostname:
        raise ConfigurationError("SPARK_REMOTE must have the form sc://host:port/;token=…")
    return parts.hostname, parts.port or 15002


def check_reachable(remote: str, timeout: float = 5.0) -> None:
    """Raise SparkUnreachableError if no server accepts a connection at `remote` within `timeout` seconds."""
    host, port = address_of(remote)
    try:
        socket.create_connection((host, port), timeout=timeout).close()
    except OSError as e:
        raise SparkUnreachableError(f"{host}:{port}", e.strerror or str(e)) from e


def connect(remote: str) -> SparkSession:
    """Return a session on the Spark Connect server, created with dagster-pyspark's resource and with Delta's guards
    set.

    The session becomes the thread's active session. An existing session for another server or with another token is not
    changed.

    Raises SparkUnreachableError and ConfigurationError.
    """
    check_reachable(remote)
    from dagster_pyspark import LazyPySparkResource
    from pyspark.errors import PySparkException

    host, port = address_of(remote)
    try:
        spark: SparkSession = LazyPySparkResource(spark_config={"spark.remote": remote}).spark_session
        if not _is_at(spark, remote):
            spark = type(spark).builder.remote(remote).create()
            # pyspark's functions use the thread's active session, which would be wrong if it belongs to another server.
            type(spark)._active_session.session = spark
        set_up_client(spark)
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        _redact(spark)
    except PySparkException as e:
        raise SparkUnreachableError(f"{host}:{port}", without_token(str(e))) from e
    return spark


def set_up_client(spark: SparkSession) -> None:
    """Retry calls to the server for only a few seconds, and let only `end` close the client of this session.

    pyspark's own policy retries for ten minutes, which is too long for a user who waits for the cause. In pyspark, all
    sessions of a process also share one thread pool, and any client that closes shuts down this pool. A session also
    closes its client when the session's memory is freed. If the memory is freed in a thread of the pool, or in a thread
    that is passing work to the pool, the pool ends during the queries of other sessions.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=6, initial_backoff=100, max_backoff=2_000)])
    spark.client.close = _not_now


def end(spark: SparkSession) -> None:
    """Stop `spark`. Prevent the session from closing its client a second time when the session's memory is freed: see
    `set_up_client`."""
    vars(spark.client).pop("close", None)
    spark.stop()
    spark.client.close = _not_now


def _not_now() -> None:
    """Do nothing. This replaces the client's own `close`, because only `end` closes the client."""


def _redact(spark: SparkSession) -> None:
    """Hide secrets in this session's statements and plans. Raises ConfigurationError if the server does not allow that."""
    from pyspark.errors import PySparkException

    for name, pattern in REDACTED.items():
        given = spark.conf.get(name, None)
        if given is not None and pattern in given:
            continue
        try:
            spark.conf.set(name, f"(?:{given})|(?:{pattern})" if given else pattern)
        except PySparkException as e:
            raise ConfigurationError(
                f"the Spark Connect server does not let a session set {name}, so Kafka's password could be visible "
                f"in the server's UI and event log. Nothing was sent to it. Start the server with {name}={pattern}"
            ) from e
    of_server = spark.conf.get(_REDACTED_BY_SERVER, None)
    if of_server is not None and not _matches(of_server, "spark.executorEnv.KAFKA_SASL_PASSWORD"):
        _log.warning(
            "the Spark Connect server displays settings that contain passwords, such as spark.executorEnv.KAFKA_SASL_PASSWORD: "
            "start it with %s=(?i)%s",
            _REDACTED_BY_SERVER,
            SECRET_NAMES,
        )


def _matches(pattern: str, text: str) -> bool:
    """Return True if a Java pattern matches anywhere in `text`, or if Python cannot parse the pattern."""
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True


def _is_at(spark: SparkSession, remote: str) -> bool:
    """Return True if the session was created for this server with this token. Other sessions belong to other code in
    this process."""
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    wanted, found = DefaultChannelBuilder(remote), spark.client._builder
    return isinstance(found, DefaultChannelBuilder) and (found.endpoint, found.token) == (wanted.endpoint, wanted.token)


def configure_codegen(spark: SparkSession, records: int) -> None:
    """Make Spark interpret the queries that follow if there are few `records`, or compile these queries if there are
    many.

    Spark compiles code for each new session and does not reuse that code in the next session. Compiling takes longer
    than reading and writing a small window.
    """
    for name, value in _INTERPRETED.items():
        if records < COMPILED_FROM:
            spark.conf.set(name, value)
        else:
            spark.conf.unset(name)


def without_token(text: str) -> str:
    """Return `text` without the value of any Connect token."""
    return re.sub(r"(token=)[^;&\s'\"]+", r"\1***", text)


# A Spark Connect session that processes share, so that its Python workers are warm when a new process sends its
# first job.
#
# Spark starts workers for each session and keeps them: a separate session pays for their start, and for loading the
# code, with its first job. A process that joins by the session's id finds them running. To keep that safe, no
# process stops such a session or changes its settings, and a process joins it only with the code that it was started
# with.

_ENDED: Final = ("SESSION_CLOSED", "SESSION_CHANGED", "SESSION_NOT_FOUND", "NO_ACTIVE_SESSION")
"""Error codes for a session that has ended. A server returns an error if the session was idle for too long (the server
then refuses the session's id), or if the session belonged to another server. In the second case, pyspark later raises
its own error."""
_MOST_REFUSED: Final = 1_000
"""Number of closed session ids that a server remembers by default."""


def is_ended(text: str) -> bool:
    """Return True if Spark's message means that the session has ended. In that case, the session's jobs have ended too,
    without a commit."""
    return any(sign in text for sign in _ENDED)


@dataclass
class SharedSession:
    """The session at `remote` for the tables of `lake` and for this `code`. Processes with the same three values share
    the session.

    The newest generation of the session is stored next to the ledger, so that session ids which the server refuses
    permanently are skipped. If the stored value is lost or wrong, the only effect is that these ids are tried again.
    """

    remote: str = field(repr=False)
    lake: Lake
    code: str
    _joined: SparkSession | None = field(default=None, init=False, repr=False)

    def session(self) -> SparkSession:
        """Return the session. The first call joins the session. Raises SparkUnreachableError and ConfigurationError."""
        if self._joined is None:
            self._joined = self._join()
        return self._joined

    def forget(self) -> None:
        """Leave the session, which continues to exist for other processes. The next call of `session` joins the same
        session again, or the session that has replaced it."""
        if self._joined is not None:
            session, self._joined = self._joined, None
            end(session)

    def session_id(self, generation: int) -> str:
        """Return a UUID derived from the code, the lake and the generation."""
        digest = hashlib.sha256(f"{self.code}\0{self.lake}\0{generation}".encode()).digest()
        return str(uuid.UUID(bytes=digest[:16], version=4))

    def _join(self) -> SparkSession:
        check_reachable(self.remote)
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.session import SparkSession

        known = self._known_generation()
        with_id = self.remote if ";" in self.remote else f"{self.remote.rstrip('/')}/;"
        for generation in itertools.count(known):
            session = SparkSession(connection=f"{with_id.rstrip(';')};session_id={self.session_id(generation)}")
            session.release_session_on_close = False
            set_up_client(session)
            try:
                _ = session.version  # a request to the server, which accepts or refuses the id
            except PySparkException as e:
                end(session)
                if is_ended(str(e)) and generation < known + _MOST_REFUSED:
                    continue
                host, port = address_of(self.remote)
                raise SparkUnreachableError(f"{host}:{port}", without_token(str(e))) from e
            if generation != known:
                self.lake.sessions.write(self._note, str(generation).encode())
            return session
        raise AssertionError("unreachable")

    def _known_generation(self) -> int:
        note = self.lake.sessions.read(self._note) or b""
        return int(note) if note.isdigit() else 0

    @property
    def _note(self) -> str:
        return f"{self.code}.generation"
