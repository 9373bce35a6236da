"""What tests of orchestration share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Return a Dagster instance without runs. Test modules that need another kind have a fixture of their own."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made
