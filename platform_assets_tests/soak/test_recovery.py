"""The `recovery` scenario finds and reports a wrong row, keeps the lake that contains it, and continues with the
remaining seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_assets_tests.soak import __main__ as soak
from platform_assets_tests.support.recovery import History


def test_a_wrong_row_is_named_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    histories = 0
    happens = History.happens

    def wrong(history: History) -> None:
        nonlocal histories
        histories += not history.story
        # In the first history only, the producer notes a value other than the one that was loaded.
        if histories == 1:
            history.notes[0, 30] = b"another"
        happens(history)

    monkeypatch.setattr(History, "happens", wrong)
    asked = ["--scenario", "recovery", "--seconds", "0", "--seed", "1", "--seeds", "2", "--folder", str(tmp_path)]
    assert soak.main(asked) == 1
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert "(0, 30) has another value" in printed
    assert (tmp_path / "recovery-1" / "0").exists()
    assert not (tmp_path / "recovery-2" / "0").exists()
