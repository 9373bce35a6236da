"""What can be said of a job of Spark's that ended before all of it was reported."""

from __future__ import annotations

import re
from typing import Final

from platform_assets.engines.spark.failures import worker_ended
from platform_assets.engines.spark.session import without_token

_NO_PYTHON: Final = ("Cannot run program", "PYTHON_VERSION_MISMATCH", "Error from python worker", "ModuleNotFoundError",
                     "PACKAGE_NOT_INSTALLED", "UNSUPPORTED_PACKAGE_VERSION")  # fmt: skip
"""What Spark says where it never came to running what it was sent."""


class JobLost(Exception):
    """A job ended without the reports of all its shares; by the death of a worker in `task`, where that is known."""

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
