"""Spark's own Avro reader, which the platform does not use. It is one jar, which is fetched and verified like the jars
in the lock. The jar is not on the class path of any server. Instead, it is sent to the one session that needs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from platform_assets.services.home import Home
from platform_assets.services.ivy import Ivy, work_folder
from platform_assets.services.jarlock import Jar, verify
from platform_assets.services.jars import place
from platform_assets.services.java import find_java

SPARK_AVRO: Final = Jar(
    "benchmark",
    "org.apache.spark",
    "spark-avro_2.13",
    "4.0.2",
    "fd102b6c6754f72f53a01ac882f0da2b1a6f9f02127647ac3e1f0ca951d4433b",
)
"""The newest version for Spark 4.0 that Ivy could resolve."""


def installed(home: Home, report: Callable[[str], None]) -> Path:
    """Return the path of the jar; if necessary, fetch the jar first. Raises JarMismatchError if the jar differs from
    the pinned jar; in that case, the jar is not kept. Raises JavaNotFoundError and JarsUnavailableError in the same
    cases as `platform_assets.services.jars.install`."""
    path = home.jars / SPARK_AVRO.jar_set / SPARK_AVRO.file_name
    if path.exists():
        verify(SPARK_AVRO, path)
        return path
    report(f"fetching {SPARK_AVRO.file_name}")
    log = home.jars / "ivy-benchmark.log"
    with work_folder(home.jars) as work:
        fetched = Ivy(find_java(os.environ), Path(work), log).fetch([SPARK_AVRO], lambda: None, os.environ)
        place(SPARK_AVRO, fetched, home.jars)
    log.unlink()
    return path
