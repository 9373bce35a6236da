"""A batch whose unpacked size exceeds the limit: the batch's window waits, and each of the two remedies in the error
ends the wait."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from platform_assets.errors import BatchTooLargeError
from platform_assets.kafka.settings import BatchLimits
from platform_assets.ledger.decisions import Author
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.decide.acceptance import accept, find_losses
from platform_assets_tests.support.made_batches import Made, made_batch
from platform_assets_tests.support.raw_produce import produce_batch
from platform_assets_tests.support.streams import ANY_TIME, delete_before
from testbed.loads import Record, TopicLake, numbered, records

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def lk(lake: LakeMaker) -> TopicLake:
    made = lake(config=ANY_TIME)
    made.settings = replace(made.settings, limits=BatchLimits(bytes=100_000))
    return made


def bombed(lk: TopicLake) -> str:
    """A window with 4 records, then 3 records in a batch of 2 kB that unpacks to 300 kB, then 4 more records."""
    lk.send(numbered(4))
    produce_batch(lk.bootstrap, lk.topic, made_batch([Made(n, value=bytes(100_000)) for n in range(3)], codec="zstd"))
    return lk.window_of(numbered(4, 1, "later"))


def test_a_batch_beyond_the_limit_is_named_and_both_remedies_end_the_wait(lk: TopicLake) -> None:
    before, key = lk.window_of(numbered(2)), bombed(lk)
    assert lk.load(before).outcome == "loaded"
    at_rest = lk.snapshot()
    said = (
        r"partition 0 at offsets \[6, 9\) unpacks to more than 100,000 bytes, the limit that KAFKA_BATCH_MAX_BYTES sets"
    )
    with pytest.raises(BatchTooLargeError, match=said) as refused:
        lk.load(key)
    assert lk.snapshot() == at_rest
    assert re.findall(r"`platform-assets (accept-loss \S+ \S+) ", str(refused.value)) == [
        f"accept-loss raw/{lk.topic} {key}"
    ]
    # The first remedy: a higher limit.
    allowed = lk.settings
    lk.settings = replace(allowed, limits=BatchLimits(bytes=400_000))
    assert lk.load(key).receipt.rows == 11
    # The second, for another window: the records are left out.
    lk.settings, key = allowed, bombed(lk)
    with pytest.raises(BatchTooLargeError):
        lk.load(key)
    window = lk.ledger.window(lk.topic, key)
    assert window is not None
    losses = find_losses(window, lk.ledger, lk.cluster, lk.settings)
    assert [(loss.cause, dict(loss.ranges)) for loss in losses] == [
        ("record batch beyond a limit of KAFKA_BATCH_MAX_*", {0: (OffsetRange(17, 20),)})
    ]
    accept(window, losses, Author("a test", "a bomb"), lk.ledger)
    loaded = lk.load(key)
    assert (loaded.outcome, loaded.receipt.rows, loaded.receipt.missing) == ("loaded", 8, 3)
    assert records(lk.rows()) == records(r for r in lk.committed() if r.offset not in range(17, 20))
    assert lk.load(key).outcome == "unchanged"


def test_what_has_expired_is_accepted_without_a_search_of_the_rest(
    lk: TopicLake, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first window contains the whole backlog, and the topic's expired offsets are known at once."""
    from platform_assets.engines.columnar import refused

    search = refused.find_refused
    monkeypatch.setattr(refused, "find_refused", lambda *_, **__: pytest.fail("the rest of the window is read"))
    lk.send([*numbered(4), Record(b"bad", timestamp=2**62)])
    key = bombed(lk)
    delete_before(broker.bootstrap, lk.topic, 0, 2)
    window = lk.ledger.window(lk.topic, key)
    assert window is not None
    author = Author("a test", "too late")
    losses = find_losses(window, lk.ledger, lk.cluster, lk.settings)
    assert [(loss.cause, dict(loss.ranges)) for loss in losses] == [("below the log start", {0: (OffsetRange(0, 2),)})]
    accept(window, losses, author, lk.ledger)
    monkeypatch.setattr(refused, "find_refused", search)
    losses = find_losses(window, lk.ledger, lk.cluster, lk.settings)
    assert [dict(loss.ranges) for loss in losses] == [{0: (OffsetRange(4, 5),)}, {0: (OffsetRange(9, 12),)}]
    accept(window, losses, author, lk.ledger)
    assert lk.load(key).receipt.rows == 10
    assert find_losses(window, lk.ledger, lk.cluster, lk.settings) == []
