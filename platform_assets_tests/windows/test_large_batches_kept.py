"""A batch that exceeds a limit, in a window that already has rows: the error names only the remedy that works in this
case.

No Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from platform_assets.engines.protocol import Records, StagedFiles
from platform_assets.errors import BatchTooLargeError
from platform_assets.lake import holdings
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.windows.recover import accept_partial
from platform_assets_tests.support.erasures import MadeTopic
from platform_assets_tests.support.kept_cluster import KeptCluster, loader_of
from platform_assets_tests.support.local_engine import LocalEngine

SECOND = "accept-loss"


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    return MadeTopic(tmp_path, "t")


@pytest.fixture
def window(topic: MadeTopic) -> SealedWindow:
    (sealed,) = topic.seal([{0: [(b"k", b"v")] * 4}])
    return sealed


def damage(topic: MadeTopic, window: SealedWindow) -> None:
    folder = topic.lake.table(TableRef.raw("t"))
    for path in holdings.files_of(folder, window.key).paths:
        (folder.path / path.replace("%25", "%")).unlink()


def loaded_once(topic: MadeTopic, window: SealedWindow, _: pytest.MonkeyPatch) -> None:
    topic.load(window)
    damage(topic, window)


def without_a_receipt(topic: MadeTopic, window: SealedWindow, patch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with patch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(Ledger, "record_receipts", die)
        topic.load(window)
    damage(topic, window)


def refuse(patch: pytest.MonkeyPatch) -> None:
    """Make the engine report a batch that exceeds the limit."""

    def write(_: LocalEngine, records: Records, *__: object) -> StagedFiles:
        error = BatchTooLargeError("t", 0, 2, 4, "has more than 1 records", "KAFKA_BATCH_MAX_RECORDS")
        raise error.of_window(records.window)

    patch.setattr(LocalEngine, "write", write)


@pytest.mark.parametrize("begin", [loaded_once, without_a_receipt])
def test_a_window_that_the_table_has_rows_of_is_healed_by_a_higher_limit_alone(
    topic: MadeTopic,
    window: SealedWindow,
    begin: Callable[[MadeTopic, SealedWindow, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin(topic, window, monkeypatch)
    with monkeypatch.context() as patched:
        refuse(patched)
        with pytest.raises(BatchTooLargeError, match="raise KAFKA_BATCH_MAX_RECORDS") as found:
            loader_of(topic).load(window.key)
        assert SECOND not in str(found.value)
    assert loader_of(topic).load(window.key).receipt.rows == 4
    assert len(topic.values()) == 4


def test_what_is_left_of_a_window_is_found_with_a_higher_limit(
    topic: MadeTopic, window: SealedWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_once(topic, window, monkeypatch)
    loader = loader_of(topic, KeptCluster("t", {0: 4}, starts={0: 1}))
    with monkeypatch.context() as patched:
        refuse(patched)
        with pytest.raises(BatchTooLargeError, match="raise KAFKA_BATCH_MAX_RECORDS") as found:
            accept_partial.find(loader, window)
        assert SECOND not in str(found.value)
    left = accept_partial.find(loader, window)
    assert left is not None
    assert (left.from_kafka, left.rows_gone) == (3, 1)


def test_a_window_that_was_never_loaded_may_also_do_without_the_batch(
    topic: MadeTopic, window: SealedWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch)
    with pytest.raises(BatchTooLargeError, match=f"{SECOND} raw/t {window.key}"):
        loader_of(topic).load(window.key)
