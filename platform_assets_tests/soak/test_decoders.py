"""The `decoders` scenario runs each comparison in each round, and finds and reports a difference."""

from __future__ import annotations

import random

import pytest

from platform_assets_tests.soak import __main__ as soak
from platform_assets_tests.soak import decoders


def test_a_difference_is_named_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(rng: random.Random) -> int:
        raise AssertionError(f"value \ud800 {rng.random() < 2}")

    monkeypatch.setattr(decoders, "JUDGES", {"wrong": wrong, "right": lambda rng: 5})
    assert soak.main(["--scenario", "decoders", "--seconds", "0", "--seeds", "2"]) == 1
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert "| 1 | 1 | 5 | wrong, round 0: 'value \\ud800 True' |" in printed
    monkeypatch.setattr(decoders, "JUDGES", {"right": lambda rng: 5})
    assert soak.main(["--scenario", "decoders", "--seconds", "0", "--seeds", "1"]) == 0
