"""Spark's own reader of Avro, which the platform does without: one jar, fetched and verified like those of the lock.

No server of the platform has it on its class path: it is sent to the one session that asks for it.
"""

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
"""The newest of Spark 4.0 that could be resolved."""


def installed(home: Home, report: Callable[[str], None]) -> Path:
    """The jar, which is fetched where it is missing.

    Raises:
        JarMismatchError: it is not the one that was pinned; it is not kept.
        JavaNotFoundError, JarsUnavailableError: as for `platform_assets.services.jars.install`.
    """
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
