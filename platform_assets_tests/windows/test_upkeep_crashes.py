"""An upkeep run that fails, loses an answer or is killed at any step: the table is unchanged or merged, and the next
run completes the work. Rows stay proved, and an erasure still removes every byte."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from platform_assets.errors import PlatformError
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableKind
from platform_assets_tests.support import dying_upkeep
from platform_assets_tests.support.dying_upkeep import DEEDS, Deed, StruckError, struck, upkeep
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved
from platform_assets_tests.support.variants import long_after

pytestmark = pytest.mark.usefixtures("flat")
WINDOWS, EACH = 5, 6
MERGED: tuple[TableKind, ...] = ("raw", "decoded")
ERASED = b"to-be-forgotten"


@dataclass(frozen=True)
class Kept:
    """A lake that is copied for each crash, and the lake's records."""

    root: Path
    records: list[Any]

    def copied(self, to: Path) -> MadeTopic:
        shutil.copytree(self.root, to)
        return MadeTopic(to, records=list(self.records))


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    made = MadeTopic(tmp_path / "kept")
    values = [{p: [(b"k", b"%d/%d/%d" % (w, p, n)) for n in range(EACH)] for p in (0, 1)} for w in range(WINDOWS)]
    values[2][1][3] = (b"k", ERASED)
    made.fill(made.seal(values))
    return Kept(made.root, made.records)


def rows(topic: MadeTopic, kind: TableKind) -> list[tuple[Any, ...]]:
    columns = ["window", "kafka_partition", "kafka_offset", "value"]
    return sorted(pl.scan_delta(str(topic.root / kind / topic.topic)).select(columns).collect().rows())


def crash(topic: MadeTopic, kind: TableKind, number: int, deed: Deed) -> str:
    """Interrupt an upkeep run and check what is left; return the interrupted step, or '' if the run has fewer steps."""
    before = {k: rows(topic, k) for k in MERGED}
    steps: list[str] = []
    if deed == "kill":
        command = [sys.executable, "-m", dying_upkeep.__name__, str(topic.root), topic.topic, kind, str(number)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        assert ended.returncode in (0, -9), ended.stderr
        steps = ["killed"] * number if ended.returncode else []
    else:
        try:
            with struck(number, deed) as steps:
                upkeep(topic.ledger, topic.topic, kind)
        except (PlatformError, StruckError):
            pass
    assert {k: rows(topic, k) for k in before} == before
    proved(topic)
    erasure = topic.erasure
    erasure.record(erasure.at_offsets({1: (OffsetRange(2 * EACH + 3, 2 * EACH + 4),)}), AUTHOR)
    erasure.run(AUTHOR)
    left = found_in(topic.root / "raw", ERASED) + found_in(topic.root / "decoded", ERASED)
    assert not left, left
    for each in MERGED:
        done = upkeep(topic.ledger, topic.topic, each)
        assert done is not None
        assert not done.damaged
        assert rows(topic, each) == [row for row in before[each] if row[3] not in (ERASED, ERASED.decode())]
    proved(topic)
    return steps[number - 1] if len(steps) >= number else ""


@pytest.mark.parametrize("deed", long_after(1, DEEDS))
def test_an_upkeep_that_is_struck_at_any_step_is_ended_by_the_next(
    kept: Kept, tmp_path: Path, rng: random.Random, deed: Deed
) -> None:
    for number in rng.sample(range(1, 29), 1 if deed == "kill" else 3):
        crash(kept.copied(tmp_path / str(number)), rng.choice(MERGED), number, deed)


def test_steps_are_those_of_the_commit_and_of_each_file(kept: Kept, tmp_path: Path) -> None:
    """The interruptions above therefore fall between plan, files, proof, commit, records, checkpoint, log clean-up and
    vacuum."""
    topic = kept.copied(tmp_path / "steps")
    with struck(0, "fail") as steps:
        upkeep(topic.ledger, topic.topic, "raw")
    assert {"create", "open", "write", "create_write_transaction", "create_checkpoint", "cleanup_metadata"} <= {*steps}
    assert len(steps) >= 25
