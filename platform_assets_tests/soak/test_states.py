"""The `states` scenario finds and reports a fold that keeps the wrong row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from platform_assets.windows.state import folding, pending
from platform_assets.windows.state.pending import ChangesLoad, FoldPlan
from platform_assets_tests.soak import __main__ as soak
from platform_assets_tests.soak import states


def test_a_fold_that_forgets_a_window_is_named_with_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(states, "IN_MEMORY", 0)
    asked = ["--scenario", "states", "--seconds", "0", "--seed", "2", "--seeds", "1", "--folder", str(tmp_path)]
    assert soak.main(asked) == 0
    assert "| 2 | 0 | 2 | 2 | " in capsys.readouterr().out

    def forgets(loads: Sequence[ChangesLoad], *versions: Any) -> FoldPlan:
        return pending.plan(loads[:-1], *versions)

    monkeypatch.setattr(folding, "plan", forgets)
    assert soak.main([*asked[:-1], str(tmp_path / "again")]) == 1
    assert "in a lake, history 2/" in capsys.readouterr().out
