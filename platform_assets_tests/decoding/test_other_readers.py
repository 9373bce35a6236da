"""Numbers near powers of two and ten are decoded to the same values that other readers return. These readers share no
code with the decoders."""

from __future__ import annotations

import random

import pytest

from platform_assets_tests.support.other_readers import JUDGES


@pytest.mark.parametrize("judge", JUDGES)
def test_another_reader_gives_the_same_values(judge: str, rng: random.Random) -> None:
    assert JUDGES[judge](rng) > 20
