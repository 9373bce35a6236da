"""Fixtures shared by all backup tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest


@pytest.fixture(autouse=True)
def _others_keep_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait until other processes' writes are on disk, because these tests do not depend on them."""
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Return a Dagster instance without runs."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made
