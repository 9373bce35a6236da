"""Fixtures shared by all backup tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _others_keep_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting until the disk has all that this machine's processes wrote is no part of what is tested."""
    monkeypatch.setattr(os, "sync", lambda: None)
