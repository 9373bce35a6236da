"""The `decisions` scenario finds and reports a defect, shortens the history that shows the defect, and continues with
the remaining histories."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_assets.windows.erase.erasure import Erasure
from platform_assets_tests.soak import __main__ as soak
from platform_assets_tests.support import decision_machine
from platform_assets_tests.support.decision_machine import Step

HISTORY: list[Step] = [
    ("produce", (7, 1)),
    ("load", (0, 0)),
    ("tick", (0, 0)),
    ("erase_key", (0, 0)),
    ("erase_key", (1, 0)),
]


@pytest.mark.long
def test_a_defect_is_named_with_the_shortest_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decision_machine, "steps", lambda rng, number: HISTORY)
    asked = ["--scenario", "decisions", "--seconds", "0", "--seed", "1", "--seeds", "1", "--folder", str(tmp_path)]
    assert soak.main(asked) == 0
    assert "| 1 | 2 | 10 | " in capsys.readouterr().out
    # The erasure keeps no keys and finds nothing, and says that it is done.
    monkeypatch.setattr(Erasure, "of_keys", lambda *_: [])
    assert soak.main(asked) == 1
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert "an erasure is done, and" in printed
    assert "('tick', (0, 0))" not in printed
