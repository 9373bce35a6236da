"""Fixtures shared by all backup tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _others_keep_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait until other processes' writes are on disk, because these tests do not depend on them."""
    monkeypatch.setattr(os, "sync", lambda: None)
