"""Fixtures shared by all backup tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _others_keep_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk to finish writes of other processes, because that is not part of these tests."""
    monkeypatch.setattr(os, "sync", lambda: None)
