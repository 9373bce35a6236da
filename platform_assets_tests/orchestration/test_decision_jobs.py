"""Decisions as Dagster runs: a dry run changes nothing, and a real run has the same effect as the command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn

import dagster as dg
import pytest

from platform_assets.errors import ConfigurationError, TopicRecreatedError
from platform_assets.lake.location import Folder
from platform_assets.ledger import decisions
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.orchestration import decision_jobs
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets_tests.conftest import Broker, TopicMaker
from platform_assets_tests.support.runs_of import minutes_ago
from platform_assets_tests.support.streams import create_again, delete_before
from testbed.loads import TopicLake, numbered

pytestmark = pytest.mark.broker


@pytest.fixture
def lk(broker: Broker, topic: TopicMaker, tmp_path: Path) -> TopicLake:
    return TopicLake(broker.bootstrap, topic(partitions=1), tmp_path / "lake", _no_spark, start=minutes_ago(12))


def _no_spark() -> NoReturn:
    raise AssertionError("a decision asked for Spark")


def run(lk: TopicLake, job: str, **config: Any) -> tuple[bool, str]:
    """Run the job for this topic; return True if it succeeded, and either its output or the error."""

    def declared(topic: str) -> TopicDeclaration:
        if topic != lk.topic:
            raise ConfigurationError(f"{topic!r} is not a table of this project")
        return lk.declaration

    resources = {
        "kafka": KafkaResource(bootstrap_servers=lk.bootstrap),
        "lake": LakeResource(root=str(lk.root)),
        "spark": SparkResource(remote="sc://localhost:1"),
    }
    definitions = dg.Definitions.merge(decision_jobs.definitions(declared), dg.Definitions(resources=resources))
    found = definitions.resolve_job_def(job)
    (op,) = found.nodes
    wanted = {"ops": {op.name: {"config": {"topic": lk.topic, "reason": "decided", **config}}}}
    result = found.execute_in_process(run_config=wanted, raise_on_error=False)
    if not result.success:
        (event,) = result.get_step_failure_events()
        return False, str(event.step_failure_data.user_failure_data)
    (output,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_OUTPUT]
    return True, str(output.step_output_data.metadata["said"].value)


def test_a_topic_made_again_is_seen_first_and_then_accepted(lk: TopicLake, broker: Broker) -> None:
    key = lk.window_of(numbered(6, stem="old"))
    create_again(broker, lk.topic)
    lk.send(numbered(4, stem="new"))
    with pytest.raises(TopicRecreatedError):
        lk.close_window()
    before = lk.snapshot()

    done, said = run(lk, "accept_generation")
    assert done, said
    assert f"window {key} was never loaded: 6 offsets: partition 0 offsets [0, 6)" in said
    assert "dry run: nothing was changed" in said
    assert lk.snapshot() == before

    done, said = run(lk, "accept_generation", dry_run=False, by="ann")
    assert done, said
    assert "accepted" in said
    (decision,) = decisions.decisions(lk.ledger.lake, lk.topic)
    assert (decision.kind, decision.reason) == ("generation", "decided")
    assert re.fullmatch(r"ann \[claimed; Dagster run [0-9a-f-]{36}\]", decision.decided_by)
    assert "nothing was accepted" in run(lk, "accept_generation", dry_run=False)[1]


def test_a_loss_is_accepted_of_the_offsets_that_are_gone(lk: TopicLake) -> None:
    key = lk.window_of(numbered(6))
    delete_before(lk.bootstrap, lk.topic, 0, 4)

    for dry_run in (True, False):
        done, said = run(lk, "accept_loss", window=key, dry_run=dry_run)
        assert done, said
        assert "4 offsets, below the log start: partition 0 offsets [0, 4)" in said
        assert bool(decisions.decisions(lk.ledger.lake, lk.topic)) is not dry_run
    (decision,) = decisions.decisions(lk.ledger.lake, lk.topic)
    assert decision.decided_by.startswith("Dagster run ")
    sealed = lk.ledger.window(lk.topic, key)
    assert sealed is not None
    assert sealed.ranges == TopicRanges({0: OffsetRange(0, 6)})


def test_records_are_erased_by_offset_before_their_window_is_loaded(lk: TopicLake) -> None:
    key = lk.window_of(numbered(6))
    for dry_run in (True, False):
        done, said = run(lk, "erase_records", offsets=["0:2-4"], dry_run=dry_run)
        assert done, said
        assert f"{key}: 2 offsets that are not loaded yet: partition 0 offsets [2, 4)" in said
        assert bool(decisions.decisions(lk.ledger.lake, lk.topic)) is not dry_run
    assert erased_of(lk.ledger, lk.topic) == {key: {0: (OffsetRange(2, 4),)}}
    assert not decisions.unfinished_erasures(lk.ledger.lake, lk.topic)


def test_past_versions_are_answered_for_in_the_config_that_the_error_names(
    lk: TopicLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lk.window_of(numbered(6))
    # A local lake never keeps past versions, but a bucket may.
    monkeypatch.setattr(Folder, "keeps_versions", lambda folder: True)
    done, said = run(lk, "erase_records", offsets=["0:2-4"], dry_run=False)
    assert not done
    assert "`past_versions_expire: true`" in said
    done, said = run(lk, "erase_records", offsets=["0:2-4"], past_versions_expire=True, dry_run=False)
    assert done, said
    assert "the bucket keeps the deleted files as past versions" in said


def test_windows_are_parked_and_taken_up_again(lk: TopicLake) -> None:
    key = lk.window_of(numbered(6))
    done, said = run(lk, "park_windows", windows=[key])
    assert done, said
    assert set(decisions.parking(lk.ledger.lake, lk.declaration.raw_table).parked) == {key}
    done, said = run(lk, "unpark_windows", windows=[key])
    assert done, said
    assert not decisions.parking(lk.ledger.lake, lk.declaration.raw_table).parked


def test_the_same_cluster_has_nothing_to_accept(lk: TopicLake) -> None:
    lk.window_of(numbered(1))
    done, said = run(lk, "accept_cluster", dry_run=False)
    assert (done, "nothing was accepted" in said) == (True, True)


@pytest.mark.parametrize(
    ("job", "config", "why"),
    [
        ("accept_loss", {"window": "yesterday"}, "YYYY-MM-DD-HH:MM"),
        ("accept_loss", {"window": "2020-01-01-00:00"}, "no sealed window with that key"),
        ("erase_records", {"offsets": ["0:7"]}, "PARTITION:START-END"),
        ("erase_records", {"offsets": ["0:0-9"], "dry_run": False}, "in no sealed window"),
        ("park_windows", {"windows": ["2020-01-01-00:00"]}, "no sealed window with that key"),
        ("accept_generation", {"reason": " "}, "needs a reason"),
        ("accept_generation", {"topic": "another"}, "'another' is not a table of this project"),
    ],
)
def test_what_is_refused_fails_the_run_with_the_reason(
    lk: TopicLake, job: str, config: dict[str, Any], why: str
) -> None:
    lk.window_of(numbered(1))
    done, said = run(lk, job, **config)
    assert (done, why in said) == (False, True), said
    assert not decisions.decisions(lk.ledger.lake, lk.topic)
