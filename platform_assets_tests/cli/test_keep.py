"""`keep` in the YAML: what `upkeep` and its job remove and print, and what `status` shows."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import dagster as dg
import polars as pl
import pytest

from platform_assets.engines.merging.engine import MergeEngine
from platform_assets.errors import ConfigurationError
from platform_assets.lake.location import Lake
from platform_assets.ledger import decisions
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.keeping import GRACE, Keep
from platform_assets.orchestration import status
from platform_assets.orchestration.maintenance import upkeep
from platform_assets.orchestration.resources import LakeResource, SparkResource
from platform_assets.windows.decide import parking
from platform_assets.windows.maintain import expiry_text, keeping, last_expiry
from platform_assets.windows.maintain.expiring import Expired, Expiring, ExpiryPlan
from platform_assets.windows.maintain.expiry_reasons import DAMAGED, OPEN, PARKED
from platform_assets.windows.maintain.notice import Policy, Times
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

pytestmark = list(map(pytest.mark.filterwarnings, DAGSTER_WARNINGS))
WINDOWS, EACH = 3, 5
FIRST, LAST = "2026-01-01-00:00", "2026-01-01-02:00"
SOME = f"{WINDOWS} windows from {FIRST} to {LAST}, with {WINDOWS * EACH} rows"


@pytest.fixture
def topic(layout: str, tmp_path: Path) -> MadeTopic:
    """A topic with windows of 2026-01-01, which are not decoded."""
    made = MadeTopic(tmp_path / "lake")
    made.declaration = replace(made.declaration, decode=None)
    made.fill(made.seal([{0: [(b"k", b"%d-%d" % (w, n)) for n in range(EACH)]} for w in range(WINDOWS)]), decode=False)
    # Windows age up to the newest boundary, which is recent for a topic whose windows are sealed.
    newest = made.ledger.newest_cut(made.topic)
    assert newest is not None
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    assert made.ledger.record_cuts([replace(newest, edge=now)], newest.edge)
    return made


@pytest.fixture
def shell(topic: MadeTopic, tmp_path: Path) -> Shell:
    made = Shell(tmp_path / "project")
    file = made.declare(topic.topic)
    file.write_text(file.read_text().replace("  topic: people\n", "  topic: people\n  keep: 1 day\n"))
    assert "keep: 1 day" in file.read_text()
    made.variables["LAKE_ROOT"] = str(topic.root)
    return made


def seen(topic: MadeTopic, ago: timedelta) -> None:
    """Let an upkeep of that long ago have seen the value."""
    found = Expiring(
        replace(topic.declaration, keep=Keep(1)), topic.ledger, measure=lambda ledger, name, now: Times(now, now)
    ).run(datetime.now(UTC) - ago)
    assert found is not None
    assert found.done == ()


def rows(topic: MadeTopic) -> int:
    return pl.scan_delta(str(topic.root / "raw" / topic.topic)).collect().height


def test_upkeep_announces_for_a_week_then_removes_and_status_says_so(shell: Shell, topic: MadeTopic) -> None:
    listed = shell.run("upkeep", "people", "--dry-run")
    assert "raw/people: keep 1 day: removes nothing before " in listed.stdout
    first = shell.run("upkeep", "people")
    assert first.exit_code == 0, first.output
    assert f"; {SOME}, are older and will go then" in first.stdout
    assert rows(topic) == WINDOWS * EACH
    known = last_expiry.recall(topic.ledger, topic.topic)
    assert known is not None
    assert (known.is_due, known.waiting, known.first, known.last) == (False, WINDOWS, FIRST, LAST)


def test_a_dry_run_writes_nothing(shell: Shell, topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the receipts of a removal whose run died before it recorded them."""
    seen(topic, GRACE + timedelta(days=1))
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record_receipts", _raise)
        assert shell.run("upkeep", "people").exit_code == 1
    assert rows(topic) == 0
    before = {path: path.stat().st_mtime_ns for path in topic.root.rglob("*")}
    assert shell.run("upkeep", "people", "--dry-run").exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in topic.root.rglob("*")} == before


def _raise(*args: object, **options: object) -> NoReturn:
    raise RuntimeError("a mistake in the code")


def test_an_unexpected_error_of_a_topic_does_not_stop_upkeep_of_tables(
    shell: Shell, topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Expiring, "run", _raise)
    done = shell.run("upkeep", "people", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["keep"] == [{"topic": "people", "error": "a mistake in the code"}]
    assert [each["table"] for each in found["tables"]][:1] == ["raw/people"]


def test_topics_that_never_had_keep_cost_one_look_at_the_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(Lake.at(tmp_path / "lake"))
    declared = [TopicDeclaration(f"t{n}", "0 * * * *", datetime(2026, 1, 1, tzinfo=UTC)) for n in range(9)]
    looked, look = list[object](), decisions.decisions

    def counted(*args: Any) -> Any:
        looked.append(args)
        return look(*args)

    monkeypatch.setattr(decisions, "decisions", counted)
    monkeypatch.setattr(last_expiry, "recall", _raise)
    assert list(keeping.of_topics(declared, ledger, datetime.now(UTC))) == []
    assert len(looked) == 1


def test_unreadable_decisions_are_reported_once_and_stop_no_other_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(Lake.at(tmp_path / "lake"))
    declared = [TopicDeclaration(f"t{n}", "0 * * * *", datetime(2026, 1, 1, tzinfo=UTC)) for n in range(3)]
    declared.append(replace(declared[0], topic="kept", keep=Keep(1)))
    unreadable, look = ConfigurationError("unreadable"), decisions.decisions

    def read(lake: Lake, topic: str | None, kinds: Any) -> Any:
        if topic is None:
            raise unreadable
        return look(lake, topic, kinds)

    monkeypatch.setattr(decisions, "decisions", read)
    found = [(each.topic, done) for each, done in keeping.of_topics(declared, ledger, datetime.now(UTC))]
    assert found[0] == ("t0", unreadable)
    assert [topic for topic, _ in found] == ["t0", "kept"]
    assert isinstance(found[1][1], last_expiry.LastExpiry)


def test_each_reason_is_named_with_its_first_windows_and_their_number() -> None:
    held = {f"w{n:03}": DAMAGED for n in range(500)} | {"w600": OPEN}
    now = datetime(2026, 1, 9, tzinfo=UTC)
    done = Expired(ExpiryPlan(Policy(Keep(1), now, is_new=False, aged=now)), is_due=True, held=held)
    found = last_expiry.of_run(done, now)
    first, second = expiry_text.problems("people", found.held, found.more)
    assert f"w000, w001, w002 and 497 more of topic people are past keep and were not removed: {DAMAGED}." in first
    assert f"w600 of topic people is past keep and was not removed: {OPEN}." in second
    assert found.windows_held == 501


def test_what_upkeep_removes(shell: Shell, topic: MadeTopic) -> None:
    seen(topic, GRACE + timedelta(days=1))
    listed = shell.run("upkeep", "people", "--dry-run")
    assert f"raw/people: keep 1 day: would remove {SOME}\n" in listed.stdout
    (planned,) = json.loads(shell.run("upkeep", "people", "--dry-run", "--json").stdout)["keep"]
    assert (planned["windows"], planned["waiting"], planned["first"], planned["last"]) == (0, WINDOWS, FIRST, LAST)
    assert rows(topic) == WINDOWS * EACH
    done = shell.run("upkeep", "people", "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["keep"]
    assert (found["topic"], found["windows"], found["rows"], found["held"]) == ("people", WINDOWS, WINDOWS * EACH, {})
    assert rows(topic) == 0
    known = last_expiry.recall(topic.ledger, topic.topic)
    assert known is not None
    assert known.to_json() == {key: value for key, value in found.items() if key != "topic"}


def test_a_window_that_stays_is_named_with_its_remedy(shell: Shell, topic: MadeTopic) -> None:
    """Following the remedy lets the next upkeep remove it."""
    seen(topic, GRACE + timedelta(days=1))
    window = topic.ledger.windows(topic.topic)[1]
    topic.lake.table(topic.declaration.raw_table).delta().delete(f"window = '{window.key}' AND kafka_offset % 2 = 0")
    done = shell.run("upkeep", "people")
    assert done.exit_code == 1
    assert f"{window.key} of topic people is past keep and was not removed: {DAMAGED}." in done.stderr
    assert f"`platform-assets load raw/people {window.key}`" in done.stderr
    known = last_expiry.recall(topic.ledger, topic.topic)
    assert known is not None
    assert last_expiry.standing(topic.ledger, topic.topic, known) == {window.key: DAMAGED}
    assert topic.load(window).outcome == "healed"
    again = shell.run("upkeep", "people")
    assert again.exit_code == 0, again.output
    assert rows(topic) == 0
    assert last_expiry.standing(topic.ledger, topic.topic, known) == {}


def test_a_parked_window_is_a_warning_until_it_is_unparked_and_decoded(layout: str, tmp_path: Path) -> None:
    """An operator has decided that it stays, so upkeep does not fail because of it."""
    topic = MadeTopic(tmp_path / "lake")
    topic.declaration = replace(topic.declaration, keep=Keep(1))
    first, second = topic.seal([{0: [(b"k", b"v-%d" % w)]} for w in range(2)])
    topic.load(first)
    topic.load(second)
    topic.decoder().decode(first.key)
    parking.park(topic.declaration.decoded_table, [second.key], AUTHOR, topic.ledger)
    newest = topic.ledger.newest_cut(topic.topic)
    assert newest is not None
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    assert topic.ledger.record_cuts([replace(newest, edge=now)], newest.edge)
    seen(topic, GRACE + timedelta(days=1))
    ((_, done),) = keeping.of_topics([topic.declaration], topic.ledger, datetime.now(UTC))
    assert isinstance(done, last_expiry.LastExpiry)
    assert (done.windows, done.held) == (1, {second.key: PARKED})
    assert list(expiry_text.problems(topic.topic, done.held, done.more)) == []
    (text,) = expiry_text.warnings(topic.topic, done.held, done.more)
    table = status.collect([topic.declaration], topic.ledger, None, None, (), datetime.now(UTC)).tables[0]
    assert text in (table.warning or "")
    assert not any("keep" in problem for problem in table.problems)
    assert f"`platform-assets unpark decoded/people {second.key}`" in text
    assert f"`platform-assets load decoded/people {second.key}`" in text
    parking.unpark(topic.declaration.decoded_table, [second.key], AUTHOR, topic.ledger)
    assert last_expiry.standing(topic.ledger, topic.topic, done) == {second.key: PARKED}
    topic.decoder().decode(second.key)
    ((_, done),) = keeping.of_topics([topic.declaration], topic.ledger, datetime.now(UTC))
    assert isinstance(done, last_expiry.LastExpiry)
    assert (done.windows, done.held) == (1, {})


@pytest.mark.parametrize("reason", [PARKED, DAMAGED])
def test_the_job_and_the_command_fail_only_because_of_windows_that_nobody_set_aside(
    shell: Shell, topic: MadeTopic, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC).isoformat()
    held = last_expiry.LastExpiry(now, "1 day", now, is_due=True, windows_held=1, held={FIRST: reason})
    monkeypatch.setattr(keeping, "of_topic", lambda *_, **__: held)
    monkeypatch.setattr(upkeep, "merge_engine", lambda *_: MergeEngine())
    done = shell.run("upkeep", "people")
    assert done.exit_code == (0 if reason == PARKED else 1)
    assert f"{FIRST} of topic people is past keep and was not removed: {reason}." in done.stderr
    found = upkeep_job(topic).execute_in_process(raise_on_error=False)
    assert found.success == (reason == PARKED)


def test_a_clock_that_is_ahead_removes_nothing_and_is_named(
    shell: Shell, topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(topic, GRACE + timedelta(days=1))
    monkeypatch.setattr(type(topic.lake.root), "time", lambda self: datetime.now(UTC) - timedelta(days=3650))
    done = shell.run("upkeep", "people")
    assert done.exit_code == 1
    assert "ahead of the clock of the lake's store" in done.stderr
    assert rows(topic) == WINDOWS * EACH


def test_the_job_removes_too(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(topic, GRACE + timedelta(days=1))
    monkeypatch.setattr(upkeep, "merge_engine", lambda *_: MergeEngine())
    assert upkeep_job(topic).execute_in_process().success
    assert rows(topic) == 0


def upkeep_job(topic: MadeTopic) -> dg.JobDefinition:
    declared = {topic.topic: replace(topic.declaration, keep=Keep(1))}
    resources = {"lake": LakeResource(root=str(topic.root)), "spark": SparkResource(remote="sc://127.0.0.1:9")}
    built = upkeep.definitions(lambda: declared)
    return dg.Definitions.merge(built, dg.Definitions(resources=resources)).resolve_job_def("upkeep")


@pytest.mark.parametrize("given", ["400", '"4 d"', "0 days", "1 month", "true", "[1 day]"])
def test_other_values_are_refused_with_their_line(shell: Shell, given: str) -> None:
    file = shell.root / "defs" / "people" / "defs.yaml"
    file.write_text(file.read_text().replace("keep: 1 day", f"keep: {given}"))
    refused = shell.run("upkeep", "people", "--dry-run")
    assert refused.exit_code != 0
    assert "defs.yaml:" in refused.output
    assert "keep" in refused.output
