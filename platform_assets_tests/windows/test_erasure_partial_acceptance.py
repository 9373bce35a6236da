"""Erasures and permanently lost windows: the remaining rows that `accept-loss` gathers contain no erased record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from platform_assets.errors import ConcurrentLoadError, ErasureUnfinishedError, LostForGoodError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import holdings
from platform_assets.ledger.entries import ACCEPTED_LOSS, ERASED, SealedWindow
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.recover import accept_partial
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in
from platform_assets_tests.support.kept_cluster import KeptCluster, loader_of

WHO, NEEDLE = b"customer-4711", b"zebra-in-pyjamas"
HERS, OURS = (WHO, NEEDLE), (b"customer-1", b"value-1")
CLUSTER = KeptCluster("people", {0: 5}, starts={0: 3})
"""Kafka no longer has offset 2."""


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    return MadeTopic(tmp_path / "lake")


@pytest.fixture
def damaged(topic: MadeTopic) -> SealedWindow:
    """A window with offsets 2 to 4, whose files are lost. Offset 3 is the record to erase; Kafka still has 3 and 4."""
    whole, lost = topic.seal([{0: [OURS, OURS]}, {0: [OURS, HERS, OURS]}])
    topic.fill([whole, lost], decode=False)
    folder = topic.lake.table(topic.declaration.raw_table)
    (path,) = holdings.files_of(folder, lost.key).paths
    (folder.path / path.replace("%25", "%")).unlink()
    topic.records[:] = [r for r in topic.records if r.offset >= 3]
    return lost


def deciding(topic: MadeTopic, confirm: Callable[[str], None] = lambda _: None) -> Deciding:
    def cluster() -> Cluster:
        return cast(Cluster, CLUSTER)

    def settings() -> ClientSettings:
        raise AssertionError("not read")

    engine = topic.engine
    return Deciding(topic.declaration, topic.ledger, cluster, settings, lambda: engine, AUTHOR, lambda _: None, confirm)


def accept_loss(topic: MadeTopic, window: SealedWindow) -> None:
    left = accept_partial.find(loader_of(topic, CLUSTER), window)
    assert left is not None
    assert (left.gone, left.rows_gone) == ({0: (OffsetRange(2, 3),)}, 1)
    left.accept(AUTHOR)


def check_gone(topic: MadeTopic, window: SealedWindow) -> None:
    for needle in (WHO, NEEDLE):
        assert not found_in(topic.root, needle)
    assert erased_of(topic.ledger, "people") == {window.key: {0: (OffsetRange(3, 4),)}}
    assert not topic.erasure.unfinished()
    assert not topic.erasure.damaged()
    assert loader_of(topic, CLUSTER).load(window.key).receipt.rows == 1


def test_a_window_that_is_lost_for_good_comes_back_without_the_key(topic: MadeTopic, damaged: SealedWindow) -> None:
    """The test follows each message: `erase` tells it to load, the load tells it to run `accept-loss`, and then `erase`
    completes."""
    with pytest.raises(ErasureUnfinishedError, match=rf"platform-assets load raw/people {damaged.key}.*accept-loss"):
        deciding(topic).erasure({}, [WHO])
    with pytest.raises(LostForGoodError, match=f"platform-assets accept-loss raw/people {damaged.key}"):
        loader_of(topic, CLUSTER).load(damaged.key)
    accept_loss(topic, damaged)
    deciding(topic).erasure({}, [])
    check_gone(topic, damaged)
    assert topic.receipts()[damaged.key].holes == {ERASED: 1, ACCEPTED_LOSS: 1}


def test_keys_that_were_not_kept_have_to_be_given_again(topic: MadeTopic, damaged: SealedWindow) -> None:
    with pytest.raises(ErasureUnfinishedError, match="with the same keys, because they were not kept"):
        deciding(topic).erasure({}, [WHO], forget_keys=True)
    left = accept_partial.find(loader_of(topic, CLUSTER), damaged)
    assert left is not None
    left.accept(AUTHOR)
    deciding(topic).erasure({}, [WHO], forget_keys=True)
    check_gone(topic, damaged)


def test_rows_of_past_files_at_erased_offsets_are_left_out(topic: MadeTopic) -> None:
    (window,) = topic.seal([{0: [OURS, OURS, OURS, HERS, OURS]}])
    topic.fill([window], decode=False)
    folder = topic.lake.table(topic.declaration.raw_table)
    folder.delta().delete("kafka_offset = 2")
    # The recorded rows no longer exist: the first file is lost, and the table lacks a row.
    first = holdings.files_of(folder, window.key, 1).paths[0]
    (folder.path / first.replace("%25", "%")).unlink()
    with pytest.raises(ErasureUnfinishedError):
        deciding(topic).erasure({0: (OffsetRange(3, 4),)}, [])
    cluster = KeptCluster("people", {0: 5}, starts={0: 5})
    left = accept_partial.find(loader_of(topic, cluster), window)
    assert left is not None
    assert (left.gone, left.rows_gone, left.from_files) == ({0: (OffsetRange(2, 3),)}, 1, 3)
    left.accept(AUTHOR)
    deciding(topic).erasure({}, [])
    assert topic.values() == [b"value-1"] * 3
    assert not found_in(topic.root, NEEDLE)


def test_an_erasure_while_the_operator_is_asked_refuses_what_was_put_together(
    topic: MadeTopic, damaged: SealedWindow
) -> None:
    left = accept_partial.find(loader_of(topic, CLUSTER), damaged)
    assert left is not None
    with pytest.raises(ErasureUnfinishedError):
        deciding(topic).erasure({}, [WHO])
    with pytest.raises(ConcurrentLoadError):
        left.accept(AUTHOR)
    assert not found_in(topic.root, NEEDLE)
    accept_loss(topic, damaged)
    check_gone(topic, damaged)
