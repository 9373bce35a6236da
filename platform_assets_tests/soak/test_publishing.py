"""The judge of the `publishing` scenario, which knows keys and values only."""

from __future__ import annotations

import pytest

from platform_assets_tests.soak.publishing import is_faithful

STATES = [None, b"a", None, b"b", b"c"]


@pytest.mark.parametrize("sent", [[b"a", None, b"b", b"c"], [b"c"], [b"a", b"c"], [b"a", None, b"c"]])
def test_states_may_be_left_out_but_for_the_last_one(sent: list[bytes | None]) -> None:
    assert is_faithful(sent, STATES)


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [b"a", b"b"],
        [b"a", b"a", b"c"],
        [b"c", b"c"],
        [None, b"c"],
        [b"b", b"a", b"c"],
        [b"a", b"x", b"c"],
        [b"c", b"b", b"c"],
    ],
)
def test_records_sent_twice_and_missing_foreign_or_reordered_ones_are_found(sent: list[bytes | None]) -> None:
    assert not is_faithful(sent, STATES)


def test_a_deleted_row_may_never_have_been_sent() -> None:
    assert is_faithful([], [None, b"a", None])
    assert is_faithful([b"a", None], [None, b"a", None])
    assert not is_faithful([b"a"], [None, b"a", None])
