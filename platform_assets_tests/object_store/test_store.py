"""Basics of a lake in an object store, without brokers and Spark: files, commits, lost answers, and errors with
remedies."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import S3FileSystem

from platform_assets.decoding.registry.cache import Known, Registered, SchemaCache, forget
from platform_assets.engines.shared.files import not_written
from platform_assets.errors import (
    ConcurrentLoadError,
    ConfigurationError,
    LakeNotWritableError,
    LakeUnavailableError,
    PlatformError,
    Retryable,
    Terminal,
)
from platform_assets.lake import holdings, object_files, raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.data_files import NewFile, write_rows
from platform_assets.lake.failures import BucketMissingError, LakeNotReadableError
from platform_assets.lake.files import files_below
from platform_assets.lake.leftovers import FOREVER
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Lake, load_folder
from platform_assets.lake.object_files import PART_BYTES
from platform_assets.lake.vacuum import vacuum
from platform_assets.ledger import newest_cuts
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.services.home import CHECKOUT
from platform_assets.services.ports import LOOPBACK
from platform_assets_tests.object_store.conftest import SECRET
from platform_assets_tests.support.lost_answers import losing_answers
from testbed import samples
from testbed.object_store import BUCKET, KEY_ID, ObjectStore
from testbed.samples import edge, hourly

TOPIC = "clicks"
TABLE = TableRef.raw(TOPIC)
ROWS = 10
GOOD = {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": "https://store.example"}


@pytest.fixture
def lake(store: ObjectStore) -> Lake:
    """Return a new lake whose topic has windows of ten offsets. No window is loaded."""
    made = Lake.at(store.root(f"lake-{uuid.uuid4().hex[:12]}"))
    ledger = Ledger(made)
    ledger.create()
    assert ledger.record_cuts(hourly(TOPIC, [{0: n * ROWS} for n in range(9)]), None)
    raw_table.create(made.table(TABLE), TOPIC)
    return made


def windows(lake: Lake) -> list[SealedWindow]:
    return Ledger(lake).windows(TOPIC)


def written(lake: Lake, window: SealedWindow, load_id: str) -> tuple[LoadMetadata, tuple[NewFile, ...]]:
    """Write the rows of a window to a new file; return the file and the metadata for its commit."""
    (offsets,) = (range(r.start, r.end) for _, r in window.ranges.items())
    folder, path = lake.table(TABLE), f"{load_folder(window.key, load_id)}/0.parquet"
    write_rows(folder, path, samples.rows(window.key, {0: offsets}).drop_columns(["window"]), window.key)
    size = folder.size(path)
    assert size is not None
    metadata = LoadMetadata(TOPIC, window.topic_id, 1, window.window, window.ranges, load_id, "run")
    bounds = {"window": window.key}
    return metadata, (NewFile(path, size, ROWS, {"minValues": bounds, "maxValues": bounds}),)


def held(lake: Lake) -> dict[str, list[int]]:
    """Return the offsets that the table has for each window."""
    found: dict[str, list[int]] = {}
    for row in lake.table(TABLE).delta().to_pyarrow_table(columns=["window", "kafka_offset"]).to_pylist():
        found.setdefault(row["window"], []).append(row["kafka_offset"])
    return {key: sorted(offsets) for key, offsets in found.items()}


def test_files_of_a_bucket_are_what_files_of_a_folder_are(store: ObjectStore, tmp_path: Path) -> None:
    """All operations return the same results, and file names in a log equal the names of objects, character by
    character."""
    name, answers = "window=2026-01-01-00%3A00/a b/0.parquet", list[list[Any]]()
    for root in (Lake.at(store.root(f"files-{uuid.uuid4().hex[:8]}")).root, Lake.at(tmp_path).root):
        table = pa.table({"n": list(range(100_000)), "text": ["x" * 20] * 100_000})
        with root.content.create(name) as sink:
            pq.write_table(table, sink)
        root.write("note", b"first")
        first = root.stamp("note")
        root.write("note", b"second")
        answers.append([first == root.stamp("note"), root.stamp("note") == root.stamp("note"), root.stamp("nothing")])
        root.copy(name, "window=2026-01-01-00%3A00/a b/copy.parquet")
        with root.open(name) as opened:
            assert pq.read_table(opened, columns=["n"]).num_rows == 100_000
        before = root.time()
        answers[-1] += (
            [
                root.read("note"), root.read("nothing"), root.size("note"), root.has("nothing"), sorted(root.files()),
                root.folders(), root.files("nothing"), (root / name.rpartition("/")[0]).parquet_files().count_rows(),
                root.folders("window=2026-01-01-00%3A00"), root.written_before(FOREVER, ""), root.size(name),
                root.written_before(before.replace(year=2000), ""),
            ]
        )  # fmt: skip
        root.erase([name, "nothing"])
        (root / "window=2026-01-01-00%3A00").delete()
        answers[-1] += [root.written_before(FOREVER, "")]
        if root.is_in_store:
            assert store.keys(root.name) == [f"{root.name}/note"]
    assert answers[0] == answers[1]
    assert answers[0][-1] == ["note"]


def test_of_two_first_loads_at_once_one_wins_and_the_other_is_refused(lake: Lake) -> None:
    for number, window in enumerate(windows(lake)):
        opened = [(name, WindowCommit(lake, TABLE)) for name in ("one", "two")]
        made = {name: written(lake, window, f"{name}-{number}") for name, _ in opened}

        def load(
            rival: tuple[str, WindowCommit], made: dict[str, tuple[LoadMetadata, tuple[NewFile, ...]]] = made
        ) -> bool:
            try:
                rival[1].replace(*made[rival[0]])
            except ConcurrentLoadError:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(load, opened)) == [False, True]
    assert held(lake) == {w.key: list(range(n * ROWS, (n + 1) * ROWS)) for n, w in enumerate(windows(lake))}


def test_a_commit_whose_answer_was_lost_is_no_conflict_with_itself(
    lake: Lake, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats the request, and the store refuses the repetition because it accepted the first request."""
    ledger = Ledger(lake)
    with losing_answers(store.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.environment(proxy.port)["AWS_ENDPOINT_URL"])
        # Each process keeps the store open; here it was opened before there was a proxy.
        newest_cuts.of.cache_clear()
        for number, window in enumerate(windows(lake)[:3]):
            made = written(lake, window, f"load-{number}")
            opened = WindowCommit(lake, TABLE)
            proxy.once(f"{number + 1:020}.json")
            commit = opened.replace(*made)
            assert (commit.version, commit.metadata.load_id) == (number + 1, f"load-{number}")
            proxy.once(".json")
            ledger.record_receipts([samples.receipt(window, version=number + 1)])
            # The store that recorded the cut is also the one read again, so it continues from its own cut.
            proxy.once(".json")
            ledger.record_cuts(hourly(TOPIC, [{0: n * ROWS} for n in range(12)])[9 + number :][:1], edge(8 + number))
        assert proxy.lost == 9
        assert lake.table(TABLE).delta().version() == 3
        assert held(lake) == {w.key: list(range(n * ROWS, (n + 1) * ROWS)) for n, w in enumerate(windows(lake)[:3])}
        assert len(ledger.commit_rows(TABLE)) == 3
        assert lake.commits.delta().version() == 3, "a receipt is committed once"
        assert [cut.cut.at(0) for cut in ledger.cuts(TOPIC)] == [n * ROWS for n in range(12)]


def test_a_table_whose_creation_has_lost_its_answer_is_there_once(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Lake.at(store.root(f"lake-{uuid.uuid4().hex[:12]}"))
    with losing_answers(store.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.environment(proxy.port)["AWS_ENDPOINT_URL"])
        proxy.once(f"{0:020}.json")
        raw_table.create(made.table(TABLE), TOPIC)
        assert proxy.lost == 1
        assert made.table(TABLE).delta().version() == 0


def test_a_store_that_does_not_answer_is_named_and_may_be_asked_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = windows(lake)[0]
    made, opened = written(lake, window, "load"), WindowCommit(lake, TABLE)
    with monkeypatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        object_files._bucket.cache_clear()
        for ask in (lambda: lake.table(TABLE).delta(), lambda: lake.table(TABLE).read("x"), lambda: windows(lake)):
            with pytest.raises(LakeUnavailableError, match=r"does not answer at s3://.*AWS_ENDPOINT_URL") as caught:
                ask()
            assert isinstance(caught.value, Retryable)
            assert SECRET not in str(caught.value)
    object_files._bucket.cache_clear()
    assert opened.replace(*made).version == 1


WRITES_FOR_EVER = """
import os, sys, time
from platform_assets.lake.location import Folder
sink = Folder(sys.argv[1]).content.create("large.parquet")
for _ in range(5):
    sink.write(os.urandom(5 << 20))
print("sent", flush=True)
time.sleep(3600)
"""


def test_directory_markers_are_no_files(store: ObjectStore, lake: Lake) -> None:
    """Spark's s3a leaves such markers when a job is killed, and store consoles create them as folders."""
    folder, (window, *_) = lake.table(TABLE), windows(lake)
    metadata, files = written(lake, window, "load")
    WindowCommit(lake, TABLE).replace(metadata, files)
    before, stamps = folder.written_before(FOREVER, ""), folder.stamps()
    dead = load_folder(window.key, "dead")
    markers = S3FileSystem(
        access_key=KEY_ID,
        secret_key=SECRET,
        region="us-east-1",
        scheme="http",
        endpoint_override=f"{LOOPBACK}:{store.port}",
    )
    markers.create_dir(f"{folder.uri.removeprefix('s3://')}/{dead}/_temporary/0", recursive=True)
    folder.write(f"{dead}/empty", b"")
    paths = [path for path in (store.bucket / folder.uri.removeprefix(f"s3://{BUCKET}/")).rglob("*") if path.is_dir()]
    assert len([path for path in paths if "dead" in path.parts]) == 3
    for path in paths:
        os.utime(path, (0, 0))
    assert folder.written_before(FOREVER, "") == sorted([*before, f"{dead}/empty"])
    assert folder.stamps().keys() == {*stamps, f"{dead}/empty"}
    assert folder.files(dead) == ["empty"]
    assert not vacuum(TABLE, folder, dry_run=True).files
    assert not vacuum(TABLE, folder).files
    folder.erase([f"{dead}/empty"])
    assert not WindowCommit(lake, TABLE).has_old_files(window.key, holdings.files_of(folder, window.key))


def test_a_file_whose_writer_was_killed_is_no_file(lake: Lake) -> None:
    """The store has received parts of the file. They are harmless, and the store's lifecycle rules remove them."""
    folder = lake.table(TABLE)
    command = [sys.executable, "-c", WRITES_FOR_EVER, folder.uri]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "sent\n"
        finally:
            process.kill()
    assert folder.files() == []
    assert [name for name in folder.written_before(FOREVER, "") if not name.startswith("_delta_log/")] == []
    assert not vacuum(TABLE, folder).files


@pytest.mark.parametrize("size", [100, PART_BYTES + 1], ids=["in one request", "in parts"])
@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1", LakeUnavailableError),
        ("AWS_SECRET_ACCESS_KEY", f"not-{SECRET}", LakeNotWritableError),
    ],
)
def test_a_file_that_a_task_could_not_write_is_the_stores_fault_and_not_the_windows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, size: int, variable: str, value: str, named: type[PlatformError]
) -> None:
    """Transient failures are retried.

    In earlier versions, the load of a small window failed permanently if the store refused the load's only request.
    """
    folder = lake.table(TABLE)

    def write() -> None:
        with folder.content.create("small.parquet") as sink:
            sink.write(b"x" * size)

    with monkeypatch.context() as patched:
        patched.setenv(variable, value)
        object_files._bucket.cache_clear()
        with pytest.raises(OSError, match="the store") as caught:
            write()
        assert type(not_written(caught.value, folder.uri)) is named
        assert caught.value.filename == f"{folder.uri}/small.parquet"
        assert SECRET not in str(caught.value)
    object_files._bucket.cache_clear()
    write()
    assert folder.read("small.parquet") == b"x" * size


def test_schemas_of_a_registry_are_kept_beside_the_ledger(
    lake: Lake, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, schema = files_below(lake.schemas.uri), Registered("JSON", "{}", {"a": "b"})
    cache = SchemaCache(files, "0" * 16, "http://registry")
    assert cache.read(3) is None
    cache.write(3, schema)
    assert cache.read(3) == schema
    kept = f"{lake.root.name}/_ledger/schemas/{'0' * 16}"
    assert store.keys(f"{lake.root.name}/_ledger/schemas") == [f"{kept}/3.json", f"{kept}/registry.json"]
    other = SchemaCache(files, "1" * 16, "http://other")
    assert other.elsewhere(3) == Known(schema, "http://registry")
    assert forget(files, [3]) == [f"JSON schema 3, fingerprint {schema.fingerprint}, from http://registry"]
    assert (cache.read(3), other.elsewhere(3)) == (None, None)
    cache.write(3, schema)
    with monkeypatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        object_files._bucket.cache_clear()
        for ask in (partial(cache.read, 3), partial(cache.write, 3, schema)):
            with pytest.raises(LakeUnavailableError, match=r"does not answer at s3://.*AWS_ENDPOINT_URL"):
                ask()
    object_files._bucket.cache_clear()


@pytest.mark.long
@pytest.mark.parametrize("variable", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
def test_wrong_credentials_are_named_with_what_to_correct(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, f"not-{SECRET}")
    object_files._bucket.cache_clear()
    for ask in (lambda: lake.table(TABLE).delta(), lambda: lake.table(TABLE).read("x")):
        with pytest.raises(LakeNotReadableError, match=r"at s3://.*403 Forbidden.*AWS_SECRET_ACCESS_KEY") as caught:
            ask()
        assert isinstance(caught.value, Terminal)
        assert SECRET not in str(caught.value)
    with pytest.raises(LakeNotWritableError, match=r"403 Forbidden.*AWS_SECRET_ACCESS_KEY"):
        lake.root.write("x", b"")
    object_files._bucket.cache_clear()


@pytest.mark.parametrize(
    ("root", "environment", "named"),
    [
        ("s3://lakes", GOOD, "not s3://bucket/prefix"),
        ("s3://lakes/", GOOD, "not s3://bucket/prefix"),
        ("s3://lakes/a b", GOOD, "not s3://bucket/prefix"),
        ("s3://lakes/a/../b", GOOD, "not s3://bucket/prefix"),
        ("s3://key:word@lakes/a", GOOD, "not s3://bucket/prefix"),
        ("s3://lakes/a", {}, "AWS_REGION"),
        ("s3://lakes/a", {**GOOD, "AWS_ENDPOINT_URL": "http://store.example"}, "AWS_ALLOW_HTTP"),
        ("s3://lakes/a", {**GOOD, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, "AWS_S3_ALLOW_UNSAFE_RENAME"),
        ("s3://lakes/a", {**GOOD, "AWS_CONDITIONAL_PUT": "disabled"}, "AWS_CONDITIONAL_PUT"),
        ("s3://lakes/a", {**GOOD, "AWS_S3_LOCKING_PROVIDER": "dynamodb"}, "AWS_S3_LOCKING_PROVIDER"),
    ],
)
def test_a_store_that_could_not_be_relied_on_is_refused_at_once(
    root: str, environment: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        object_files.checked(root, environment)


def test_a_root_is_taken_with_and_without_a_slash_at_its_end() -> None:
    for root in ("s3://lakes/a/b", "s3://lakes/a/b/"):
        assert object_files.checked(root, GOOD) == "s3://lakes/a/b"


def pieces_of(size: int, fail: bool) -> Iterator[bytes]:
    for at in range(0, size, 1 << 20):
        yield b"x" * min(1 << 20, size - at)
    if fail:
        raise ZeroDivisionError


@pytest.mark.parametrize("size", [0, 100, PART_BYTES, 2 * PART_BYTES + 5])
def test_a_file_is_sent_whole_or_not_at_all(lake: Lake, size: int) -> None:
    folder = lake.root / "sent"
    folder.content.send("a b/file:1", pieces_of(size, fail=False), size)
    assert folder.content.read("a b/file:1") == b"x" * size
    folder.content.write("a b/file:1", b"before")
    with pytest.raises(ZeroDivisionError):
        folder.content.send("a b/file:1", pieces_of(size, fail=True), size)
    assert folder.content.read("a b/file:1") == b"before"


def test_a_file_that_is_replaced_while_it_is_read_is_not_taken_for_one(lake: Lake) -> None:
    folder = lake.root
    folder.write("file", b"a" * 20)
    with folder.open("file") as opened:
        assert opened.read(5) == b"aaaaa"
        folder.write("file", b"b" * 30)
        with pytest.raises(OSError, match="another process wrote a file there meanwhile"):
            opened.read(5)


def test_many_files_go_at_once_also_some_that_are_not_there(lake: Lake) -> None:
    folder = lake.root / "many"
    for number in range(5):
        folder.write(f"{number} of:5", b"")
    folder.content.remove_files([f"{number} of:5" for number in (0, 3, 9)])
    assert sorted(folder.files()) == ["1 of:5", "2 of:5", "4 of:5"]


def test_a_file_without_an_entity_tag_is_read_and_known_by_its_time(store: ObjectStore, lake: Lake) -> None:
    """Such files were put into the store's folder by a program that did not use the store."""
    folder = lake.root / "beside"
    (store.bucket / lake.root.name / "beside").mkdir(parents=True)
    (store.bucket / lake.root.name / "beside" / "file").write_bytes(b"abc")
    with folder.open("file") as opened:
        assert opened.read() == b"abc"
    (stamp,) = folder.stamps().values()
    assert not stamp.startswith("None")


def test_a_bucket_that_is_missing_is_named_until_it_is_made(store: ObjectStore) -> None:
    lake = Lake.at(f"s3://{uuid.uuid4().hex}/lake")
    for ask in (Ledger(lake).create, lake.tables, lake.cuts.delta, lambda: Ledger(lake).newest_edges(["a"])):
        with pytest.raises(BucketMissingError, match="Create the bucket, or correct LAKE_ROOT") as missing:
            ask()
        assert not isinstance(missing.value, Retryable)
    (store.bucket.parent / lake.root.uri.split("/")[2]).mkdir()
    Ledger(lake).create()
    assert Ledger(lake).newest_edges(["a"]) == {}
