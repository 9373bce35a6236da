"""A query reads as many windows as its limit allows."""

from __future__ import annotations

import pytest

from platform_assets.engines import batching


def batches(*rows: int) -> list[list[int]]:
    return list(batching.batched_windows(rows, lambda window: window))


def test_windows_are_read_together_as_far_as_their_rows_and_number_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_BATCH_ROWS", 100)
    monkeypatch.setattr(batching, "_BATCH_WINDOWS", 3)
    assert batches(60, 40, 1) == [[60, 40], [1]]
    assert batches(250, 1, 2, 3, 4) == [[250], [1, 2, 3], [4]]
    assert batches() == []
