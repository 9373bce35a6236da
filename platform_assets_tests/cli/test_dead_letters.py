"""Dead letters in a shell: their causes, a redrive, and the commands that also work on decoded tables."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from platform_assets.model.tables import TableRef
from platform_assets_tests.support.runs_of import minutes_ago
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell, ShellOf
from testbed.loads import Record, TopicLake, committed

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker, TopicMaker

pytestmark = [pytest.mark.broker, *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

DECODE = """  decode:
    value: {{format: string, max_bytes: {most}}}
    dead_letters: {{warn: 0.1, fail: 0.9}}
    expect:
      - {{column: value, pattern: "[a-n]*"}}
"""


def declare(shell: Shell, lk: TopicLake, most: int) -> None:
    file = shell.declare(lk.topic, f"{lk.start:%Y-%m-%dT%H:%MZ}", "* * * * *")
    file.write_text(file.read_text() + DECODE.format(most=most))


def test_dead_letters_are_shown_sent_and_redriven(lake: LakeMaker, topic: TopicMaker, shell_of: ShellOf) -> None:
    lk = lake(partitions=2, start=minutes_ago(6))
    first = lk.window_of([Record(b"five \x1b[31m!"), Record(b"ok"), Record(b"\xff\xfe", partition=1)])
    second = lk.window_of([Record(b"ok")])
    shell = shell_of(lk)
    declare(shell, lk, 4)
    result = shell.run("load", lk.topic, first, second)
    assert result.exit_code == 0, result.output
    assert f"{first}: decoded: loaded, 1 rows, 2 dead letters" in result.stdout
    assert "decoded_plus_dead_equals_raw: passed" in result.stdout
    assert "share_of_dead_letters: warning: 2 of 4 records are dead letters" in result.stdout
    assert (
        "value_pattern: warning: 2 of 2 rows fail (`value matches '[a-n]*' as a whole`): 1 in window" in result.stdout
    )

    result = shell.run("dead-letters", f"dead_letters/{lk.topic}")
    assert result.stdout.startswith(f"dead_letters/{lk.topic}: 2 of 4 records in 2 windows (50.000%)\n")
    assert "too_large (value): 1 (50.0% of the dead letters)" in result.stdout
    assert r"value: five \x1b[31m!" in result.stdout
    assert r"value: \xff\xfe" in result.stdout
    found = json.loads(shell.run("dead-letters", lk.topic, first, "--json").stdout)
    assert (found["dead_letters"], found["records"], found["windows"]) == (2, 3, {first: 2})
    assert {g["reason"]: g["count"] for g in found["groups"]} == {"too_large": 1, "malformed": 1}

    target = topic()
    result = shell.run("dead-letters", lk.topic, first, "--send-to", target)
    assert result.stdout.endswith(f"sent to {target}: 2; 0 had been sent before\n"), result.output
    found = json.loads(shell.run("dead-letters", lk.topic, "--send-to", target, "--json").stdout)
    assert found["sent"] == {"topic": target, "now": 0, "before": 2}
    assert {r.value for r in committed(lk.settings, target)} == {b"five \x1b[31m!", b"\xff\xfe"}
    assert shell.run("dead-letters", lk.topic, "--send-to", lk.topic).exit_code == 1

    # After a lost ledger, the receipts of decoded windows are rebuilt along with those of the raw table.
    before = [lk.ledger.receipts(table) for table in shell_tables(lk)]
    shutil.rmtree(lk.root / "_ledger")
    result = shell.run("rebuild-ledger", lk.topic)
    assert result.exit_code == 0, result.output
    assert f"decoded/{lk.topic}: receipts of 2 windows restored" in result.stdout
    after = [lk.ledger.receipts(table) for table in shell_tables(lk)]
    for was, now in zip(before, after, strict=True):
        assert {k: (r.made_from, r.offsets, r.content, r.files_digest, r.figures) for k, r in was.items()} == {
            k: (r.made_from, r.offsets, r.content, r.files_digest, r.figures) for k, r in now.items()
        }
    assert [len(r.figures or {}) for r in after[0].values()] == [1, 1]

    declare(shell, lk, 400)
    narrowed = shell.run("load", f"decoded/{lk.topic}", "--stale", first, "--dry-run").stdout
    assert narrowed.splitlines()[0] == f"decoded/{lk.topic}: 1 window to decode again"
    found = json.loads(shell.run("load", f"decoded/{lk.topic}", "--stale", "--json").stdout)
    window, other = found["decoded"]
    assert (window["outcome"], window["rows"], window["dead_letters"]) == ("replaced", 2, 1)
    assert (window["window"], other["window"], other["rows"]) == (first, second, 1)
    assert (
        f"decoded/{lk.topic}: 0 windows to decode again" in shell.run("load", f"decoded/{lk.topic}", "--stale").output
    )
    refused = shell.run("load", lk.topic, "--stale")
    assert refused.exit_code == 1
    assert (
        f"--stale applies only to decoded tables, but raw/{lk.topic} is not one: use decoded/{lk.topic}"
        in refused.stderr
    )
    assert shell.run("load", f"decoded/{lk.topic}").exit_code == 2
    assert "malformed" in shell.run("dead-letters", lk.topic).stdout
    assert "too_large" not in shell.run("dead-letters", lk.topic).stdout

    result = shell.run("dead-letters", lk.topic, "2020-01-01-00:00")
    assert result.exit_code == 1
    assert "are not decoded yet; to decode one, run `platform-assets load decoded/" in result.stderr
    result = shell.run("vacuum", f"dead_letters/{lk.topic}", "--dry-run")
    assert result.stdout == f"dead_letters/{lk.topic}: would delete 0 files, 0 bytes\n"
    assert lk.topic in shell.run("status").output


def shell_tables(lk: TopicLake) -> tuple[TableRef, TableRef]:
    return (lk.declaration.decoded_table, lk.declaration.dead_letter_table)
