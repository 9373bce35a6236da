"""Erasure in a shell, with a real broker. The records disappear from every file, audits pass, and neither
engine restores the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.engines.choice import choose_engine
from platform_assets.lake import holdings
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.decisions import unfinished_erasures
from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets_tests.support.erasures import found_in, shown
from platform_assets_tests.support.runs_of import minutes_ago
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell, ShellOf
from testbed.loads import Record, TopicLake

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.broker, *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

DECODE = """  decode:
    value: {format: string}
    dead_letters: {warn: 0.9, fail: 0.9}
    expect:
      - {column: value, pattern: "[a-z0-9 ]*"}
"""
WHO, NEEDLE = b"customer-4711", b"zebra in pyjamas"


def sent(number: int) -> list[Record]:
    """Return records of two partitions. Every third record has the key to erase. Some of the values with this key are
    not text or cannot be decoded."""
    kinds = (NEEDLE, b"\xff" + NEEDLE, NEEDLE.upper() + NEEDLE)
    return [
        Record(kinds[n // 3 % 3], WHO, n % 2)
        if n % 3 == 0
        else Record(b"stays %d" % (100 * number + n), b"k%d" % n, n % 2)
        for n in range(12)
    ]


def loaded_by(lk: TopicLake, name: EngineName, key: str) -> str:
    """Load the window with the given engine and return the outcome."""
    engine = choose_engine(Lake.at(lk.root), lambda: lk.settings, lk.spark, name)
    return lk.loader(engine=engine).load(key).outcome


def shell_for(lk: TopicLake, shell_of: ShellOf) -> Shell:
    """Return a shell whose topic is decoded."""
    shell = shell_of(lk)
    file: Path = shell.root / "defs" / lk.topic / "defs.yaml"
    file.write_text(file.read_text() + DECODE)
    return shell


def test_a_key_is_erased_and_neither_engine_brings_it_back(lake: LakeMaker, shell_of: ShellOf) -> None:
    lk = lake(partitions=2, start=minutes_ago(12))
    shell = shell_for(lk, shell_of)
    first = lk.window_of(sent(1))
    lk.commit(sent(2))  # its transaction markers have no rows, so brokers are queried about them
    second = lk.close_window()
    untouched = lk.window_of([Record(b"nothing of hers", b"k")])
    done = shell.run("load", lk.topic, first, second, untouched)
    assert done.exit_code == 0, done.output
    waiting = lk.window_of(sent(3))
    end = next(w for w in lk.ledger.windows(lk.topic) if w.key == waiting).ranges
    kept = [r.whole for r in lk.rows() if r.key != WHO]
    assert len(kept) == 17
    before = lk.snapshot()

    key = shell.root / "key"
    key.write_bytes(WHO)
    shown_first = shell.run("erase", lk.topic, "--key-file", str(key), "--dry-run")
    assert (shown_first.exit_code, f"raw/{lk.topic} {first}: 4 records" in shown_first.output) == (0, True)
    assert WHO.decode() not in shown_first.output
    assert shell.run("erase", lk.topic, "--key-file", str(key), "--yes").exit_code == 1, "a decision needs a reason"
    assert lk.snapshot() == before
    erased = shell.run("erase", lk.topic, "--key-file", str(key), "--reason", "asked for", "--yes")
    assert erased.exit_code == 0, erased.output
    assert f"raw/{lk.topic}: 8 rows erased" in erased.output
    # In the window that is not loaded yet, offsets are named before they are read.
    offsets = [f"{p}:{r.start}-{r.end}" for p, r in end.items()]
    named = [word for text in offsets for word in ("--offsets", text)]
    erased = shell.run("erase", lk.topic, *named, "--reason", "asked for", "--json")
    assert erased.exit_code == 0, erased.output
    assert json.loads(erased.output)["windows"][0]["loaded"] is False

    assert not unfinished_erasures(lk.ledger.lake, lk.topic)
    assert [r.whole for r in lk.rows()] == kept
    assert len([r for r in lk.committed() if r.key == WHO]) == 12, "Kafka has them all"
    for needle in (WHO, NEEDLE):
        assert not (places := found_in(lk.root, needle)), shown(places)

    last = lk.window_of(sent(4)[1:3])
    done = shell.run("load", lk.topic, waiting, last)
    assert done.exit_code == 0, done.output
    for name in ENGINES:
        assert [loaded_by(lk, name, w) for w in (first, second)] == ["unchanged", "unchanged"]
    for damaged in (first, second):
        for name in reversed(ENGINES):
            (path,) = holdings.files_of(lk.ledger.lake.table(lk.declaration.raw_table), damaged).paths[:1]
            (lk.table / path.replace("%25", "%")).unlink()
            assert loaded_by(lk, name, damaged) == "healed"
    for needle in (WHO, NEEDLE):
        assert not (places := found_in(lk.root, needle)), shown(places)
    # A load in the shell is reported to Dagster; the repairs by the engines above were not.
    assert shell.run("load", lk.topic, first, second).exit_code == 0
    for arguments in ([lk.topic], [lk.topic, "--deep"], [f"decoded/{lk.topic}", "--deep"]):
        audit = shell.run("audit", *arguments)
        assert audit.exit_code == 0, audit.output
    assert f"{8 + 12} erased records" in shell.run("audit", lk.topic).output.replace("\n", " ")
    again = shell.run("erase", lk.topic, "--key-file", str(key), "--reason", "asked for", "--yes")
    assert "nothing was erased" in again.output


def test_what_is_no_offset_or_key_is_refused(lake: LakeMaker, shell_of: ShellOf) -> None:
    lk = lake(start=minutes_ago(12))
    shell = shell_of(lk)
    lk.window_of([Record(b"v", b"k")])
    for words in (["--offsets", "0:7"], ["--offsets", "0:7-7"], ["--key-hex", "xyz"], ["--generation", "1"]):
        assert shell.run("erase", lk.topic, *words, "--reason", "r", "--yes").exit_code == 2, words
    refused = shell.run("erase", lk.topic, "--offsets", "0:0-9", "--reason", "r", "--yes")
    assert refused.exit_code == 1
    assert "[1, 9) of partition 0" in refused.output


def test_past_versions_are_answered_for_by_the_option_that_the_error_names(
    lake: LakeMaker, shell_of: ShellOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    lk = lake(start=minutes_ago(12))
    shell = shell_of(lk)
    lk.window_of([Record(b"v", b"k")])
    # A local lake keeps no past versions of files, but a bucket may.
    monkeypatch.setattr(Folder, "keeps_versions", lambda folder: True)
    words = ("erase", lk.topic, "--offsets", "0:0-1", "--reason", "r", "--yes")
    refused = shell.run(*words)
    assert refused.exit_code == 1
    assert "`--past-versions-expire`" in refused.output
    done = shell.run(*words, "--past-versions-expire")
    assert done.exit_code == 0, done.output
    assert "the bucket keeps the deleted files as past versions" in " ".join(done.output.split())
