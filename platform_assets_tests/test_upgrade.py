"""An upgrade from the first version: today's code reads and proves the lake that the first version wrote, and continues
it.

The first version wrote `data/first_version` with a real broker and a real Spark: topic `orders` with two partitions and
one-minute windows. The first window is dense. The second has a committed and an aborted transaction. The third has no
offsets. The fourth is sealed and not loaded. These files are never rewritten: after a format change, they must still be
readable.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.registry import CHECKS
from platform_assets.engines.choice import choose_engine
from platform_assets.lake import holdings, load_log
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.digest import dense_digest
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import status
from platform_assets_tests.support.answers import nothing_answers
from testbed import samples
from testbed.loads import table_rows

FIRST_VERSION = Path(__file__).parent / "data" / "first_version"
START = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ORDERS = TableRef.raw("orders")
DECLARED = TopicDeclaration("orders", "* * * * *", START)
KEYS = [f"2026-03-01-00:0{n}" for n in range(4)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Return the ledger of a copy of the first version's lake."""
    shutil.copytree(FIRST_VERSION, tmp_path / "lake")
    return Ledger(Lake.at(tmp_path / "lake"))


def evaluation(ledger: Ledger, *, whole: bool = True) -> Evaluation:
    """Return the results of checks without broker and Spark: windows that the first version proved must stay proved."""
    return Evaluation(
        DECLARED,
        ledger,
        Orchestration(),
        nothing_answers,
        nothing_answers,
        choose_engine(ledger.lake, nothing_answers, nothing_answers),
        counting=() if whole else CHECKS.values(),
    )


def test_cuts_of_the_first_version_are_the_windows(ledger: Ledger) -> None:
    cuts = ledger.cuts("orders")

    assert [(c.edge, dict(c.cut.offsets)) for c in cuts] == [
        (START + n * MINUTE, {0: offset, 1: offset}) for n, offset in enumerate((0, 3, 8, 8, 10))
    ]
    assert {c.generation for c in cuts} == {1}
    assert [(w.key, w.ranges.triples()) for w in ledger.windows("orders")] == [
        (KEYS[n], tuple((p, start, end) for p in (0, 1)))
        for n, (start, end) in enumerate(((0, 3), (3, 8), (8, 8), (8, 10)))
    ]


def test_receipts_of_the_first_version_say_what_was_loaded_and_proved(ledger: Ledger) -> None:
    receipts = ledger.receipts(ORDERS)

    assert {k: (r.rows, r.holes) for k, r in receipts.items()} == {
        KEYS[0]: (6, {}),
        KEYS[1]: (4, {"commit markers": 2, "abort markers": 2, "aborted records": 2}),
        KEYS[2]: (0, {}),
    }
    assert receipts[KEYS[0]].offsets == dense_digest(receipts[KEYS[0]].ranges)
    assert {r.table for r in receipts.values()} == {ORDERS}
    assert {r.topic_id for r in receipts.values()} == {ledger.cuts("orders")[0].topic_id}


def test_commits_of_the_first_version_name_their_windows_and_ranges(ledger: Ledger) -> None:
    loads = load_log.newest_loads(ledger.lake.table(ORDERS))
    receipts = ledger.receipts(ORDERS)

    assert {KEYS[0], KEYS[1]} <= set(loads)
    for key, load in loads.items():
        assert load.metadata.ranges == receipts[key].ranges
        assert load.metadata.load_id == receipts[key].load_id
        assert load.version == receipts[key].table_version or receipts[key].kind == "proof"


def test_rows_of_the_first_version_are_in_the_files_that_its_receipts_name(ledger: Ledger) -> None:
    folder = ledger.lake.table(ORDERS)

    found = [(r.partition, r.offset, r.value) for r in table_rows(folder.path)]
    assert found == [
        *((0, n, f"a{2 * n}".encode()) for n in range(3)), (0, 3, b"b0"), (0, 4, b"b2"),
        *((1, n, f"a{2 * n + 1}".encode()) for n in range(3)), (1, 3, b"b1"), (1, 4, b"b3"),
    ]  # fmt: skip
    for key, receipt in ledger.receipts(ORDERS).items():
        assert holdings.files_of(folder, key).match(receipt.files_digest, receipt.rows)


@pytest.mark.parametrize("whole", [True, False], ids=["audit", "after a load"])
def test_every_check_of_a_lake_of_the_first_version_passes(ledger: Ledger, whole: bool) -> None:
    e = evaluation(ledger, whole=whole)

    check_results = {name: check.evaluate(e) for name, check in CHECKS.items()}

    assert {name: v.findings for name, v in check_results.items()} == dict.fromkeys(CHECKS, ())
    assert check_results["every_offset_accounted_for"].headline == (
        "Every offset accounted for: 10 rows + 2 abort markers, 2 aborted records, 2 commit markers = 16 offsets in 3 windows."
    )


def test_status_shows_a_lake_of_the_first_version(ledger: Ledger) -> None:
    found = status.collect([DECLARED], ledger, None, None, CHECKS, START + 5 * MINUTE)

    (table,) = found.tables
    assert table.error is None
    assert (table.windows_sealed, table.windows_loaded, table.windows_waiting, table.windows_failed) == (4, 3, 1, 0)
    assert (table.rows, table.offsets_without_row, table.newest_window) == (10, 6, KEYS[2])


def test_a_ledger_of_the_first_version_is_gone_on_from(ledger: Ledger) -> None:
    topic_id = ledger.cuts("orders")[0].topic_id
    following = samples.cut("orders", START + 5 * MINUTE, {0: 12, 1: 10}, topic_id=topic_id)

    assert ledger.record_cuts([following], START + 4 * MINUTE)
    # A writer that still expects the previous boundary is refused.
    assert not ledger.record_cuts([following], START + 3 * MINUTE)
    window = ledger.windows("orders")[-1]
    assert window.ranges.triples() == ((0, 10, 12), (1, 10, 10))
    ledger.record_receipts([samples.receipt(window, version=9)])
    assert ledger.receipts(ORDERS)[window.key].rows == 2
    assert len(ledger.receipts(ORDERS)) == 4
