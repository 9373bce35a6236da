"""One seed of the `database` scenario: a database with its connector, its topics and its lake, and what happens to them."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, get_args

import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable

from platform_assets.components import TopicTable
from platform_assets.windows.load import sealing
from platform_assets_tests.soak import database_judge as judge
from platform_assets_tests.soak.database_judge import Key, Named, Record, Row, Said
from platform_assets_tests.soak.database_work import COPIED, TEXT, TYPES, Table, Work, tables
from platform_assets_tests.soak.embedded import Answer, Embedded
from platform_assets_tests.soak.live import create
from platform_assets_tests.support.warm_commands import WarmCommand, WarmCommands
from testbed.debezium import Connector
from testbed.loads import START, wait_until
from testbed.postgres import Postgres

Kill = Literal["connector", "broker", "spark", "load", "fold"]
"""What is killed with SIGKILL: the connector's worker, the broker, Spark's server during a load, a command that loads,
decodes and makes changes, or a command that folds."""
KILLS: Final[tuple[Kill, ...]] = get_args(Kill)
KILLS_OF_A_SEED: Final = 5
SNAPSHOT_ROWS: Final = 20_000
_VARIABLE: Final = "SOAK_DSN"
_BOUND: Final = 240.0
_HEARTBEAT: Final = "INSERT INTO heartbeat VALUES (1, now()) ON CONFLICT (id) DO UPDATE SET at = now()"

HEADER: Final = (
    "| seed | tables | transactions | rows | records | kills | loads | folds | keys that the connector lost | named "
    "| incomplete events | seconds | findings |\n|--:|---|--:|--:|--:|---|--:|--:|---|--:|--:|--:|---|"
)


@dataclass
class SeedResult:
    """Result of one seed. `lost` counts the keys that differ between PostgreSQL and the topic, by kind; `named` is the
    number of keys that `compare-postgres` counts."""

    seed: int
    tables: list[str] = field(default_factory=list)
    transactions: int = 0
    rows: int = 0
    records: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    loads: int = 0
    folds: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    named: int = 0
    incomplete: int = 0
    seconds: float = 0.0
    anomalies: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return a Markdown table row."""
        kills, lost = (", ".join(f"{n} × {w}" for w, n in sorted(c.items())) for c in (self.kills, self.lost))
        found = "; ".join(self.anomalies) or "none"
        return (
            f"| {self.seed} | {', '.join(self.tables)} | {self.transactions:,} | {self.rows:,} | {self.records:,} | {kills} "
            f"| {self.loads} | {self.folds} | {lost or 'none'} | {self.named:,} | {self.incomplete:,} | {self.seconds:.0f} "
            f"| {found} |"
        )


@dataclass(frozen=True)
class Services:
    """A broker and Spark's server, both below `root`, a PostgreSQL server, and the command from which commands are forked.
    All seeds use them."""

    root: Path
    server: Postgres
    commands: WarmCommands


class FollowedDatabase:
    """One database with its connector, its topics and its lake.

    `cursor` is one of the database at `address`. Everything of the seed is below `root`. `found` gets what happens, and
    `copied` is the number of rows of the large COPY.
    """

    def __init__(
        self, rng: random.Random, seed: int, among: Services, root: Path, address: str, cursor: Any, found: SeedResult,
        copied: int,
    ) -> None:  # fmt: skip
        self.rng, self.seed, self.root, self.cursor, self.found = rng, seed, root, cursor, found
        self.prefix, self.copied, self.closed = f"s{seed}", copied, START
        self.settings = TEXT if rng.random() < 0.5 else {}
        self.tables = tables(rng, text=bool(self.settings))
        self.work = Work(rng, cursor, self.tables)
        given = {"PLATFORM_DEFS": str(root / "defs"), _VARIABLE: address}
        (root / "commands").mkdir(parents=True)
        self.commands, self.begun = among.commands, 0
        self.platform = Embedded(among.root, root / "lake", given=given)
        self.connector = Connector(
            self.platform.home, root / "connect", self.platform.bootstrap, address, self._connector_settings()
        )
        self.left: dict[str, list[str]] = {table.name: [] for table in self.tables}
        """The windows of each table that are not known to be loaded."""
        self.longest = 4.0
        """Seconds that the last complete load took."""

    def _connector_settings(self) -> dict[str, str]:
        return {
            "topic.prefix": self.prefix,
            "slot.name": self.prefix,
            "slot.retry.delay.ms": "500",
            "slot.max.retries": "60",
            "table.include.list": ",".join(f"public.{name}" for name in ("heartbeat", *(t.name for t in self.tables))),
            "publication.autocreate.mode": "filtered",
            "heartbeat.interval.ms": "300",
            "heartbeat.action.query": _HEARTBEAT,
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "value.converter.replace.null.with.default": "false",
            **self.settings,
        }

    def drop_slot(self) -> None:
        """Drop the connector's replication slot, because a server has only a few."""

        def dropped() -> bool:
            self.cursor.execute(
                "SELECT active, pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                "WHERE slot_name = %s AND NOT active",
                [self.prefix],
            )
            self.cursor.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [self.prefix])
            return self.cursor.fetchone() is None

        wait_until("the slot is dropped", dropped)

    def topic(self, table: Table) -> str:
        """Return the topic of a table."""
        return f"{self.prefix}.public.{table.name}"

    # --- the course of a seed ---------------------------------------------------------------------------------

    def run(self, steps: int, kills: Sequence[Kill]) -> None:
        """Run `steps` steps with random kills, at least one of them of the first kind in `kills`, and check the results."""
        plan: list[list[Kill]] = [[] for _ in range(steps)]
        for number in range(KILLS_OF_A_SEED):
            # The connector first, so that each seed has such a kill.
            plan[self.rng.randrange(steps)].append(kills[0] if not number else self.rng.choice(kills))
        self._prepare()
        added = self.rng.randrange(steps)
        for number, chosen in enumerate(plan):
            self._step(chosen, with_column=number == added)
        if self.seed % 2 == 0:
            self._copy()
        self._settle(*self.tables)
        differing: list[Table] = []
        for table, (lost, said) in [(table, self._judge(table)) for table in self.tables]:
            self.found.lost += Counter(kind for kind, *_ in lost)
            self.found.records += said.records
            self.found.incomplete += said.incomplete
            if lost:
                self._send_again(table, lost)
                differing.append(table)
        if differing:
            self._settle(*differing)
        left = [table.name for table in differing if self._judge(table)[0]]
        self.found.anomalies += [f"{name}: rows differ although they were sent again" for name in left]
        self.found.transactions, self.found.rows = self.work.transactions, self.work.rows

    def _prepare(self) -> None:
        self.cursor.execute(f"{TYPES}; CREATE TABLE heartbeat (id int PRIMARY KEY, at timestamptz)")
        for table in self.tables:
            for statement in table.sql():
                self.cursor.execute(statement)
            create(self.platform.bootstrap, self.topic(table), 1)
            self._declare(table)
            marks = "" if table.full else " (default identity)"
            self.found.tables.append(f"{table.name}{marks}{' (whole snapshots)' if table.whole else ''}")
        if self.seed % 4 == 1:
            self._kill_snapshot()
        else:
            self.connector.start()
        for table in self.tables:
            self.work.insert(table)

    def _kill_snapshot(self) -> None:
        """Kill the connector during its first snapshot, and delete rows that it has read."""
        orders = self._orders()
        self.work.copy(SNAPSHOT_ROWS)
        self.connector.begin()
        self._wait_for_records(orders, self.rng.randint(1, SNAPSHOT_ROWS // 2))
        self._kill_connector("connector in a snapshot")
        self.cursor.execute("DELETE FROM orders WHERE id < %s", [COPIED + self.rng.randrange(SNAPSHOT_ROWS // 20)])
        self.work.rows += int(self.cursor.rowcount)
        self.connector.start()

    def _step(self, chosen: Sequence[Kill], *, with_column: bool) -> None:
        """Run transactions, while the connector and the broker are killed; then load, while commands and Spark are."""
        count = self.rng.randint(50, 150)
        at = {self.rng.randrange(count): kill for kill in chosen if kill in ("connector", "broker")}
        column = self.rng.randrange(count) if with_column else -1
        for number in range(count):
            if number == column:
                self._add_column()
            self.work.transaction()
            kill = at.get(number)
            if kill == "connector":
                self._kill_connector()
            elif kill == "broker":
                self.platform.kill("kafka")
                self.found.kills["broker"] += 1
            if number + 1 in at or number + 1 == count:
                self._start_killed()
        self._seal()
        of_commands: list[Kill | None] = [kill for kill in chosen if kill not in ("connector", "broker")]
        for kill_command in of_commands or [None]:
            table = self.rng.choice(self.tables)
            if kill_command == "fold":
                self._load(table)
                self._fold(table, kill=True)
            else:
                self._load(table, kill_command)
        if self.rng.random() < 0.5:
            self._fold(self.rng.choice(self.tables))

    def _copy(self) -> None:
        """Copy many rows, and kill the connector once or twice before it has sent all of them."""
        orders = self._orders()
        at = self._end(orders)
        self.work.copy(self.copied)
        position = self._position()
        for _ in range(self.rng.randint(1, 2)):
            at = max(self._end(orders), at) + self.rng.randrange(self.copied // 2)
            self._wait_for_records(orders, at, or_until=position)
            what = "connector" if self._is_confirmed(position) else "connector in a COPY"
            if self.rng.random() < 0.75:
                self._cut_off()
            self._kill_connector(what)
            if not self.platform.is_alive("kafka"):
                self.platform.start("kafka")
            self._seal()
            self._load(orders)
            self.connector.start()
        for _ in range(10):
            self.work.transaction()

    def _cut_off(self) -> None:
        """Kill the broker, and wait until the connector has stored how far it came.

        A page of a COPY has one position in the database's log. If the connector then ends too, it continues after the
        page of which it has sent some rows, and loses the others (dbz#1554).
        """
        stored = self.root / "connect" / "offsets"
        before = stored.stat().st_mtime_ns
        self.platform.kill("kafka")
        self.found.kills["broker"] += 1
        with suppress(AssertionError):  # There may be nothing new to store.
            wait_until("the connector has stored its position", lambda: stored.stat().st_mtime_ns > before, 10)

    def _settle(self, *tables: Table) -> None:
        """Let the connector send everything; load, decode and fold everything of these tables with the current columns."""
        self._wait_until_sent()
        self._seal()
        for table in tables:
            table.declared = table.added
            self._declare(table)
            self._load(table, rest=True)
            if table.added:
                done = self._command("load", f"decoded/{self.topic(table)}", "--stale")
                self._check(done, f"`load decoded/{table.name} --stale`", (0, 1))
            self._fold(table, must=True)

    def _send_again(self, table: Table, lost: set[Named]) -> None:
        """Do what the guide says about rows that differ, so that the connector sends them again."""
        if lost and not table.full:
            # Otherwise, the connector would leave out large values again.
            self.cursor.execute(f"ALTER TABLE {table.name} REPLICA IDENTITY FULL")
        for kind in ("missing", "different", "extra"):
            keys = tuple(key for this, key, _ in lost if this == kind)
            if keys:
                self.work.send_again(table, keys, is_extra=kind == "extra")

    def _orders(self) -> Table:
        return next(table for table in self.tables if table.name == "orders")

    # --- what happens -----------------------------------------------------------------------------------------

    def _kill_connector(self, what: str = "connector") -> None:
        self.connector.end(kill=True)
        self.found.kills[what] += 1

    def _start_killed(self) -> None:
        if not self.platform.is_alive("kafka"):
            self.platform.start("kafka")
        if self.connector.has_failed:
            self.connector.end()
            self.connector.start()

    def _add_column(self) -> None:
        table = self.work.add_column()
        if self.rng.random() < 0.5:
            table.declared = table.added
            self._declare(table)

    def _declare(self, table: Table) -> None:
        """Write the topic's YAML, as the guide says."""
        value = {"format": "debezium", "schema": table.ddl(list(table.known)), "connector": dict(self.settings)}
        attributes = {
            "topic": self.topic(table), "window": "* * * * *", "start": START.isoformat(),
            "decode": {"value": value, "key": {"format": "json", "schema": table.ddl(table.key)}},
            "state": {"key": list(table.key), **({"snapshots": "whole"} if table.whole else {})},
        }  # fmt: skip
        folder = self.root / "defs" / table.name
        folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump({"type": "platform_assets.components.TopicTable", "attributes": attributes})
        (folder / "defs.yaml").write_text(text)

    def _seal(self) -> None:
        """Close a window of each topic at the end of its log."""
        start = self.closed
        self.closed += timedelta(minutes=1)
        for table in self.tables:
            attributes = yaml.safe_load((self.root / "defs" / table.name / "defs.yaml").read_text())["attributes"]
            declaration = TopicTable(**attributes).declaration()
            ledger = self.platform.ledger
            ledger.create()
            sealing.seal(declaration, self.platform.cluster, ledger, self.closed, deadline=time.monotonic() + 60)
            self.left[table.name] += [window.key for window in ledger.windows(declaration.topic, start=start)]

    def _load(self, table: Table, kill: Kill | None = None, *, rest: bool = False) -> None:
        """Load windows of a table in any order: some of those that are left, or the rest."""
        left = self.left[table.name]
        keys = list(left) if rest else self.rng.sample(left, self.rng.randint(min(1, len(left)), len(left)))
        if not keys:
            return
        began = time.monotonic()
        command = self._begin("load", self.topic(table), *keys)
        if kill is None:
            done = self._ended(command)
            self._check(done, f"`load {table.name}`", (0, 1))
            self.longest = time.monotonic() - began
            self.left[table.name] = [key for key in left if key not in keys]
            return
        if command.outlives(self.rng.uniform(0.2, 1.0) * self.longest):
            if kill == "load":
                command.kill()
            else:
                self.platform.kill("spark")
            self.found.kills[kill] += 1
        self._ended(command)
        if not self.platform.is_alive("spark"):
            self.platform.start("spark")

    def _fold(self, table: Table, *, kill: bool = False, must: bool = False) -> None:
        command = self._begin("fold", self.topic(table))
        if kill and command.outlives(self.rng.uniform(0.5, 1.0) * self.longest / 2):
            command.kill()
            self.found.kills["fold"] += 1
        done = self._ended(command)
        self.found.folds += 1
        if must:
            self._check(done, f"`fold {table.name}`", (0,))

    def _begin(self, *arguments: str) -> WarmCommand:
        self.found.loads += arguments[0] == "load"
        self.begun += 1
        output = self.root / "commands" / f"{self.begun:03}-{arguments[0]}.out"
        return self.commands.begin(arguments, {**self.platform.environ, "COLUMNS": "150"}, output)

    def _ended(self, command: WarmCommand) -> Answer:
        assert not command.outlives(_BOUND), f"a command took too long: {command.output}"
        return Answer(command.code(), command.output.read_text())

    def _command(self, *arguments: str) -> Answer:
        return self._ended(self._begin(*arguments))

    def _check(self, done: Answer, what: str, codes: Sequence[int]) -> None:
        if done.code not in codes or "Traceback" in done.text:
            self.found.anomalies.append(f"{what} exited with code {done.code}: {done.text[-1500:]!a}")

    # --- how far the connector is -----------------------------------------------------------------------------

    def _end(self, table: Table) -> int:
        cluster = self.platform.cluster
        return sum(found.offset for found in cluster.high_watermarks(cluster.topic(self.topic(table))).values())

    def _position(self) -> str:
        """Return the end of the database's log."""
        self.cursor.execute("SELECT pg_current_wal_insert_lsn()")
        return str(self.cursor.fetchone()[0])

    def _is_confirmed(self, position: str) -> bool:
        """Return True if the connector has sent everything up to a position in the database's log."""
        self.cursor.execute(
            "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s", [position, self.prefix]
        )
        found = self.cursor.fetchone()
        return found is not None and bool(found[0])

    def _wait_for_records(self, table: Table, number: int, or_until: str = "FFFFFFFF/0") -> None:
        """Wait until the topic has so many records, or until the connector has confirmed a position."""
        wait_until(
            f"the topic has {number} records",
            lambda: self._end(table) >= number or self._is_confirmed(or_until),
            _BOUND,
        )

    def _wait_until_sent(self) -> None:
        """Wait until the connector has confirmed everything. A task that failed is started again, as an operator would do."""
        position = self._position()

        def sent() -> bool:
            if self.connector.has_failed:
                self.found.kills["restart of a failed task"] += 1
                self._start_killed()
            return self._is_confirmed(position)

        wait_until("the connector has sent every change", sent, _BOUND)

    # --- the judge --------------------------------------------------------------------------------------------

    def _judge(self, table: Table) -> tuple[set[Named], Said]:
        """Judge the comparison, the state and the dead letters of a table. Return which keys the connector lost, and what
        the topic says."""
        records = consumed(self.platform.bootstrap, self.topic(table))
        said = judge.replay(records, table.key, table.known)
        there = table.rows(self.cursor)
        lost = judge.differences(there, said.rows, table.known)
        done = self._command("compare-postgres", self.topic(table), "--dsn-env", _VARIABLE, "--wait", "60", "--json")
        answer = _json_of(done)
        if answer is None:
            wrong = [f"`compare-postgres` exited with code {done.code}: {done.text[-1500:]!a}"]
        else:
            wrong = judge.judge_comparison(answer, lost, table.key, len(there))
            self.found.named += sum(answer["counts"].values())
            if set(answer["columns"]) != set(table.known):
                wrong.append(f"columns that were not compared: {answer['not_compared']}")
        expected = judge.replay(records, table.key, table.known, whole=table.whole).rows
        wrong += judge.judge_state(self._state(table), expected, table.known)
        letters = self._rows(f"dead_letters/{self.topic(table)}")
        if len(letters) != said.incomplete:
            wrong.append(f"{len(letters)} dead letters, but {said.incomplete} incomplete events")
        self.found.anomalies += [f"{table.name}: {each}" for each in wrong]
        return lost, said

    def _state(self, table: Table) -> dict[Key, Row]:
        names = list(table.known)
        rows = self._rows(f"state/{self.topic(table)}")
        return {judge.key_of(row, table.key): {name: row[name] for name in names} for row in rows}

    def _rows(self, name: str) -> list[Row]:
        found: list[Row] = DeltaTable(str(self.root / "lake" / name)).to_pyarrow_table().to_pylist()
        return found


def consumed(bootstrap: str, topic: str) -> list[Record]:
    """Return all committed records of a topic with one partition, in their order."""
    options = {
        "bootstrap.servers": bootstrap,
        "group.id": "judge",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer({**options, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Record] = []
    with closing(consumer):
        while True:
            message = consumer.poll(60)
            assert message is not None, f"the consumer of {topic} got no answer"
            error = message.error()
            if error is None:
                found.append((message.key(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise AssertionError(error)


def _json_of(done: Answer) -> Mapping[str, Any] | None:
    """Return the JSON object that a command printed after its progress."""
    start = done.text.find("{\n")
    found: Mapping[str, Any] | None = None if start < 0 else json.JSONDecoder().raw_decode(done.text, start)[0]
    return found
