"""Many windows decoded by one job: the commits equal those of one decode per window, whatever happens to one of the
windows.

Runs in this process.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable

from platform_assets.checks import decoded as checks
from platform_assets.decoding.registry.cache import AVRO, Registered, UnknownId
from platform_assets.decoding.registry.client import RegistryClient
from platform_assets.decoding.registry.decoder import RegistryDecoder
from platform_assets.engines import batching
from platform_assets.engines.decoding.engine import Plan
from platform_assets.engines.decoding.work import Report
from platform_assets.engines.shared.job import JobLost
from platform_assets.errors import (
    ConcurrentLoadError,
    FilesLostError,
    LakeUnavailableError,
    NotLoadedError,
    PlatformError,
    RepairOffsetError,
    WorkerLostError,
)
from platform_assets.lake import delta_log, holdings
from platform_assets.ledger.entries import ERASED, Receipt
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets.model.expectations import Expectation
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.windows import key_of
from platform_assets.windows.decode import decoding_many
from platform_assets.windows.decode.decoding import DecodedWindow, WindowDecoder
from platform_assets.windows.decode.decoding_many import decode_many
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets_tests.support.decoded_topic import DecodedTopic, InProcessEngine, order, tables_without_spark
from testbed.samples import edge, log_entries

TABLES: Final = ("decoded", "dead_letters")
DECLARED: Final = DecodeDeclaration(
    FormatSpec("json", {"schema": "id BIGINT NOT NULL, amount DECIMAL(12, 2)"}),
    expect=(Expectation("once", "unique", ("id",)), Expectation("few", "range", ("id",), most=7)),
)
MORE: Final = replace(
    DECLARED,
    value=FormatSpec("json", {"schema": f"{DECLARED.value.options['schema']}, text STRING"}),
    repairs=(Repair("2026-01-01-00:00", 1, 1, '{"id": 5, "amount": 1}'),),
)
"""A declaration with an additional column, and a repair of one dead letter."""
VALUES: Final[tuple[Sequence[bytes | None], ...]] = (
    [order(1), order(2), None, b"broken"], [], [b"{", b"}"], [order(9), order(9)], [order(4)], [None]
)  # fmt: skip


class Died(BaseException):
    """An exception that stands for a killed process."""


class Jobs(InProcessEngine):
    """Records the windows of each job, and makes a job fail when it reports the window `poison`."""

    asked: list[list[str]] = []  # noqa: RUF012
    poison: str = ""

    def _reports(self, plan: Plan) -> Generator[Report, None, None]:
        Jobs.asked.append([share.window for share in plan.shares])
        for report in super()._reports(plan):
            if plan.shares[report.share].window == Jobs.poison:
                raise JobLost(WorkerLostError(plan.orders[0].topic, Jobs.poison, [], "it ran out of memory"))
            yield report


@pytest.fixture(autouse=True)
def jobs() -> list[list[str]]:
    """The windows of each job, one entry per share."""
    Jobs.asked, Jobs.poison = [], ""
    return Jobs.asked


@pytest.fixture
def topic(tmp_path: Path) -> DecodedTopic:
    """A topic with all kinds of windows in its raw table."""
    made = DecodedTopic(tmp_path / "lake", "orders", DECLARED)
    made.partitions = 2
    made.load(*VALUES)
    return made


def decoder(topic: DecodedTopic, before_step: Callable[[str], None] = lambda step: None) -> WindowDecoder:
    return WindowDecoder(
        topic.declaration, topic.ledger, Jobs(topic.lake, tables_without_spark), before_step=before_step
    )


def keys_of(topic: DecodedTopic) -> list[str]:
    return [window.key for window in topic.windows]


def many(topic: DecodedTopic, keys: Sequence[str] = ()) -> dict[str, DecodedWindow | PlatformError]:
    """Decode windows, all by default, with one call; return their outcomes."""
    wanted = list(keys or keys_of(topic))
    found = list(decode_many(decoder(topic), wanted))
    assert [key for key, _ in found] == wanted
    return dict(found)


def receipts(topic: DecodedTopic) -> dict[tuple[str, str], Receipt]:
    """Return receipts by table and window, without the fields that differ from load to load."""
    own = {"load_id": "", "files_digest": "", "seconds": 0.0, "proved_at": None, "table_id": "", "table_version": 0}
    return {
        (ref.name, key): replace(found, **own)  # type: ignore[arg-type]
        for ref in (topic.declaration.decoded_table, topic.declaration.dead_letter_table)
        for key, found in topic.ledger.receipts(ref).items()
    }


def commits(topic: DecodedTopic, table: str) -> list[dict[str, Any]]:
    """Return the metadata of load commits by window, without the fields that differ from load to load, and the added
    files."""
    found = []
    for entry in log_entries(topic.root / table / topic.topic):
        if "commitInfo" in entry and "userMetadata" in entry["commitInfo"]:
            found.append(json.loads(entry["commitInfo"]["userMetadata"]) | {"load_id": ""})
        if "add" in entry:
            add = entry["add"]
            statistics, name = json.loads(add["stats"]), add["path"].rpartition("/")[2]
            found.append(
                {"window": add["partitionValues"].get("window"), "stats": statistics, "name": name.partition("-")[0]}
            )
    return sorted(found, key=lambda e: (str(e.get("window")), json.dumps(e, sort_keys=True)))


def rows(topic: DecodedTopic, table: str) -> list[dict[str, Any]]:
    found = DeltaTable(topic.root / table / topic.topic).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["window"], row["kafka_partition"], row["kafka_offset"]))


def orphans(topic: DecodedTopic) -> list[str]:
    """Return the data files that no version of either table refers to."""
    found: list[str] = []
    for kind in TABLES:
        table = topic.root / kind / topic.topic
        log = "".join(path.read_text() for path in table.glob("_delta_log/*.json"))
        found += [path.name for path in table.rglob("*.parquet") if path.name not in log]
    return found


def check_conserved(topic: DecodedTopic) -> None:
    assert checks.conserved(checks.windows_of(topic.declaration, topic.ledger, None)).passed


def test_one_job_gives_what_window_by_window_gives(topic: DecodedTopic, tmp_path: Path, jobs: list[list[str]]) -> None:
    """Receipts with their digests and figures, metadata, files and rows are the same, also after a change of the
    declaration."""
    shutil.copytree(topic.root, tmp_path / "alone")
    alone = DecodedTopic(tmp_path / "alone", "orders", DECLARED)
    alone.windows = topic.windows
    for declared in (DECLARED, MORE):
        topic.declared = alone.declared = declared
        jobs.clear()
        found = many(topic)
        assert len(jobs) == 1
        one_by_one = [alone.decoder.decode(key) for key in keys_of(alone)]
        assert not [each for each in found.values() if isinstance(each, PlatformError)]
        assert [w.outcome for w in found.values() if isinstance(w, DecodedWindow)] == [w.outcome for w in one_by_one]
        assert receipts(topic) == receipts(alone)
        for table in TABLES:
            assert commits(topic, table) == commits(alone, table)
            assert rows(topic, table) == rows(alone, table)
        assert orphans(topic) == []
        check_conserved(topic)


def test_batches_are_bounded_by_windows_and_rows(
    topic: DecodedTopic, jobs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(topic)
    monkeypatch.setattr(batching, "_BATCH_ROWS", 6)
    many(topic)
    assert [sorted(set(job)) for job in jobs] == [[keys[0], keys[2]], [keys[3], keys[4], keys[5]]]


def test_a_window_that_fails_is_named_and_the_others_are_finished(topic: DecodedTopic, jobs: list[list[str]]) -> None:
    keys, lacking = keys_of(topic), key_of(edge(30))
    folder = topic.ledger.lake.table(topic.declaration.raw_table)
    (lost,) = holdings.files_of(folder, keys[3]).paths
    (folder.path / unquote(lost)).unlink()
    topic.declared = replace(DECLARED, repairs=(Repair(keys[4], 0, 999, "{}"),))
    found = many(topic, [*keys, lacking, "no key"])
    failed = {key: type(each) for key, each in found.items() if isinstance(each, PlatformError)}
    assert failed.pop("no key").__name__ == "WindowKeyError"
    assert failed == {keys[3]: FilesLostError, keys[4]: RepairOffsetError, lacking: NotLoadedError}
    assert set(topic.ledger.receipts(topic.declaration.decoded_table)) == {keys[0], keys[1], keys[2], keys[5]}
    assert set(jobs[0]) == {keys[0], keys[2], keys[5]}
    assert orphans(topic) == []


def test_a_job_that_dies_leaves_its_windows_to_jobs_of_their_own_which_show_whose_fault_it_is(
    topic: DecodedTopic, jobs: list[list[str]]
) -> None:
    keys = keys_of(topic)
    Jobs.poison = keys[3]
    found = many(topic)
    failed = {key: each for key, each in found.items() if isinstance(each, PlatformError)}
    assert list(failed) == [keys[3]]
    assert isinstance(failed[keys[3]], WorkerLostError)
    assert [sorted(set(job)) for job in jobs[1:]] == [[keys[3]], [keys[4]], [keys[5]]]
    assert orphans(topic) == []
    Jobs.poison = ""
    assert isinstance(many(topic, [keys[3]])[keys[3]], DecodedWindow)
    check_conserved(topic)


@pytest.mark.parametrize("step", ["dead letters", "decoded", "receipts"])
def test_a_run_that_is_killed_leaves_whole_windows_which_the_next_one_finishes(topic: DecodedTopic, step: str) -> None:
    keys, seen = keys_of(topic), list[str]()

    def die(now: str) -> None:
        seen.append(now)
        if now == step and seen.count("dead letters") >= 3:
            raise Died

    dying = decoder(topic, die)
    with pytest.raises(Died):
        list(decode_many(dying, keys))
    left = {table: rows(topic, table) for table in TABLES}
    found = many(topic)
    assert not [each for each in found.values() if isinstance(each, PlatformError)]
    assert {r.window.key for r in topic.ledger.receipts(topic.declaration.decoded_table).values()} == set(keys)
    check_conserved(topic)
    # Each window was in a table with all of its rows, or not at all.
    for table in TABLES:
        windows = {row["window"] for row in left[table]}
        assert left[table] == [row for row in rows(topic, table) if row["window"] in windows]
        assert keys[0] in windows


def test_a_caller_that_stops_leaves_no_file_and_what_is_committed_is_recorded(topic: DecodedTopic) -> None:
    keys = keys_of(topic)
    for table in (topic.declaration.decoded_table, topic.declaration.dead_letter_table):
        assert not topic.ledger.receipts(table)
    running = decode_many(decoder(topic), [*keys[:3], key_of(edge(30)), *keys[3:]])
    # The window that is not in the raw table fails once those before it are recorded.
    assert [next(running)[0] for _ in range(4)] == [*keys[:3], key_of(edge(30))]
    running.close()  # type: ignore[attr-defined]
    assert set(topic.ledger.receipts(topic.declaration.decoded_table)) == set(keys[:3])
    assert orphans(topic) == []
    check_conserved_of = checks.windows_of(topic.declaration, topic.ledger, keys[:3])
    assert checks.conserved(check_conserved_of).passed


def test_what_another_declaration_has_decoded_meanwhile_stays(topic: DecodedTopic) -> None:
    """Nothing shows which declaration is newer, so a window decoded with the other declaration fails. A window that was
    decoded with the same declaration is compared."""
    keys = keys_of(topic)
    other = DecodedTopic(topic.root, "orders", replace(DECLARED, repairs=(Repair(keys[3], 0, 3, '{"id": 1}'),)))
    other.windows = topic.windows
    done = False

    def rivals(step: str) -> None:
        nonlocal done
        if step == "dead letters" and not done:
            done = True
            other.decode(keys[3])
            topic.decode(keys[4])

    found = dict(decode_many(decoder(topic, rivals), keys))
    failed = {key: each for key, each in found.items() if isinstance(each, PlatformError)}
    assert list(failed) == [keys[3]]
    assert isinstance(failed[keys[3]], ConcurrentLoadError)
    same = found[keys[4]]
    assert isinstance(same, DecodedWindow)
    assert same.outcome == "unchanged"
    assert orphans(topic) == []
    check_conserved(other)


def test_receipts_are_recorded_together_and_an_error_is_that_of_all_of_them(
    topic: DecodedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, appends = keys_of(topic), list[int]()
    record = type(topic.ledger).record_receipts

    def recorded(self: Any, found: Sequence[Receipt]) -> None:
        appends.append(len(found))
        if len(appends) == 2:
            raise LakeUnavailableError("_ledger/commits", "it is gone")
        record(self, found)

    monkeypatch.setattr(decoding_many, "RECEIPTS_AT_ONCE", 3)
    monkeypatch.setattr(type(topic.ledger), "record_receipts", recorded)
    found = many(topic)
    assert appends == [6, 6]
    assert [key for key, each in found.items() if isinstance(each, PlatformError)] == keys[3:]
    assert set(topic.ledger.receipts(topic.declaration.decoded_table)) == set(keys[:3])
    assert not [each for each in many(topic).values() if isinstance(each, PlatformError)]
    check_conserved(topic)


def test_ids_that_a_registry_lacks_in_one_window_do_not_count_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder looks up only a limited number of ids."""
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]})

    def answer(self: RegistryClient, number: int, kind: str = AVRO) -> Registered:
        if number == 7:
            return Registered(AVRO, schema)
        raise UnknownId(number)

    def value(number: int) -> bytes:
        return b"\0" + number.to_bytes(4, "big") + b"\x02"

    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(RegistryClient, "schema", answer)
    monkeypatch.setattr(sys.modules[RegistryDecoder.__module__], "MOST_UNKNOWN", 3)
    found = {}
    for name in ("together", "alone"):
        declared = DecodeDeclaration(FormatSpec("avro", {"schema": schema, "registry": True}))
        topic = DecodedTopic(tmp_path / name, "orders", declared)
        keys = topic.load(
            [value(number) for number in (11, 12, 13)], [value(7)] * 5, [value(number) for number in (14, 15)]
        )
        if name == "together":
            many(topic, keys)
        else:
            for key in keys:
                decoder(topic).decode(key)
        found[name] = [(row["window"], row["reason"], row["detail"]) for row in rows(topic, "dead_letters")]
        assert len(rows(topic, "decoded")) == 5
    assert found["together"] == found["alone"]
    assert len(found["alone"]) == 5


def test_an_erasure_during_a_batch_finds_the_receipts_of_what_was_decoded_again(topic: DecodedTopic) -> None:
    keys = keys_of(topic)
    many(topic)
    topic.declared = MORE
    steps = []

    def erase(step: str) -> None:
        steps.append(step)
        if steps.count("dead letters") == 3 and step == "dead letters":
            erased = {0: (OffsetRange(0, 1),)}
            topic.ledger.record_acceptances([(topic.windows[0], erased)], "test", ERASED)
            eraser = WindowEraser(topic.declaration, topic.ledger)
            for table in eraser.tables:
                [*eraser.erase(table, {keys[0]: erased}, {keys[0]: topic.windows[0].window})]

    outcomes = dict(decode_many(decoder(topic, erase), keys))
    assert steps.count("dead letters") > 3
    assert {type(each) for each in outcomes.values()} == {DecodedWindow}
    left = [row for row in rows(topic, "decoded") if row["window"] == keys[0]]
    decoded = topic.ledger.receipts(topic.declaration.decoded_table)[keys[0]]
    letters = topic.ledger.receipts(topic.declaration.dead_letter_table)[keys[0]]
    assert decoded.rows + letters.rows == 3
    assert decoded.rows == len(left) > 0


def test_commits_of_many_windows_read_each_commit_of_the_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds after any number of earlier loads of the windows, whose folders are looked up in the log."""
    topic, windows = DecodedTopic(tmp_path, "orders"), 12
    topic.load(*[[order(n)] for n in range(windows)])
    schema, read, commit = "id BIGINT NOT NULL, amount DECIMAL(12, 2)", list[int](), delta_log.commit

    def counted(folder: Any, version: int) -> Any:
        if "_ledger" not in str(folder):
            read.append(version)
        return commit(folder, version)

    monkeypatch.setattr(delta_log, "commit", counted)
    for column in (", a INT", ", b INT", ", c INT"):
        schema += column
        topic.declared = DecodeDeclaration(FormatSpec("json", {"schema": schema}))
        read.clear()
        assert not [each for each in many(topic).values() if isinstance(each, PlatformError)]
    assert len(read) < 8 * windows
