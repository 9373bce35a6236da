"""Erasing records from a lake in an object store: no object contains them afterwards, and the erasure is refused if the
bucket would keep them."""

from __future__ import annotations

import uuid
from typing import Any, NoReturn

import obstore
import pytest

from platform_assets.errors import PastVersionsKeptError
from platform_assets.lake.location import Lake
from platform_assets.ledger import decisions
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.windows.decide.deciding import Deciding
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved, shown
from testbed.object_store import ObjectStore

pytestmark = pytest.mark.cluster

WHO, NEEDLE = b"customer-4711", b"zebra-in-pyjamas"


@pytest.fixture
def topic(store: ObjectStore) -> MadeTopic:
    """Return a topic whose lake is in the store."""
    name = f"lake-{uuid.uuid4().hex[:12]}"
    return MadeTopic(store.bucket / name, address=store.root(name))


@pytest.fixture
def windows(topic: MadeTopic) -> list[SealedWindow]:
    """Return two windows with records to erase (a row, a dead letter and a failed expectation), and one window without
    such records."""
    sealed = topic.seal(
        [
            {0: [(b"a", b"value-1"), (WHO, NEEDLE)], 1: [(WHO, b"\xff" + NEEDLE), (b"b", b"value-2")]},
            {0: [(b"c", b"value-3")], 1: []},
            {0: [(WHO, b"NOT AS EXPECTED " + NEEDLE), (b"d", b"value-4")], 1: []},
        ]
    )
    topic.fill(sealed)
    return sealed


def deciding(topic: MadeTopic, said: list[str]) -> Deciding:
    def nobody() -> NoReturn:
        raise AssertionError("a service was asked")

    return Deciding(topic.declaration, topic.ledger, nobody, nobody, nobody, AUTHOR, said.append, lambda question: None)


def check_gone(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    for needle in (WHO, NEEDLE):
        assert not (places := found_in(topic.root, needle)), shown(places)
    assert topic.values() == [b"value-1", b"value-3", b"value-4", b"value-2"]
    proved(topic)
    assert [topic.load(w).outcome for w in windows] == ["unchanged"] * 3


def test_no_object_has_them_any_more(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    places = found_in(topic.root, NEEDLE)
    for kind in ("raw", "decoded", "dead_letters", "_ledger/commits"):
        assert any(p.startswith(kind) for p in places), shown(places)
    said: list[str] = []
    found = deciding(topic, said).erasure({}, [WHO])
    assert len(found["windows"]) == 2
    assert said[-1].startswith("erased; 2 windows no longer hold any of the records")
    check_gone(topic, windows)


def test_one_that_is_cut_short_is_gone_on_with(
    topic: MadeTopic, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def die(ledger: Ledger, receipts: Any) -> NoReturn:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record_receipts", die)
        with pytest.raises(Died):
            deciding(topic, []).erasure({}, [WHO])
    assert decisions.unfinished_erasures(topic.lake, topic.topic)
    deciding(topic, []).erasure({}, [])
    check_gone(topic, windows)


@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_bucket_that_keeps_past_versions_is_refused_unless_they_expire(
    topic: MadeTopic, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch, is_suspended: bool
) -> None:
    put, head = obstore.put, obstore.head

    # This store has no versions. A versioned store names the new version when a file is written or, if versioning is
    # suspended, on request.
    def of_versions(*args: Any, **more: Any) -> Any:
        return {**put(*args, **more), "version": None if is_suspended else "3sL4kqtJlcpXroDTDmJ"}

    def suspended(*args: Any, **more: Any) -> Any:
        return {**head(*args, **more), "version": "null" if is_suspended else "3sL4kqtJlcpXroDTDmJ"}

    monkeypatch.setattr(obstore, "put", of_versions)
    monkeypatch.setattr(obstore, "head", suspended)
    before = found_in(topic.root, NEEDLE)
    said: list[str] = []
    with pytest.raises(PastVersionsKeptError, match=r"Nothing was erased.*--past-versions-expire"):
        deciding(topic, said).erasure({}, [WHO])
    assert found_in(topic.root, NEEDLE) == before
    assert not decisions.unfinished_erasures(topic.lake, topic.topic)
    # The remedy in the message.
    found = deciding(topic, said).erasure({}, [WHO], past_versions_expire=True)
    assert found["past_versions"] is True
    assert said[-1].startswith("the bucket keeps the deleted files as past versions")
    check_gone(topic, windows)


def test_the_store_says_whether_it_keeps_versions_and_nothing_of_the_question_stays(topic: MadeTopic) -> None:
    before = topic.lake.root.stamps()
    assert Lake.at(str(topic.address)).root.keeps_versions() is False
    assert topic.lake.root.stamps() == before
