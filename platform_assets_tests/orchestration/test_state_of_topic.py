"""The state of a real topic, from the producer to its readers: ticks request loads and folds, and what polars, DuckDB and
Spark read is a plain dictionary of what was produced."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl
import pytest
from confluent_kafka import Producer

from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets.model.state import StateDeclaration
from platform_assets.model.windows import closed_edges, key_of, milliseconds
from platform_assets.orchestration import names
from platform_assets.orchestration.names import fold_op
from platform_assets_tests.support.daemon import Daemon
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell, ShellOf
from platform_assets_tests.support.streams import ANY_TIME
from testbed.clients import librdkafka
from testbed.homes import service_environment
from testbed.project import definitions

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.broker, *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

DECODE = DecodeDeclaration(
    FormatSpec("json", {"schema": "id BIGINT NOT NULL, status STRING"}),
    FormatSpec("json", {"schema": "id BIGINT NOT NULL"}),
)
STATE = StateDeclaration(("id",))
YAML = """\
  decode:
    value: {format: json, schema: "id BIGINT NOT NULL, status STRING"}
    key: {format: json, schema: "id BIGINT NOT NULL"}
  state: {key: [id]}
"""
COLUMNS = ("id", "status", "window", "kafka_partition", "kafka_offset")
ROWS = {
    "spark": f"rows = [list(row) for row in fresh.select({list(COLUMNS)!r}).collect()]",
    "polars": f"rows = fresh.select({list(COLUMNS)!r}).collect().rows()",
    "duckdb": f"rows = fresh.pl().select({list(COLUMNS)!r}).rows()",
}
TEXTS = ("new", "O'Brien", 'a "quoted" \\ text', "zwölf\n雪", None)
"""Statuses, among them texts that printed code might quote wrongly. None is a null, and deletes nothing."""

Row = tuple[Any, ...]
Write = tuple[int, str | None] | int
"""A record: an id and a status; or only an id, for a tombstone."""


@dataclass
class Notes:
    """A producer, and its notes: the acknowledged records in the order in which each partition acknowledged them. A key
    always goes to the same partition."""

    bootstrap: str
    topic: str
    records: list[tuple[str, bytes, bytes | None, int, int]] = field(default_factory=list)

    def produce(self, edge: datetime, writes: Sequence[Write]) -> None:
        """Produce these records at the start of the window that begins at `edge`; wait until all are acknowledged."""
        producer = Producer({**librdkafka(self.bootstrap), "enable.idempotence": True, "linger.ms": 5})
        before = len(self.records)

        def acknowledged(error: Any, message: Any) -> None:
            assert error is None, error
            self.records.append(
                (key_of(edge), message.key(), message.value(), message.partition(), message.offset()),
            )

        for write in writes:
            number, value = (write, None) if isinstance(write, int) else (write[0], of_order(*write))
            key = json.dumps({"id": number}).encode()
            producer.produce(self.topic, value, key, timestamp=milliseconds(edge), on_delivery=acknowledged)
        assert producer.flush(60) == 0
        assert len(self.records) == before + len(writes)

    def repaired(self, number: int, window: str, value: bytes) -> Repair:
        """Note that the only record of a key in a window is another one, and return the repair that says so."""
        key = json.dumps({"id": number}).encode()
        ((at, noted),) = [(n, r) for n, r in enumerate(self.records) if r[:2] == (window, key)]
        self.records[at] = (window, key, value, noted[3], noted[4])
        return Repair(window, noted[3], noted[4], value.decode())

    def state(self) -> tuple[dict[int, Row], dict[int, Row]]:
        """Return the rows of the live keys and of the deleted keys."""
        live: dict[int, Row] = {}
        dead: dict[int, Row] = {}
        for window, key, value, *place in self.records:
            content = json.loads(key if value is None else value)
            number = content["id"]
            live.pop(number, None)
            dead.pop(number, None)
            if value is None:
                dead[number] = (number, window, *place)
            else:
                live[number] = (number, content["status"], window, *place)
        return live, dead


def of_order(number: int, status: str | None) -> bytes:
    return json.dumps({"id": number, "status": status}).encode()


def random_writes(rng: random.Random, count: int = 60, keys: int = 25) -> list[Write]:
    """Return updates, deletes and reinserts, several of one key among them."""
    return [
        number if rng.random() < 0.3 else (number, f"{rng.choice(TEXTS)} {n}" if rng.random() < 0.9 else None)
        for n, number in enumerate(rng.choices(range(keys), k=count))
    ]


def settle(d: Daemon) -> list[str]:
    """Evaluate ticks until one requests no run. Assert that all runs and checks succeed. Return how each fold made the
    state."""
    before = len(d.results)
    while d.tick():
        pass
    folds = []
    for result in d.results[before:]:
        assert result.success
        assert {e.check_name: e.description for e in result.get_asset_check_evaluations() if not e.passed} == {}
        made = [e.step_materialization_data.materialization for e in result.get_asset_materialization_events()
                if e.node_name == fold_op(d.lake.topic)]  # fmt: skip
        folds += [str(made[0].metadata["made"].value)] if made else []
    return folds


def load_again(d: Daemon, key: str) -> None:
    """Materialize a window of all tables that have windows, without checks, as a user may."""
    found = definitions(d.declaration, d.lake.bootstrap, d.lake.root, d.remote)
    job = found.resolve_job_def(names.assets_job(d.declaration))
    job = job.get_subset(asset_selection=frozenset(names.tables_of(d.declaration)), asset_check_selection=frozenset())
    assert job.execute_in_process(instance=d.instance, partition_key=key).success


def check_tables(d: Daemon, notes: Notes) -> None:
    """Assert that both tables, as polars reads them, are what the producer noted."""
    live, dead = notes.state()
    found = pl.read_delta(str(d.lake.root / "state" / d.lake.topic)).select(COLUMNS).sort("id").rows()
    assert found == sorted(live.values())
    without = [name for name in COLUMNS if name != "status"]
    found = pl.read_delta(str(d.lake.root / "state_deleted" / d.lake.topic)).select(without).sort("id").rows()
    assert found == sorted(dead.values())


def fresh(shell: Shell, topic: str) -> dict[str, list[Row]]:
    """Return the fresh rows that each reader's printed code gives. Spark's code connects in a process of its own."""
    read = shell.run("read", f"state/{topic}", "--json")
    assert read.exit_code == 0, read.output
    assert read.stderr == "", "the state is what the YAML declares, and no window of it was replaced"
    snippets, found = json.loads(read.stdout)["snippets"], {}
    for reader, statement in ROWS.items():
        program = f"{snippets[f'fresh {reader}']}\n{statement}"
        if reader == "spark":
            program += "\nimport json\nprint(json.dumps(rows))"
            done = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=service_environment()
            )
            assert done.returncode == 0, done.stderr
            rows = json.loads(done.stdout.splitlines()[-1])
        else:
            names: dict[str, Any] = {}
            exec(program, names)
            rows = names["rows"]
        found[reader] = sorted(map(tuple, rows))
    return found


def test_the_state_is_what_was_produced(
    lake: LakeMaker, spark_remote: str, shell_of: ShellOf, instance: dg.DagsterInstance, rng: random.Random
) -> None:
    """Key 100 is deleted and inserted again, twice; 101 lives and dies in one window; 102 dies before it lives; 103 never
    changes until it is deleted. A repair turns a record of key 104 into one of 105, so the older record of 104 counts again."""
    now = datetime.now(UTC)
    edges = closed_edges("* * * * *", now - timedelta(minutes=9), now)
    lk = lake(partitions=3, config=ANY_TIME, start=edges[0])
    lk.declaration = replace(lk.declaration, decode=DECODE, state=STATE)
    d = Daemon(lk, instance, spark_remote, lk.declaration)
    notes = Notes(lk.bootstrap, lk.topic)
    windows: list[list[Write]] = [
        [(100, "1"), (101, "1"), 101, (103, "1"), (104, "old")],
        [100, 102, (104, "wrong")],
        [(100, "3")],
        [100, (102, "4")],
        [(100, "5"), 103],
    ]
    for edge, writes in zip(edges, windows[:2], strict=False):
        notes.produce(edge, [*random_writes(rng), *writes])
    d.now = edges[2] + timedelta(seconds=5)
    assert settle(d) == ["rebuild"]
    check_tables(d, notes)
    notes.produce(edges[2], [*random_writes(rng), *windows[2]])
    d.now = edges[3] + timedelta(seconds=5)
    assert settle(d) == ["fold"]
    check_tables(d, notes)
    assert notes.state()[0][100][1] == "3"

    # The first window again, and then the second one with a repaired record.
    load_again(d, key_of(edges[0]))
    assert settle(d) == [], "the same rows change nothing"
    check_tables(d, notes)
    repair = notes.repaired(104, key_of(edges[1]), of_order(105, "right"))
    d.declaration = replace(lk.declaration, decode=replace(DECODE, repairs=(repair,)))
    load_again(d, repair.window)
    assert settle(d) == ["fold"]
    live, _ = notes.state()
    assert (live[104][1], live[105][1]) == ("old", "right")
    check_tables(d, notes)

    # Two more windows, loaded and not folded: the run that loads ends, and no tick comes after it.
    for edge, writes in zip(edges[3:], windows[3:], strict=False):
        notes.produce(edge, [*random_writes(rng), *writes])
    d.now = edges[5] + timedelta(seconds=5)
    assert d.tick() == 1
    assert d.newest_succeeded()
    shell = shell_of(lk)
    file = shell.declare(lk.topic, f"{lk.start:%Y-%m-%dT%H:%MZ}", "* * * * *")
    file.write_text(file.read_text() + YAML)
    dry = json.loads(shell.run("fold", lk.topic, "--dry-run", "--json").stdout)
    assert (dry["made"], dry["windows"]) == ("fold", [key_of(edges[3]), key_of(edges[4])])
    live, _ = notes.state()
    assert fresh(shell, lk.topic) == dict.fromkeys(ROWS, sorted(live.values()))
    assert settle(d) == ["fold"]
    check_tables(d, notes)
    audit = shell.run("audit", f"state/{lk.topic}", "--deep")
    assert audit.exit_code == 0, audit.output
