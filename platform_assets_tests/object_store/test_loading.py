"""Records on their way into a lake in an object store: loads, decoding, damage, commands, and refusals."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.location import Folder
from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.services import dagster_services
from platform_assets.services.home import Home
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets_tests.object_store.conftest import SECRET
from platform_assets_tests.support.every_kind import EVERY_KIND
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from platform_assets_tests.support.store_lake import StoreLake
from testbed.loads import Record, numbered, records

if TYPE_CHECKING:
    from platform_assets_tests.object_store.conftest import StoreLakeMaker
    from testbed.object_store import ObjectStore

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.cluster,
    *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS),
]

TEXT = DecodeDeclaration(FormatSpec("string"))


@pytest.mark.parametrize("engine", ENGINES)
def test_windows_are_loaded_exactly_and_found_unchanged_again(store_lake: StoreLakeMaker, engine: EngineName) -> None:
    lk = store_lake(partitions=2, engine=engine)
    keys = [lk.window_of(EVERY_KIND), lk.window_of(numbered(300, 2))]

    assert [lk.load(key).outcome for key in keys] == ["loaded", "loaded"]
    assert records(lk.rows()) == records(lk.committed())
    assert [lk.load(key).outcome for key in keys] == ["unchanged", "unchanged"]
    assert lk.version() == 2
    assert lk.unnamed_files() == []


def test_a_window_that_lost_rows_or_files_is_healed(store_lake: StoreLakeMaker) -> None:
    lk = store_lake()
    key = lk.window_of(numbered(50))
    lk.load(key)
    before = lk.rows()

    DeltaTable(lk.folder.uri).delete("kafka_offset % 10 = 0")
    assert len(lk.rows()) == 45
    assert lk.load(key).outcome == "healed"
    lk.folder.erase([name for name in lk.data_files() if name in lk.named_files()])
    assert lk.load(key).outcome == "healed"
    assert records(lk.rows()) == records(before)


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_of_two_first_loads_at_once_one_wins_each_time(
    store_lake: StoreLakeMaker, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Both loads have opened the table and written their files before the first load commits."""
    lk = store_lake(partitions=2)
    lk.load(lk.window_of(numbered(10, 2)))
    barrier, held, commit = threading.Barrier(2), threading.local(), WindowCommit.replace

    def together(opened: WindowCommit, *arguments: Any) -> Any:
        if not held.at_commit:
            held.at_commit = True
            barrier.wait(120)
        return commit(opened, *arguments)

    def load(key: str) -> str:
        held.at_commit = False
        return lk.loader().load(key).outcome

    monkeypatch.setattr(WindowCommit, "replace", together)
    with ThreadPoolExecutor(2) as pool:
        for number in range(rounds):
            key = lk.window_of(numbered(20 + number, 2, f"round {number} "))
            assert sorted(pool.map(load, [key, key])) == ["loaded", "unchanged"]
    assert lk.version() == rounds + 1
    assert records(lk.rows()) == records(lk.committed())
    assert lk.unnamed_files() == []


def test_decoded_rows_and_dead_letters_are_each_raw_row(store_lake: StoreLakeMaker) -> None:
    lk = store_lake(partitions=2)
    values = (b"one", b"", None, b"\xff", b"zwei", b"a\xc3")
    key = lk.window_of([Record(value, b"k", i % 2) for i, value in enumerate(values)])
    lk.load(key)
    declaration = replace(lk.declaration, decode=TEXT)
    decoder = WindowDecoder(declaration, lk.ledger, DecodeEngine(lk.lake, lk.spark))

    assert decoder.decode(key).outcome == "loaded"
    found = {kind: Folder(f"{lk.address}/{kind}/{lk.topic}").delta().to_pyarrow_table() for kind in KINDS}
    assert sorted(found["decoded"]["value"].to_pylist(), key=str) == ["", None, "one", "zwei"]
    assert sorted(found["dead_letters"]["value"].to_pylist()) == [b"a\xc3", b"\xff"]
    assert decoder.decode(key).outcome == "unchanged"


KINDS = ("decoded", "dead_letters")


def shell_of(lk: StoreLake, folder: Path, remote: str) -> Shell:
    """Return a shell for the lake; this process's environment has the store's address."""
    shell = Shell.of_lake(folder, lk, remote)
    shell.variables["LAKE_ROOT"] = lk.address
    dagster_services.prepare(Home.from_environment(shell.variables))
    return shell


def test_commands_work_on_it_and_show_no_secret(
    store_lake: StoreLakeMaker, store: ObjectStore, store_remote: str, tmp_path: Path
) -> None:
    lk = store_lake(partitions=2)
    keys = [lk.window_of(numbered(40, 2, stem)) for stem in ("a", "b")]
    shell = shell_of(lk, tmp_path / "project", store_remote)
    said = []
    backups = str(tmp_path / "backup")
    for arguments in (
        ("load", lk.topic, *keys),
        ("audit", lk.topic, "--deep"),
        ("read", lk.topic),
        ("vacuum", lk.topic, "--dry-run"),
        ("backup", backups),
        ("erase", lk.topic, "--offsets", "0:0-1", "--reason", "asked for", "--yes"),
        ("restore", backups, "--only", "ledger", "--only", lk.topic, "--force"),
    ):
        result = shell.run(*arguments)
        assert result.exit_code == 0, (arguments, result.output)
        said.append(result.output)
    # Restored from before the erasure.
    assert records(lk.rows()) == records(lk.committed())

    before = [(w.key, w.ranges) for w in lk.ledger.windows(lk.topic)]
    lk.lake.ledger.delete()
    assert lk.ledger.windows(lk.topic) == []
    result = shell.run("rebuild-ledger")
    assert result.exit_code == 0, result.output
    assert [(w.key, w.ranges) for w in lk.ledger.windows(lk.topic)][: len(before)] == before
    assert [lk.load(key).outcome for key in keys] == ["unchanged", "unchanged"]

    result = shell.run("status", "--json")
    assert lk.topic in result.output, result.output
    said.append(result.output)
    logs = [path.read_bytes() for path in tmp_path.parent.rglob("*.log")]
    objects = [(store.folder / "lakes" / key).read_bytes() for key in store.keys(lk.address.rpartition("/")[2])]
    for text in (*(text.encode() for text in said), *logs, *objects):
        assert SECRET.encode() not in text
    assert logs
    assert objects
