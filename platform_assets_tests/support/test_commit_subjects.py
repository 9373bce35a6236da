"""Commit subjects are checked by the hook and by `make lint`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from platform_assets_tests.support.commit_subjects import fault, main, new_subjects


@pytest.mark.parametrize(
    "message",
    [
        "kafka: ask a busy token endpoint again",
        "docs, cli: name the window",
        "windows/load/loading: process an address in 3 steps\n\nBecause it was slow.",
        "Merge branch 'main'",
        "# a comment of Git\ntest: bring the broker back",
    ],
)
def test_a_good_subject_passes(message: str) -> None:
    assert fault(message) is None


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("Who has no certificate is refused by name", "area: imperative"),
        ("kafka:ask again", "area: imperative"),
        ("", "area: imperative"),
        (f"kafka: {'x' * 70}", "77 characters"),
        ("kafka: ask again.", "period"),
        ("kafka: asks again", "not `asks`"),
        ("kafka: asked again", "not `asked`"),
        ("kafka: asking again", "not `asking`"),
        ("kafka: ask again\nand again", "second line"),
    ],
)
def test_another_subject_is_refused_with_the_reason(message: str, part: str) -> None:
    assert part in (fault(message) or "")


def test_commits_before_the_hook_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def git(*arguments: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *author, "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    config = tmp_path / ".pre-commit-config.yaml"
    assert new_subjects(tmp_path) == []
    git("init")
    git("commit", "--allow-empty", "-m", "Before the rule")
    assert new_subjects(tmp_path) == []
    config.write_text("entry: commit_subjects\n")
    git("add", ".")
    git("commit", "-m", "lint: check commit subjects")
    git("commit", "--allow-empty", "-m", "After the rule")
    assert new_subjects(tmp_path) == ["After the rule"]
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert new_subjects(tmp_path) == []  # what is on main already cannot be changed
    git("commit", "--allow-empty", "-m", "Not on main yet")
    assert new_subjects(tmp_path) == ["Not on main yet"]

    message = tmp_path / "message"
    message.write_text("After the rule\n")
    assert main([str(message)]) == 1
    assert "commit subject 'After the rule': write it as" in capsys.readouterr().err
