"""Messages for a refused reload: one for each way in which Kafka, receipt and table can differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from platform_assets.ledger.entries import Receipt
from platform_assets.model.digest import Digest, Measured
from platform_assets.windows.load import differences
from testbed import samples

RECEIPT = samples.receipt(samples.sealed("t", "2026-01-01-00:00", p0=(0, 20)), {0: range(10)}, version=7)
HELD = Measured(RECEIPT.offsets, RECEIPT.content)
NOTHING_TO_DO = "The table keeps what was loaded first; no action is needed"


def measured(rows: int, offsets: int = 1, content: int = 2) -> Measured:
    return Measured(Digest(rows, offsets), Digest(rows, content))


FEWER, MORE, ELSEWHERE = measured(9), measured(11), measured(10)
ALTERED = Measured(RECEIPT.offsets, Digest(10, 3))


@pytest.mark.parametrize(
    ("now", "seen", "cause"),
    [
        (FEWER, "9 rows, fewer than the 10 in the receipt", "Likely cause: compaction or retention removed records"),
        (
            MORE,
            "11 rows, more than the 10 in the receipt",
            "the log must have been rewritten after an unclean leader election",
        ),
        (
            ELSEWHERE,
            "10 rows, the same number as in the receipt, but with different offsets",
            "other records were written to this range of offsets",
        ),
        (
            ALTERED,
            "10 rows, the same number as in the receipt, but with different content at the same offsets",
            "were written to these offsets",
        ),
    ],
)
def test_kafka_changed(now: Measured, seen: str, cause: str) -> None:
    text = differences.explain(RECEIPT, now, HELD, gone="partition 0 offsets [3, 4)")

    assert text.startswith(f"Kafka has {seen}; gone: partition 0 offsets [3, 4). ")
    assert cause in text
    assert NOTHING_TO_DO in text
    assert "edited" not in text
    assert ("compaction" in text) == (now is FEWER)


@pytest.mark.parametrize("now", [FEWER, MORE, ELSEWHERE, ALTERED])
def test_receipt_was_edited_where_the_table_has_what_kafka_gives(now: Measured) -> None:
    text = differences.explain(RECEIPT, now, now)

    assert ", but the table's own rows are exactly those in Kafka. The ledger was edited: restore _ledger" in text
    assert "cause" not in text
    assert NOTHING_TO_DO not in text


@pytest.mark.parametrize("now", [FEWER, MORE, ELSEWHERE, ALTERED])
def test_table_was_changed_too(now: Measured) -> None:
    other, damaged = differences.explain(RECEIPT, now, None), differences.explain(RECEIPT, now, measured(5))

    assert "Compare the window with version 7 of raw/t" in other
    assert "match neither the receipt nor Kafka" in damaged
    assert NOTHING_TO_DO not in other + damaged


def test_both_sides_of_a_difference_are_named() -> None:
    text = differences.explain(
        RECEIPT, ELSEWHERE, HELD, gone="partition 0 offsets [3, 4)", new="partition 0 offsets [12, 13)"
    )

    assert "with different offsets; gone: partition 0 offsets [3, 4); new: partition 0 offsets [12, 13). " in text


def edited(receipt: Receipt, rows: int) -> Receipt:
    return replace(receipt, partitions={0: replace(receipt.partitions[0], rows=rows)})


@pytest.mark.parametrize(("rows", "than"), [(8, "more"), (12, "fewer")])
def test_edited_number_of_rows_is_named_as_that(rows: int, than: str) -> None:
    text = differences.explain(edited(RECEIPT, rows), HELD, HELD)

    assert text.startswith(f"Kafka has 10 rows, {than} than the {rows} in the receipt, but the table's own rows")
