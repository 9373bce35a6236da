"""Diagnosis of a Spark job that ended before all of its reports."""

from __future__ import annotations

import re
from typing import Final

from platform_assets.engines.spark.failures import worker_ended
from platform_assets.engines.spark.session import without_token

_NO_PYTHON: Final = ("Cannot run program", "PYTHON_VERSION_MISMATCH", "Error from python worker", "ModuleNotFoundError",
                     "PACKAGE_NOT_INSTALLED", "UNSUPPORTED_PACKAGE_VERSION")  # fmt: skip
"""Spark's texts for a job that never started to run its code."""


class JobLost(Exception):
    """A job ended without the reports of all its shares; if known, because a worker died in `task`."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        self.text = without_token(str(cause))
        self.worker = worker_ended(self.text)
        found = re.search(r"Task (\d+) in stage", self.text)
        self.no_python = next(
            (line for line in self.text.splitlines() if any(sign in line for sign in _NO_PYTHON)), None
        )
        self.task = int(found[1]) if found is not None and self.worker is not None else None
        super().__init__(self.text)
