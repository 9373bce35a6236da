"""Decisions about a topic's log: a refused decision changes nothing, and the next tick or load completes an interrupted
decision.

No Kafka.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from platform_assets.errors import ClusterChangedError, ConcurrentLoadError, LedgerConflictError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import holdings
from platform_assets.ledger import decisions, known_files
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.entries import ACCEPTED_LOSS, RecordedCut
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.windows.decide import acceptance, carrying_out, clusters, generations
from platform_assets.windows.decide.clusters import Continuation
from platform_assets.windows.decide.generations import LostOffsets, NewGeneration
from platform_assets.windows.recover import accept_partial
from platform_assets_tests.support.erasures import MadeTopic
from platform_assets_tests.support.kept_cluster import KeptCluster, loader_of
from testbed import samples

ANN = Author("ann", "the old one is switched off")
OTHER = "B" * 22


class Decided:
    """A topic with two windows, of which the first is loaded, and the two decisions that an operator may make about the
    topic."""

    def __init__(self, root: Path) -> None:
        self.topic = MadeTopic(root, "t")
        self.loaded, self.waiting = self.topic.seal([{0: [(b"k", b"v")] * 4}, {0: [(b"k", b"v")] * 8}])
        self.topic.load(self.loaded)
        self.ledger = self.topic.ledger
        newest = self.ledger.newest_cut("t")
        assert newest is not None
        self.newest = newest

    def cut(self, at: int, topic_id: str = OTHER) -> RecordedCut:
        cut = samples.cut("t", self.newest.edge, {0: at}, topic_id=topic_id, generation=2)
        return replace(cut, taken={0: "accepted"})

    def decide(self, kind: str) -> None:
        if kind == "cluster":
            clusters.accept(Continuation(self.newest, self.cut(4), (self.waiting,)), ANN, self.ledger)
        else:
            lost = LostOffsets(self.waiting, {0: (OffsetRange(4, 12),)}, False)
            generations.accept(NewGeneration("re-created", self.newest, self.cut(0), (lost,)), ANN, self.ledger)

    @property
    def accepted(self) -> dict[int, tuple[OffsetRange, ...]]:
        return self.ledger.accepted_losses(TableRef.raw("t"), self.waiting.key)

    def check_in_force(self, kind: str) -> None:
        assert self.accepted == {0: (OffsetRange(4, 12),)}
        receipt = self.topic.receipts().get(self.waiting.key)
        if kind == "generation":
            assert receipt is None
        else:
            assert receipt is not None
            assert (receipt.rows, receipt.holes) == (0, {ACCEPTED_LOSS: 8})


@pytest.fixture
def decided(tmp_path: Path) -> Decided:
    return Decided(tmp_path)


KINDS = pytest.mark.parametrize("kind", ["cluster", "generation"])


@KINDS
def test_a_refused_decision_changes_nothing_and_its_remedy_works(decided: Decided, kind: str) -> None:
    another = samples.cut("t", samples.edge(3), {0: 20})
    assert decided.ledger.record_cuts([another], decided.newest.edge)
    before = decided.topic.receipts()
    with pytest.raises(LedgerConflictError, match=f"nothing was accepted .* accept-{kind} t "):
        decided.decide(kind)
    carrying_out.carry_out(decided.ledger, "t")
    assert decided.accepted == {}
    assert decided.topic.receipts() == before
    # No record is lost: the window that waits still loads all of its own.
    assert decided.topic.load(decided.waiting).receipt.rows == 8
    decided.newest = another
    if kind == "generation":
        generations.accept(NewGeneration("re-created", another, _at(another, 0), ()), ANN, decided.ledger)
    else:
        clusters.accept(Continuation(another, _at(another, 20), ()), ANN, decided.ledger)
    newest = decided.ledger.newest_cut("t")
    assert newest is not None
    assert newest.generation == 2


def _at(newest: RecordedCut, offset: int) -> RecordedCut:
    cut = samples.cut("t", newest.edge, {0: offset}, topic_id=OTHER, generation=2)
    return replace(cut, taken={0: "accepted"})


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("cluster", "record_cuts"),
        ("cluster", "record_acceptances"),
        ("cluster", "record_receipts"),
        ("generation", "record_cuts"),
        ("generation", "record_acceptances"),
    ],
)
def test_a_decision_that_is_cut_short_is_none_or_is_completed(
    decided: Decided, kind: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, step, die)
        with pytest.raises(KeyboardInterrupt):
            decided.decide(kind)
    if step == "record_cuts":
        carrying_out.carry_out(decided.ledger, "t")
        assert decided.accepted == {}
        assert decided.topic.load(decided.waiting).receipt.rows == 8
        return
    carrying_out.carry_out(decided.ledger, "t")
    decided.check_in_force(kind)
    rows = decided.ledger.commit_rows(TableRef.raw("t")).num_rows
    carrying_out.carry_out(Ledger(decided.topic.lake), "t")
    assert decided.ledger.commit_rows(TableRef.raw("t")).num_rows == rows


@KINDS
@pytest.mark.parametrize("cut_short", [False, True])
def test_carrying_out_reads_as_little_of_a_long_history(
    decided: Decided, kind: str, cut_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    earlier, later = decided.newest, [samples.edge(3 + n) for n in range(100)]
    with monkeypatch.context() as patched:
        if cut_short:
            patched.setattr(Ledger, "record_acceptances", die)
        with suppress(KeyboardInterrupt):
            decided.decide(kind)
    first = decided.cut(4 if kind == "cluster" else 0)
    cuts = [samples.cut("t", at, {0: 20}, topic_id=first.topic_id, generation=2) for at in later]
    assert decided.ledger.record_cuts(cuts, earlier.edge)
    read = list[int]()
    rows = known_files.KnownFiles.rows

    def counted(files: known_files.KnownFiles, *given: Any, **more: Any) -> Any:
        found = rows(files, *given, **more)
        read.append(found.num_rows)
        return found

    monkeypatch.setattr(carrying_out, "_done", {})
    monkeypatch.setattr(known_files.KnownFiles, "rows", counted)
    carrying_out.carry_out(decided.ledger, "t")
    assert sum(read) <= 15
    decided.check_in_force(kind)
    monkeypatch.setattr(carrying_out, "_done", {})
    monkeypatch.setattr(Ledger, "windows", lambda *_: pytest.fail("nothing is left to do"))
    carrying_out.carry_out(decided.ledger, "t")


def test_another_decision_of_the_same_number_does_not_bring_its_losses(decided: Decided) -> None:
    """Two operators decide at once. The log is truncated further before the second decision, whose cut is refused."""
    lost = LostOffsets(decided.waiting, {0: (OffsetRange(4, 12),)}, False)
    refused = NewGeneration("truncated", decided.newest, decided.cut(4, samples.TOPIC_ID), (lost,))
    assert decided.ledger.record_cuts([decided.cut(10, samples.TOPIC_ID)], decided.newest.edge)
    with pytest.raises(LedgerConflictError):
        generations.accept(refused, ANN, decided.ledger)
    carrying_out.carry_out(decided.ledger, "t")
    assert decided.accepted == {}


def test_a_moved_window_that_was_loaded_while_the_operator_was_asked_is_refused(decided: Decided) -> None:
    found = Continuation(decided.newest, decided.cut(4), (decided.waiting,))
    decided.topic.load(decided.waiting)
    with pytest.raises(LedgerConflictError, match=f"another process loaded window {decided.waiting.key} first"):
        clusters.accept(found, ANN, decided.ledger)
    assert decisions.decisions(decided.topic.lake, "t") == []


def test_a_moved_window_that_was_loaded_just_before_the_cut_holds_no_row(
    decided: Decided, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new generation's first window also contains the moved window's records, so the table would have each record
    twice."""
    record = Ledger.record_cuts

    def after_a_load(ledger: Ledger, cuts: list[RecordedCut], after: object) -> bool:
        decided.topic.load(decided.waiting)
        return record(ledger, cuts, after)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "record_cuts", after_a_load)
    decided.decide("cluster")
    decided.check_in_force("cluster")
    assert not holdings.files_of(decided.topic.lake.table(TableRef.raw("t")), decided.waiting.key).paths


# --- what is left of a window that is lost for good -----------------------------------------------------------------


@pytest.fixture
def remains(decided: Decided) -> accept_partial.Remains:
    """Return what is left of the loaded window: its file is lost, and Kafka has only the last two of its four records."""
    folder = decided.topic.lake.table(TableRef.raw("t"))
    (path,) = holdings.files_of(folder, decided.loaded.key).paths
    (folder.path / path.replace("%25", "%")).unlink()
    found = accept_partial.find(loader_of(decided.topic, KeptCluster("t", {0: 12}, starts={0: 2})), decided.loaded)
    assert found is not None
    assert found.rows_gone == 2
    return found


def test_a_window_whose_files_are_lost_names_no_offsets_since_a_load_may_heal_it(decided: Decided) -> None:
    folder, settings = decided.topic.lake.table(TableRef.raw("t")), ClientSettings("127.0.0.1:1", {})
    (path,) = holdings.files_of(folder, decided.loaded.key).paths
    (folder.path / path.replace("%25", "%")).unlink()
    decided.ledger.record_receipts([replace(decided.topic.receipts()[decided.loaded.key], holes=None)])
    cluster = cast(Cluster, KeptCluster("t", {0: 12}, starts={0: 2}))
    assert acceptance.find_losses(decided.loaded, decided.ledger, cluster, settings) == []


def test_a_loss_that_was_refused_since_the_window_was_healed_accepts_nothing(
    decided: Decided, remains: accept_partial.Remains
) -> None:
    loader = loader_of(decided.topic)
    assert loader.load(decided.loaded.key).outcome == "healed"
    with pytest.raises(ConcurrentLoadError):
        remains.accept(ANN)
    assert decided.ledger.accepted_losses(TableRef.raw("t"), decided.loaded.key) == {}
    assert loader.load(decided.loaded.key).outcome == "unchanged"


@pytest.mark.parametrize("step", ["record_acceptance", "record_receipts"])
def test_a_loss_that_is_cut_short_can_be_accepted_again(
    decided: Decided, remains: accept_partial.Remains, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, step, die)
        with pytest.raises(KeyboardInterrupt):
            remains.accept(ANN)
    loader = loader_of(decided.topic, KeptCluster("t", {0: 12}, starts={0: 2}))
    again = accept_partial.find(loader, decided.loaded)
    if again is not None:
        again.accept(ANN)
    assert decided.topic.receipts()[decided.loaded.key].rows == 2
    assert decided.ledger.accepted_losses(TableRef.raw("t"), decided.loaded.key)[0][0] == OffsetRange(0, 2)
    assert loader.load(decided.loaded.key).outcome in ("unchanged", "kept")


def test_nothing_is_called_lost_before_an_operator_has_decided_on_another_cluster(tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path / "lake", "t")
    (window,) = topic.seal([{0: [(b"k", b"v")] * 4}])
    newest = topic.ledger.newest_cut("t")
    assert newest is not None
    here, there = (KeptCluster("t", {0: 4}, cluster_id=name) for name in ("here", "there"))
    first = replace(samples.cut("t", newest.edge, {0: 4}, generation=2), cluster_id="here")
    assert topic.ledger.record_cuts([first], newest.edge)
    assert loader_of(topic, here).load(window.key).outcome == "loaded"
    folder = topic.lake.table(topic.declaration.raw_table)
    for path in holdings.files_of(folder, window.key).paths:
        (folder.path / path.replace("%25", "%")).unlink()
    with pytest.raises(ClusterChangedError) as caught:
        loader_of(topic, there).load(window.key)
    assert "If KAFKA_BOOTSTRAP_SERVERS is wrong, correct it." in str(caught.value)
    with pytest.raises(ClusterChangedError):
        accept_partial.find(loader_of(topic, there), window)
    # One remedy is followed to its end: with accept-cluster, the other cluster has the rows.
    clusters.accept(Continuation(first, replace(first, generation=3, cluster_id="there"), ()), ANN, topic.ledger)
    assert loader_of(topic, there).load(window.key).outcome == "healed"
