"""A record batch that is corrupt on every replica: the batch's window waits until an operator leaves the batch out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.registry import CHECKS
from platform_assets.errors import DamagedBatchError, LostForGoodError
from platform_assets.lake import holdings
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.decide.acceptance import accept, find_losses
from platform_assets.windows.recover import accept_partial
from platform_assets_tests.support.made_batches import Made, made_batch
from platform_assets_tests.support.raw_produce import produce_batch
from testbed.loads import TopicLake, numbered

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = pytest.mark.broker

AUTHOR = Author("a test", "no replica has it")


def struck(segment: Path, value: bytes) -> None:
    """Change a byte of a record's value."""
    at = segment.read_bytes().index(value)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(value[:1].upper())


def window_with(lk: TopicLake, value: bytes) -> str:
    """Make a window with 3 records with this value in a separate batch, and 4 other records."""
    produce_batch(lk.bootstrap, lk.topic, made_batch([Made(n, value=value) for n in range(3)]))
    return lk.window_of(numbered(4, 1, value.decode()))


def sealed(lk: TopicLake, key: str) -> SealedWindow:
    window = lk.ledger.window(lk.topic, key)
    assert window is not None
    return window


def is_accounted_for(lk: TopicLake) -> bool:
    engine = lk.loader().engine
    evaluation = Evaluation(lk.declaration, lk.ledger, Orchestration(), lambda: lk.settings, lambda: lk.cluster, engine)
    return CHECKS["every_offset_accounted_for"].evaluate(evaluation).passed


def test_a_damaged_batch_is_named_and_left_out_by_the_remedy_that_the_error_names(
    lake: LakeMaker, broker: Broker
) -> None:
    lk = lake()
    before, key = lk.window_of(numbered(4)), window_with(lk, b"struck")
    struck(broker.segment(lk.topic, 0), b"struck")
    assert lk.load(before).outcome == "loaded"
    at_rest = lk.snapshot()
    with pytest.raises(DamagedBatchError, match="at offset 4 is damaged: its CRC does not match") as damaged:
        lk.load(key)
    assert lk.snapshot() == at_rest
    assert re.findall(r"`platform-assets (accept-loss \S+ \S+) ", str(damaged.value)) == [
        f"accept-loss raw/{lk.topic} {key}"
    ]
    losses = find_losses(sealed(lk, key), lk.ledger, lk.cluster, lk.settings)
    assert [(loss.cause, dict(loss.ranges)) for loss in losses] == [
        ("damaged record batch; another replica may have it intact", {0: (OffsetRange(4, 7),)})
    ]
    accept(sealed(lk, key), losses, AUTHOR, lk.ledger)
    loaded = lk.load(key)
    assert (loaded.outcome, loaded.receipt.rows, loaded.receipt.missing) == ("loaded", 4, 3)
    assert lk.load(key).outcome == "unchanged"
    assert is_accounted_for(lk)
    assert lk.ledger.receipts(lk.declaration.raw_table)[key].holes == {"accepted loss": 3}


def test_a_loaded_window_whose_batch_is_damaged_later_keeps_its_rows_and_then_what_is_left_of_them(
    lake: LakeMaker, broker: Broker
) -> None:
    lk = lake()
    key = window_with(lk, b"struck")
    assert lk.load(key).receipt.rows == 7
    struck(broker.segment(lk.topic, 0), b"struck")
    with pytest.raises(DamagedBatchError) as damaged:
        lk.load(key)
    assert "accept-loss" not in str(damaged.value), "the table has the records"
    with pytest.raises(DamagedBatchError):
        accept_partial.find(lk.loader(), sealed(lk, key))
    for path in holdings.files_of(lk.ledger.lake.table(lk.declaration.raw_table), key).paths:
        (lk.table / path.replace("%25", "%")).unlink()
    with pytest.raises(LostForGoodError, match="offset 0 is damaged"):
        lk.load(key)
    left = accept_partial.find(lk.loader(), sealed(lk, key))
    assert left is not None
    assert (left.from_kafka, left.rows_gone, dict(left.gone)) == (4, 3, {0: (OffsetRange(0, 3),)})
    assert left.accept(AUTHOR).rows == 4
    assert sorted(r.offset for r in lk.rows()) == [3, 4, 5, 6]
    assert lk.load(key).outcome == "unchanged"
