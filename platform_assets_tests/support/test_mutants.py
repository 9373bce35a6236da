"""Mutants are real changes, chosen by a seed, and tests that fail kill them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from platform_assets_tests.support import mutants
from platform_assets_tests.support.mutants import Mutant, Selection, chosen, copied, mutants_of, tried

SOURCE = b'''\
"""A text with 1 number."""
LIMIT: int = 3

def within(value: int, strict: bool = False) -> bool:
    if value < 0 and not strict:
        raise ValueError(f"{value + 1} is negative")
    return value <= LIMIT
'''


def test_each_kind_of_change_is_made_and_texts_stay() -> None:
    found = mutants_of("m.py", SOURCE)
    assert {(m.line, m.kind, m.after) for m in found} == {
        (2, "constant", "(4)"),
        (4, "constant", "(True)"),
        (5, "swapped branch", "(not (value < 0 and (not strict)))"),
        (5, "boolean", "(value < 0 or not strict)"),
        (5, "comparison", "(value >= 0)"),
        (5, "boundary", "(value <= 0)"),
        (5, "constant", "(1)"),
        (5, "boolean", "(strict)"),
        (6, "removed statement", "pass"),
        (7, "return value", "return None"),
        (7, "comparison", "(value > LIMIT)"),
        (7, "boundary", "(value < LIMIT)"),
    }
    for mutant in found:
        assert SOURCE[mutant.start : mutant.end].decode() == mutant.before
        assert mutant.of(SOURCE) != SOURCE


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one module, and a test of it that does not call it with a negative value."""
    root = tmp_path / "checkout"
    for folder in (mutants.PRODUCT, mutants.TESTS):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / mutants.PRODUCT / "limits.py").write_bytes(SOURCE)
    (root / mutants.TESTS / "test_limits.py").write_text(
        "from platform_assets.limits import within\n\n"
        "def test_limit(): assert [within(n) for n in (2, 3, 4)] == [True, True, False]\n"
    )
    (root / "pytest.ini").write_text("[pytest]\nmarkers = broker\n spark\n alone\n browser\n soak\n cluster\n long\n")
    (root / "untracked").symlink_to(tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def test_a_seed_chooses_different_mutants_whatever_the_number(checkout: Path) -> None:
    every = chosen(checkout, 7, 1000)
    assert sorted(every, key=lambda m: (m.start, m.end, m.kind, m.after)) == mutants_of(
        f"{mutants.PRODUCT}/limits.py", SOURCE
    )
    assert chosen(checkout, 7, 5) == every[:5]
    assert chosen(checkout, 8, 1000) != every
    with pytest.raises(ValueError, match="there is no module 'x'"):
        chosen(checkout, 7, 1, "x")


def test_tests_kill_what_they_reach_and_the_checkout_is_left_alone(checkout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "work" / "copy"
    copied(checkout, copy)
    tests = Selection(checkout, None)
    found: dict[tuple[str, str], str] = {}
    for mutant in chosen(checkout, 1, 1000):
        if mutant.kind in ("return value", "removed statement"):
            result = tried(mutant, copy, tests, "not long", 60)
            found[mutant.kind, mutant.after] = f"{result.outcome} {result.killer}"
    killed = "killed platform_assets_tests/test_limits.py::test_limit"
    assert found == {
        ("return value", "return None"): killed,
        ("removed statement", "pass"): "survived None",
    }
    for root in (checkout, copy):
        assert (root / mutants.PRODUCT / "limits.py").read_bytes() == SOURCE


def test_a_module_that_no_test_imports_has_no_tests(checkout: Path, tmp_path: Path) -> None:
    (checkout / mutants.PRODUCT / "other.py").write_text("X = 1\n")
    copy = tmp_path / "work" / "copy"
    copied(checkout, copy)
    (mutant,) = chosen(checkout, 1, 1, f"{mutants.PRODUCT}/other.py")
    assert isinstance(mutant, Mutant)
    assert tried(mutant, copy, Selection(checkout, None), "not long", 60).outcome == "no tests"


def test_tests_of_importing_modules_follow_those_of_the_module(checkout: Path) -> None:
    product, tests = checkout / mutants.PRODUCT, checkout / mutants.TESTS
    (product / "middle.py").write_text("from platform_assets import (\n    limits,\n)\n")
    (product / "top.py").write_text("from platform_assets.middle import limits\n")
    for name in ("top", "apart"):
        (tests / f"test_{name}.py").touch()
    (tests / "test_a.py").write_text("from platform_assets import middle\n")
    mutant = chosen(checkout, 1, 1, f"{mutants.PRODUCT}/limits.py")[0]
    found = Selection(checkout, None).of(mutant)
    assert found == [f"{mutants.TESTS}/test_{name}.py" for name in ("limits", "a", "top")]
