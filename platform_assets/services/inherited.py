"""Variables that a service inherits from the environment of the process that starts it: the variables that the service
needs, and no secrets that are meant for other programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

SYSTEM: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "TMPDIR", "LD_LIBRARY_PATH",
    "JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "MALLOC_*",
)  # fmt: skip
"""Name patterns of the variables that any program may need."""

STORE: Final = ("AWS_*", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
"""Name patterns of the variables needed to read and write a lake in an object store."""

WORKERS: Final = (
    *SYSTEM, "KAFKA_SECURITY_*", "KAFKA_SASL_*", "KAFKA_SSL_*", "KAFKA_CLIENT_*", "SCHEMA_REGISTRY_*",
    "PLATFORM_ALLOW_CLEARTEXT_LOGINS",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHON*", "PYSPARK_*", "VIRTUAL_ENV", "CONDA_PREFIX", "SPARK_*", "HADOOP_*",
    "NUMBA_*", "OMP_*", "ARROW_*", "MIMALLOC_*", "XDG_*",
)  # fmt: skip
"""Name patterns of the variables that Spark needs. Its Python workers inherit the server's environment, read from Kafka
and query the schema registry."""

EVERYTHING: Final = ("*",)
"""Name pattern for services that run a project's code, because that code may need any variable."""


def inherited(environ: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """Return the variables of `environ` whose names match one of the patterns."""
    wanted = tuple(patterns)
    return {name: value for name, value in environ.items() if any(fnmatchcase(name, each) for each in wanted)}
