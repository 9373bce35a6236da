"""`platform-assets compare-postgres`: exit codes and output. `checks/postgres/test_comparing.py` compares real rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from platform_assets.checks.postgres.comparing import KEPT, Comparison, Difference, PostgresComparison
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

COMMAND = ("compare-postgres", "db.public.orders", "--dsn-env", "SHOP_DSN")
ADDRESS = "postgresql://reader:canary@127.0.0.1:1/shop"
BEHIND = "2 windows are not decoded yet, the first is 2026-01-01-00:00"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    made.declare("db.public.orders")
    made.variables |= {
        "LAKE_ROOT": str(tmp_path / "lake"), "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SHOP_DSN": ADDRESS,
    }  # fmt: skip
    return made


def comparison(*differences: Difference, reasons: tuple[str, ...] = (), doubts: tuple[str, ...] = ()) -> Comparison:
    counts = Counter(each.kind for each in differences)
    return Comparison(
        "db.public.orders", "public.orders", "7:7:", ("id",), ("id", "note"), {"span": "not in `schema`"}, reasons, [],
        3, 0, list(differences), counts, list(doubts),
    )  # fmt: skip


CHANGED = Difference("different", {"id": "1\x1b[2J"}, ("note",), {"note": ("a", None)})


@pytest.mark.parametrize(
    ("found", "code", "first"),
    [
        (comparison(), 0, "db.public.orders: equal: 3 rows of public.orders, in 2 columns"),
        (comparison(reasons=(BEHIND,)), 0, "db.public.orders: equal: 3 rows of public.orders, in 2 columns"),
        (
            comparison(CHANGED, Difference("missing", {"id": "4"})), 1,
            "db.public.orders: different: 1 missing, 1 different, of 3 rows of public.orders",
        ),
        (
            comparison(CHANGED, reasons=(BEHIND,)), 2,
            "db.public.orders: undecided: 1 different, of 3 rows of public.orders",
        ),
        (
            comparison(doubts=(BEHIND,)), 2,
            "db.public.orders: undecided: no differences, of 3 rows of public.orders",
        ),
    ],
)  # fmt: skip
def test_the_exit_code_tells_the_outcome(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, found: Comparison, code: int, first: str
) -> None:
    monkeypatch.setattr(PostgresComparison, "run", lambda self: found)
    done = shell.run(*COMMAND)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (code, first)
    assert (BEHIND in done.stdout) == (code == 2)
    assert "column span was not compared: not in `schema`" in done.stdout
    assert "\x1b" not in done.output
    if found.counts.total():
        assert "  different id=1\\x1b[2J: note\n" in done.stdout
        assert "    note: 'a' in the database, None in the lake\n" in done.stdout
    printed = json.loads(shell.run(*COMMAND, "--json").stdout)
    assert printed["outcome"] == {0: "equal", 1: "different", 2: "undecided"}[code]
    assert [each["key"]["id"] for each in printed["differences"]] == [each.key["id"] for each in found.differences]
    assert bool(printed["reasons"]) == (code == 2)


def test_what_cannot_be_compared_is_named_and_no_error_shows_the_address(shell: Shell) -> None:
    done = shell.run(*COMMAND, SHOP_DSN=None)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "SHOP_DSN is not set: export it" in done.stderr
    done = shell.run(*COMMAND)
    assert done.exit_code == 2
    assert "is not decoded with the format debezium" in done.stderr
    file = shell.root / "defs" / "db.public.orders" / "defs.yaml"
    file.write_text(file.read_text() + "  decode: {value: {format: debezium, schema: id INT NOT NULL}}\n")
    done = shell.run(*COMMAND)
    assert done.exit_code == 2
    assert "decoded/db.public.orders has no rows yet" in done.stderr
    assert "canary" not in done.output


def test_an_unexpected_error_does_not_look_like_a_difference_and_shows_no_value(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: PostgresComparison) -> Comparison:
        raise ValueError("canary")

    monkeypatch.setattr(PostgresComparison, "run", broken)
    done = shell.run(*COMMAND)
    assert done.exit_code == 2
    assert "unexpected ValueError at test_compare_postgres.py:" in done.stderr
    assert "canary" not in done.output


def test_a_script_gets_as_many_differences_as_it_asks_for(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shell.root / "defs" / "db.public.orders" / "defs.yaml"
    file.write_text(file.read_text() + "  decode: {value: {format: debezium, schema: id INT NOT NULL}}\n")

    def run(self: PostgresComparison) -> Comparison:
        found = comparison()
        found.limit = self.limit
        for number in range(1_200):
            found.add(Difference("missing", {"id": str(number)}))
        return found

    monkeypatch.setattr(PostgresComparison, "run", run)
    for limit, listed in ((None, 1_000), (1, 1), (1_100, 1_100), (1_000_000, 1_200)):
        done = shell.run(*COMMAND, "--json", *(() if limit is None else ("--limit", str(limit))))
        printed = json.loads(done.stdout)
        assert (done.exit_code, printed["counts"]["missing"], printed["limit"]) == (1, 1_200, limit or KEPT)
        assert [each["key"]["id"] for each in printed["differences"]] == list(map(str, range(listed)))
    text = shell.run(*COMMAND).stdout
    assert text.count("  missing id=") == 20
    assert "  and 1,180 more: `--json --limit 1200` lists them" in text
    for wrong in ("0", "1000001", "all"):
        assert shell.run(*COMMAND, "--json", "--limit", wrong).exit_code == 2
