"""Fixtures shared by all backup tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _others_keep_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip waiting for the disk to finish writes of other processes, which is not part of these tests."""
    monkeypatch.setattr(os, "sync", lambda: None)
