"""Kinds of lake root, Spark and brokers for a test session, which environment variables select, and the tests that must
pass on each kind. A fixture that can provide several kinds calls `chosen`, and this module lists the kinds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the test environment that all tests of a session share. If `variable` is not set, the first of its
    `kinds` is used."""

    what: str
    variable: str
    kinds: tuple[str, ...]

    def chosen(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the kind used in this session. Raises ValueError for a kind that no fixture provides."""
        found = environ.get(self.variable) or self.kinds[0]
        if found not in self.kinds:
            raise ValueError(f"{self.variable}={found!r} is none of the kinds that there are: {', '.join(self.kinds)}")
        return found


LAKE: Final = Part("lake root", "PLATFORM_TEST_LAKE", ("folder", "s3"))
SPARK: Final = Part("Spark", "PLATFORM_TEST_SPARK", ("local", "cluster"))
BROKERS: Final = Part("brokers", "PLATFORM_TEST_BROKERS", ("plain", "three", "secure3", "mutual3"))
JOBS: Final = Part("jobs", "PLATFORM_TEST_JOBS", ("in-process", "spark"))
"""Where tests without a mark in `SPARK_MARKS` run the tasks of jobs: in the test process, or in Spark's workers."""
LAYOUT: Final = Part("new tables", "PLATFORM_TEST_LAYOUT", ("flat", "partitioned"))
PARTS: Final = (LAKE, SPARK, BROKERS, LAYOUT, JOBS)

SPARK_MARKS: Final = frozenset({"spark", "cluster", "soak"})
"""Marks of tests whose jobs always run in Spark."""

PORTABLE: Final = frozenset(
    Path(path)
    for path in (
        "checks/test_anomalies.py",
        "checks/test_confirming.py",
        "engines/columnar/test_engine.py",
        "engines/connector/test_raw.py",
        "engines/test_readers.py",
        "orchestration/test_assets.py",
        "orchestration/test_healing.py",
        "windows/test_catching_up.py",
        "windows/test_decoding.py",
        "windows/test_history_of_loads.py",
        "windows/test_load_faults.py",
        "windows/test_loading.py",
        "windows/test_rebuild.py",
        "windows/test_rivals.py",
    )
)
"""Modules with tests of loads, conflicts, crashes and audits. Paths are relative to the tests' folder.

Tests in these modules that use the session's services are `portable`: they must pass on each kind of part.
"""


def does_without_spark(marks: Iterable[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if a test with these marks runs the tasks of jobs in the test process. Another lake root, Spark or
    brokers than the first kind are chosen for the sake of Spark's workers too, so then no test does."""
    usual = all(part.chosen(environ) == part.kinds[0] for part in (LAKE, SPARK, BROKERS, JOBS))
    return usual and SPARK_MARKS.isdisjoint(marks)


def line(environ: Mapping[str, str] = os.environ) -> str:
    """Return a line for the session's report that shows which kind of each part the session uses.

    Raises ValueError for a kind that no fixture provides.
    """
    return ", ".join(f"{part.what}: {part.chosen(environ)}" for part in PARTS)


def together(processes: int, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ValueError if `processes` pytest processes cannot share the chosen parts."""
    for part, kind in ((SPARK, "cluster"), (LAKE, "s3")):
        if processes and part.chosen(environ) == kind:
            raise ValueError(f"{part.variable}={kind} is for one process of pytest: leave out -n")
