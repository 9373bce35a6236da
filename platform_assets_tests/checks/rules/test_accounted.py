"""`every_offset_accounted_for` finds receipts that contradict their own ranges, using facts alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from platform_assets.checks.facts import Facts
from platform_assets.checks.findings import Finding
from platform_assets.checks.rules import accounted
from platform_assets.model.digest import dense_digest
from platform_assets_tests.support import tables
from platform_assets_tests.support.tables import key


def facts(
    windows: int,
    *,
    edited: Collection[int] = (),
    holes: Mapping[tuple[int, int], Mapping[str, int] | None] | None = None,
) -> Facts:
    """Return windows of 20 offsets each. The receipts of dense windows have the digest of their offsets, except for the
    windows with the numbers `edited`."""
    made = tables.facts(windows, 2, holes=holes)
    wrong = {key(n) for n in edited}
    return replace(
        made,
        recorded={
            k: replace(r, offsets_digest=dense_digest(r.ranges).total + (1 if k in wrong else 0))
            for k, r in made.recorded.items()
        },
    )


def found(given: Facts) -> list[Finding]:
    return list(accounted.check_result(given, []).findings)


def test_receipts_that_agree_with_their_ranges_pass() -> None:
    check_result = accounted.check_result(facts(5, holes={(1, 0): {"commit markers": 1}}), [])

    assert check_result.passed
    assert check_result.headline == "Every offset accounted for: 99 rows + 1 commit marker = 100 offsets in 5 windows."


def test_digest_that_dense_ranges_do_not_have_tells_of_an_edited_ledger() -> None:
    check_result = accounted.check_result(facts(5, edited=[3]), [])

    (finding,) = check_result.findings
    assert (finding.kind, finding.window, finding.alarming) == ("ledger edited", key(3), True)
    assert "the receipt counts a row for each of its 20 offsets" in finding.sentence()
    assert "rebuild-ledger" in finding.remedy
    assert check_result.headline == "1 window not accounted for."


@pytest.mark.parametrize("holes", [{"commit markers": 1}, None])
def test_digest_of_a_window_with_holes_does_not_follow_from_its_ranges(holes: Mapping[str, int] | None) -> None:
    assert found(facts(2, edited=[1], holes={(1, 0): holes})) == []


def test_newest_windows_are_hashed_as_far_as_the_allowance_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounted, "_HASHED", 50)
    assert [f.window for f in found(facts(5, edited=range(5)))] == [key(4), key(3)]

    monkeypatch.setattr(accounted, "_LARGEST", 19)
    assert found(facts(5, edited=range(5))) == []


def test_holes_below_the_log_start_are_not_known_and_an_accepted_loss_is() -> None:
    check_result = accounted.check_result(
        facts(3, holes={(0, 0): {"accepted loss": 1}, (1, 0): {"below log start": 2}}), []
    )

    (finding,) = check_result.findings
    assert (finding.kind, finding.window, finding.alarming) == ("could not tell", key(1), False)
    assert f"accept-loss raw/orders {key(1)}" in finding.remedy
    assert check_result.headline == "The result is unknown for 1 window."
    assert accounted.check_result(facts(1, holes={(0, 0): {"accepted loss": 1}}), []).headline == (
        "Every offset accounted for: 19 rows + 1 offset accepted as lost = 20 offsets in 1 window."
    )
