"""States that need a decision. Each is detected, and its error names a command. After this command, the decision is
recorded, and the window is loaded and proved."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from platform_assets.errors import BrokerUnreachableError, LostForGoodError, TopicRecreatedError, TruncationError
from platform_assets.ledger.decisions import decisions
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.services.home import Home
from platform_assets_tests.support.damage import delete_rows
from platform_assets_tests.support.logs import cut_off
from platform_assets_tests.support.runs_of import minutes_ago
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, ShellOf, follow, proved, sentence
from platform_assets_tests.support.streams import create_again, delete_before
from testbed.loads import numbered, records, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = [pytest.mark.broker, *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

GREEN = 0


@pytest.mark.long
def test_a_topic_made_again_is_decided_and_goes_on_under_the_same_name(
    lake: LakeMaker, broker: Broker, shell_of: ShellOf
) -> None:
    lk = lake(start=minutes_ago(12))
    shell = shell_of(lk)
    first, second = lk.window_of(numbered(10, stem="old")), lk.window_of(numbered(6, stem="old too"))
    assert shell.run("load", lk.topic, first).exit_code == GREEN
    old_id = lk.cluster.topic(lk.topic).topic_id
    old_rows = records(lk.rows())
    create_again(broker, lk.topic)
    lk.send(numbered(4, stem="new"))
    with pytest.raises(TopicRecreatedError) as found:
        lk.close_window()
    lk.closed -= timedelta(minutes=1)
    # Only list first: nothing changes.
    before = lk.snapshot()
    shown = json.loads(shell.run("accept-generation", lk.topic, "--dry-run", "--json").output)
    assert (shown["change"], shown["accepted"], shown["to"]["generation"]) == ("re-created", False, 2)
    assert shown["lost"] == [{"window": second, "loaded": False, "ranges": {"0": [[10, 16]]}, "offsets": 6}]
    assert lk.snapshot() == before
    assert shell.run("accept-generation", lk.topic, "--yes").exit_code == 1, "a decision needs a reason"
    assert lk.snapshot() == before

    said = follow(shell, found.value, "--yes", "--by", "ann")
    assert f"window {second} was never loaded: 6 offsets: partition 0 offsets [10, 16)" in said
    (decision,) = decisions(lk.ledger.lake, lk.topic)
    assert (decision.kind, decision.decided_by, decision.reason, decision.windows) == (
        "generation", f"ann [claimed; uid {os.getuid()}]", "decided", (second,),
    )  # fmt: skip
    assert decision.decided_at is not None
    assert datetime.now(UTC) - decision.decided_at < timedelta(hours=1)
    assert decision.details["from"]["topic_id"] == old_id

    # The next boundary ends the window in which the topic was recreated; that window has the new log from its start.
    third = lk.close_window()
    fourth = lk.window_of(numbered(5, stem="newer"))
    window = lk.ledger.window(lk.topic, third)
    assert window is not None
    assert (window.generation, window.ranges) == (2, TopicRanges({0: OffsetRange(0, 4)}))
    loaded = shell.run("load", lk.topic, second, third, fourth)
    assert loaded.exit_code == 0, loaded.output
    assert {w: len(lk.rows(w)) for w in (first, second, third, fourth)} == {first: 10, second: 0, third: 4, fourth: 5}
    assert records(lk.rows(first)) == old_rows
    assert {r.topic_id for r in lk.rows(first)} == {old_id}
    assert {r.topic_id for r in lk.rows(third)} == {lk.cluster.topic(lk.topic).topic_id} != {old_id}
    # The same offsets, but other records.
    assert records(lk.rows(third) + lk.rows(fourth)) == records(lk.committed())
    proved(shell, lk)
    status = json.loads(shell.run("status", "--json").output)["tables"][0]
    assert (status["partitions"][0]["committed"], status["lag"]) == (9, 0)

    # Load again: old windows are kept, restored from the table's past, or lost; none is read from the new topic.
    assert [lk.load(w).outcome for w in (first, second, third)] == ["kept", "unchanged", "unchanged"]
    delete_rows(lk, first)
    assert f"{first}: restored" in shell.run("load", lk.topic, first).output
    assert records(lk.rows(first)) == old_rows
    proved(shell, lk)
    assert "nothing was accepted" in shell.run("accept-generation", lk.topic, "--reason", "again", "--yes").output

    # A lost ledger is rebuilt with both generations.
    cuts = [(c.generation, c.edge, c.cut) for c in lk.ledger.cuts(lk.topic)]
    (lk.root / "_ledger").rename(lk.root / "_ledger of before")
    rebuilt = shell.run("rebuild-ledger", lk.topic)
    assert rebuilt.exit_code == 0, rebuilt.output
    assert [(c.generation, c.edge, c.cut) for c in lk.ledger.cuts(lk.topic)] == cuts


# --- a log that lost its end ----------------------------------------------------------------------------------------


def lose(broker: Broker, home: Home, topic: str, end: int) -> None:
    """Make the broker lose all records from offset `end` on. A batch has to begin at this offset."""
    (folder,) = home.root.rglob(f"{topic}-0")
    broker.stop()
    assert cut_off(folder, end) == end
    broker.start()


@pytest.mark.alone
def test_a_log_that_lost_its_end_is_decided_and_loaded_from_there_on(
    lake: LakeMaker, broker: Broker, platform_home: Home, shell_of: ShellOf
) -> None:
    lk = lake(start=minutes_ago(14))
    shell = shell_of(lk)
    first = lk.window_of(numbered(6, stem="first"))
    lk.send(numbered(2, stem="kept"))
    second = lk.window_of(numbered(2, stem="cut off"))
    assert shell.run("load", lk.topic, first, second).exit_code == GREEN
    third = lk.window_of(numbered(3, stem="never loaded"))
    before = records(lk.rows())
    lose(broker, platform_home, lk.topic, 8)

    def is_read_again() -> bool:
        # A broker that has just started may still answer that it does not know the leader's epoch.
        try:
            return lk.high_watermarks() == {0: 8}
        except BrokerUnreachableError:
            return False

    wait_until("the log is read again", is_read_again)
    lk.send(numbered(1, stem="in the place of others"))
    with pytest.raises(TruncationError) as found:
        lk.close_window()
    lk.closed -= timedelta(minutes=1)
    assert (found.value.recorded, found.value.found) == (13, 8)

    said = follow(shell, found.value, "--yes")
    # The new record's leader epoch shows that the log was truncated before it.
    assert "partition 0 at offset 8 (the previous log was sealed up to 13)" in said
    assert f"window {third} was never loaded: 3 offsets: partition 0 offsets [10, 13)" in said
    fourth = lk.close_window()
    loaded = shell.run("load", lk.topic, third, fourth)
    assert loaded.exit_code == 0, loaded.output
    assert records(lk.rows(first) + lk.rows(second)) == before
    assert [(r.offset, r.value) for r in lk.rows(fourth)] == [(8, b"in the place of others0")]
    assert records(lk.rows(first) + lk.rows(second)[:2] + lk.rows(fourth)) == records(lk.committed())
    proved(shell, lk)
    assert [lk.load(w).outcome for w in (first, second, fourth)] == ["unchanged", "kept", "unchanged"]
    delete_rows(lk, first)
    assert lk.load(first).outcome == "healed"


# --- lost rows ------------------------------------------------------------------------------------------------------


def test_a_window_that_is_lost_for_good_holds_what_is_left(lake: LakeMaker, broker: Broker, shell_of: ShellOf) -> None:
    lk = lake(partitions=2, start=minutes_ago(12))
    shell = shell_of(lk)
    key = lk.window_of(numbered(40, 2))
    assert shell.run("load", lk.topic, key).exit_code == GREEN
    good = lk.rows()
    delete_before(broker.bootstrap, lk.topic, 1, 7)
    # The window is sound: nothing is accepted, and no existing row counts as lost.
    entries = lk.snapshot()["commits"]
    shown = shell.run("accept-loss", lk.topic, key, "--dry-run")
    assert (shown.exit_code, "the window is loaded (40 rows)" in shown.output) == (0, True), shown.output
    done = shell.run("accept-loss", lk.topic, key, "--reason", "by mistake", "--yes")
    assert (done.exit_code, "nothing was accepted" in done.output) == (0, True), done.output
    assert lk.snapshot()["commits"] == entries

    delete_rows(lk, key)
    DeltaTable(lk.table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(LostForGoodError) as found:
        lk.load(key)
    before = lk.snapshot()
    refused = shell.run(*sentence(found.value).replace('"…"', "no").split())
    assert refused.exit_code == 1, "nobody said yes"
    assert lk.snapshot() == before
    said = follow(shell, found.value, "--yes", "--by", "ann")
    assert (
        "2 of 40 rows no longer exist anywhere; offsets without a row: partition 1 offsets [3, 4), partition 1 "
        "offsets [5, 6)" in said
    )
    assert "33 rows were read from Kafka again, and 5 come from data files of the table" in said
    left = [r for r in good if (r.partition, r.offset) not in {(1, 3), (1, 5)}]
    assert [r.whole for r in lk.rows()] == [r.whole for r in left]
    receipt = lk.ledger.receipts(lk.declaration.raw_table)[key]
    assert (receipt.rows, receipt.holes) == (38, {"accepted loss": 2})
    (decision,) = decisions(lk.ledger.lake, lk.topic)
    assert (decision.kind, decision.decided_by, decision.windows, decision.details["rows_gone"]) == (
        "loss", f"ann [claimed; uid {os.getuid()}]", (key,), 2,
    )  # fmt: skip
    assert lk.load(key).outcome == "kept"
    loaded = shell.run("load", lk.topic, key)
    assert loaded.exit_code == 0, loaded.output
    proved(shell, lk)
