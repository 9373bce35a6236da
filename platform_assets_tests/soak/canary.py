"""A day of hostile strings and secrets: all credentials are canaries, and all inputs carry attacks. Afterwards,
everything is searched for both.

The platform is started by `up --secure --registry`, with PostgreSQL for Dagster if the machine has it, an object store
for backups, and a hostile schema registry. The day includes loads, decoding, decisions, erasures and errors, and visits
to every page of the UI.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import sys
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.services import platform, state
from platform_assets.services.dagster_services import POSTGRES_VARIABLE
from platform_assets.services.home import CHECKOUT, Home
from platform_assets.services.run_launcher import LIBRARIES, PLATFORM
from platform_assets_tests.soak import judges, pages
from platform_assets_tests.soak.hostile import (
    ARGUMENT,
    CONTROLS,
    FILE_NAME,
    LONG,
    MARKUP,
    TEXT,
    TOPICS,
    HostileBroker,
    hostile_broker,
)
from platform_assets_tests.soak.judges import Looked, Secret
from platform_assets_tests.support.fake_registry import FakeRegistry, fake_registry
from testbed import browser, postgres
from testbed.homes import home_at, service_environment
from testbed.loads import wait_until
from testbed.object_store import ObjectStore, object_store

_FORKED: Final = multiprocessing.get_context("forkserver")
"""Context for commands that run as separate processes. They are forked from a process that has already imported the
largest packages."""
_FORKED.set_forkserver_preload(
    [*LIBRARIES, PLATFORM, "platform_assets.definitions", "platform_assets.cli.main", "__main__"]
)
_DAGSTERS: Final = frozenset({"dagster-daemon", "dagster-webserver"})
_SPARK: Final = frozenset({"spark"})
_PATIENCE: Final = 900.0
_WINDOW: Final = timedelta(minutes=5)
_RECORDS: Final = 30
_TOPIC: Final = TOPICS[0]
_LOCATION: Final = {"repositoryLocationName": "platform_assets", "repositoryName": "__repository__"}
_LAUNCH: Final = """mutation Launch($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_FINISHED: Final = "query Run($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"

HEADER: Final = (
    "| secrets | commands | runs | files | MB | table rows | PostgreSQL rows | processes | pages | with hostile text | "
    "hostile strings shown | requests | elements | seconds | findings |\n|" + 14 * "--:|" + "---|"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Actions of the day, the amount of data that was searched, and findings."""

    secrets: int
    commands: Counter[str]
    runs: int
    files: Looked
    tables: Looked
    rows: Looked
    processes: Looked
    crawled: pages.Crawled
    seconds: float
    anomalies: tuple[str, ...]

    def line(self) -> str:
        """Return a Markdown table row."""
        shown = "; ".join(ascii(each)[1:-1].replace("|", "\\|") for each in self.anomalies[:20])
        return (
            f"| {self.secrets} | {self.commands.total()} | {self.runs} | {self.files.files:,} | {self.files.size / 1e6:,.0f} | "
            f"{self.tables.files:,} | {self.rows.files:,} | {self.processes.files:,} | {self.crawled.pages} | "
            f"{self.crawled.hostile.total()} | {len(self.crawled.shown)} | {self.crawled.requests:,} | "
            f"{self.crawled.links:,} | {self.seconds:.0f} | {len(self.anomalies)} {shown} |"
        )

    def details(self) -> str:
        """Return lists of the commands that were run, of the kinds of pages that showed hostile text, of the hostile
        strings shown, and of all findings."""
        kinds = (f"{kind} {number}" for kind, number in sorted(self.crawled.hostile.items()) if number)
        return "\n".join(
            (
                "commands: " + ", ".join(ascii(f"{name[:20]} {n}")[1:-1] for name, n in sorted(self.commands.items())),
                "pages with hostile text: " + ", ".join(kinds),
                *(f"shown as text: {each[:70]!a}" for each in sorted(self.crawled.shown)),
                *(f"found: {each!a}" for each in self.anomalies),
            )
        )


@dataclass
class Day:
    """The platform below `root`, which `serving` starts, and the output of its commands."""

    root: Path
    registry: FakeRegistry
    store: ObjectStore
    database: str
    commands: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = datetime.now(UTC)
        self.home: Home = home_at(self.root / "home")
        self.said, self.private = self.root / "said", self.root / "private"
        self.said.mkdir(parents=True)
        self.private.mkdir(mode=0o700)
        (self.root / "defs").mkdir()
        self.registry_password = secrets.token_urlsafe(24)
        self.environ = {
            **service_environment(),
            **self.store.environment(),
            "PLATFORM_HOME": str(self.home.root),
            "PLATFORM_JARS": str(self.home.jars),
            "PLATFORM_DEFS": str(self.root / "defs"),
            "LAKE_ROOT": str(self.root / "lake"),
            "SCHEMA_REGISTRY_URL": self.registry.url,
            "SCHEMA_REGISTRY_USER": "reader",
            "SCHEMA_REGISTRY_PASSWORD": self.registry_password,
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            "KAFKA_HEAP": "512m",
            "SPARK_HEAP": "2g",
            "COLUMNS": "150",
            **({POSTGRES_VARIABLE: self.database} if self.database else {}),
        }

    def secrets(self) -> list[Secret]:
        """Return every secret of the platform. The brokers' secrets are those that `up` creates."""
        folder = self.home.root / "security"
        passwords: dict[str, str] = json.loads((folder / "security.json").read_text())["passwords"]
        clients = ClientSettings.from_environment(self._env()).options["sasl.password"]
        keys = [p for p in sorted(folder.iterdir()) if "PRIVATE KEY" in p.read_text(errors="replace")]
        token = (self.home.run / "spark.token").read_text().strip()
        return [
            *(
                Secret(f"Kafka's password of {name}", value, _DAGSTERS | _SPARK if value == clients else frozenset())
                for name, value in passwords.items()
            ),
            *(Secret(f"the key {p.name}", p.read_text().splitlines()[1], frozenset()) for p in keys),
            Secret("Spark's token", token, _DAGSTERS | _SPARK),
            Secret("the registry's password", self.registry_password, _DAGSTERS | _SPARK),
            Secret("the object store's secret", self.store.secret, _DAGSTERS),
            *([Secret("PostgreSQL's password", self._database_password(), _DAGSTERS)] if self.database else []),
        ]

    def _database_password(self) -> str:
        return self.database.partition("//")[2].partition("@")[0].partition(":")[2]

    def command(
        self, *arguments: str, timeout: float = 300, changed: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int, str]:
        """Run `platform-assets` with these arguments; return its exit code and its output. If the output contains
        anything on which a terminal would act, this is a finding."""
        number = self.commands.total() + 1
        self.commands[arguments[0]] += 1
        # These print secrets, as documented.
        folder = self.private if arguments[0] in ("env", "read") else self.said
        said = folder / f"{number:03}-{self.commands[arguments[0]]}.txt"
        process = _FORKED.Process(target=_command, args=(arguments, {**self.environ, **changed}, str(said)))
        began = time.monotonic()
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            self.findings.append(f"{arguments[0]} did not end within {timeout:g} s")
        print(f"command {number}, {arguments[0][:20]!a}: {time.monotonic() - began:.0f} s", flush=True)
        text = said.read_bytes()
        if b"Traceback" in text:
            self.findings.append(f"{arguments} ends in a traceback: {text[-300:]!r}")
        return process.exitcode or 0, text.decode(errors="surrogateescape")

    def _env(self) -> dict[str, str]:
        code, said = self.command("env", "--json")
        assert code == 0, said
        # Messages about services that are not running were printed earlier.
        found: dict[str, str] = json.loads(said[said.index("{") :])
        return found

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run all services while the block runs."""
        try:
            code, said = self.command("up", "--secure", "--brokers", "1", "--service", "kafka")
            assert code == 0, said
            self.settings = ClientSettings.from_environment(self._env())
            self.produce()
            code, said = self.command("up", timeout=600)
            assert code == 0, said
            # The topics use the hostile registry's address; the embedded registry runs only so that it is searched as
            # well.
            without = {name: value for name, value in self.environ.items() if name != "SCHEMA_REGISTRY_URL"}
            platform.start_service("registry", self.home, report=_quiet, environ=without)
            yield
        finally:
            platform.down(self.home, report=_quiet)

    # --- inputs ------------------------------------------------------------------------------------------------

    def declare(self) -> None:
        """Write the YAML of all topics."""
        fields = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
        formats: dict[str, dict[str, Any]] = {
            TOPICS[0]: {"format": "json", "schema": "id BIGINT NOT NULL, name STRING"},
            TOPICS[1]: {"format": "csv", "schema": "id BIGINT NOT NULL, name STRING"},
            TOPICS[2]: {
                "format": "patterns",
                "patterns": [{"name": "a", "regex": r"(?P<id>\d+) (?s:(?P<name>.*))", "types": {"id": "BIGINT"}}],
            },
            TOPICS[3]: {"format": "json", "schema": "id BIGINT NOT NULL, name STRING", "registry": True},
            TOPICS[4]: {"format": "avro", "schema": fields, "registry": True},
            TOPICS[5]: {"format": "protobuf", "schema": "id BIGINT NOT NULL", "message": "R", "registry": True},
        }
        for number, (topic, value) in enumerate(formats.items()):
            expected: list[dict[str, Any]] = (
                [] if number > 3 else [{"column": "name", "in": [f"{{% raw %}}{ARGUMENT}{{% endraw %}}", "b"]}]
            )
            self._write(
                topic,
                {
                    "topic": topic, "window": "*/5 * * * *", "start": (self.now - _WINDOW).isoformat(),
                    "sensor_interval_seconds": 15, "deep_audit_running": False,
                    "decode": {"value": value, "key": {"format": "string"}, "expect": expected,
                               "dead_letters": {"warn": 0.1, "fail": 0.2}},
                },
            )  # fmt: skip

    def _write(self, folder: str, attributes: dict[str, Any]) -> Path:
        file = self.root / "defs" / folder / "defs.yaml"
        file.parent.mkdir(exist_ok=True)
        document = {"type": "platform_assets.components.TopicTable", "attributes": attributes}
        # Quoted, and with characters that YAML does not allow as escapes.
        file.write_text(json.dumps(document))
        return file

    def register(self) -> None:
        """Make the registry return schemas whose names, documentation and references carry attacks."""
        record = {"type": "record", "name": "R", "doc": TEXT, "fields": [{"name": "id", "type": "long", "doc": TEXT}]}
        schemas: dict[int, dict[str, Any]] = {
            1: {"schema": json.dumps(record)},
            2: {"schema": json.dumps({**record, "name": TEXT})},
            3: {"schema": json.dumps({**record, "fields": [{"name": TEXT, "type": TEXT}]})},
            4: {"schemaType": "PROTOBUF", "schema": f'syntax = "proto3"; import "{_quoted(TEXT)}"; message R {{ int64 id = 1; }}'},
            5: {"schemaType": "PROTOBUF", "schema": f'syntax = "proto3"; message R {{ int64 id = 1; {TEXT} }}'},
            6: {"schemaType": "JSON", "schema": json.dumps({"title": TEXT, "properties": {"name": {"const": TEXT}}})},
            7: {"schemaType": "JSON", "schema": json.dumps({"$ref": TEXT})},
            8: {"schemaType": TEXT, "schema": TEXT},
            9: {"schema": TEXT, "references": [{"name": TEXT, "subject": TEXT, "version": 1}]},
        }  # fmt: skip
        for number, document in schemas.items():
            kind = {"schemaType": document["schemaType"]} if "schemaType" in document else {}
            self.registry.has(f"/schemas/ids/{number}", {**document, **kind})
        other = f"/subjects/{quote(TEXT, safe='')}/versions/1"
        self.registry.has(
            other, {"subject": TEXT, "version": 1, "id": 10, "schema": json.dumps({**record, "name": "Other"})}
        )
        self.registry.unknown = (404, {}, json.dumps({"error_code": 40403, "message": TEXT}).encode())

    def produce(self) -> None:
        """Produce records with hostile keys, values and headers. Their timestamps are before the last window boundary."""
        admin = AdminClient({**self.settings.librdkafka(), "log_level": 0})
        for made in admin.create_topics([NewTopic(t, 1, 1, config={"retention.ms": "-1"}) for t in TOPICS]).values():
            made.result(60)
        wait_until("topics are known", lambda: set(TOPICS) <= set(admin.list_topics(timeout=30).topics))
        producer = Producer({**self.settings.librdkafka(), "log_level": 0, "message.max.bytes": 2_000_000})
        stamp = round((self.now - 2 * _WINDOW).timestamp() * 1000)
        headers = [(TEXT, TEXT.encode()), (LONG, LONG.encode()), ("__value_schema_id", b"\0" + TEXT.encode())]
        for topic in TOPICS:
            for number, value in enumerate(_values(topic)):
                key = (TEXT if number % 2 else LONG).encode() if number % 5 else b"erased"
                producer.produce(topic, value, key, 0, timestamp=stamp, headers=headers if number % 3 else headers[:2])
        assert producer.flush(60) == 0

    # --- actions -----------------------------------------------------------------------------------------------

    def happen(self, broker: HostileBroker) -> None:
        """Run the day itself. Its commands may fail, so their exit codes are ignored. If a step cannot continue, this
        is a finding."""
        lake = Ledger(Lake.at(self.root / "lake"))
        wait_until("windows are sealed", lambda: all(lake.windows(topic) for topic in TOPICS), _PATIENCE)
        # All records are older than the first window boundary.
        (key,) = {lake.windows(topic)[0].key for topic in TOPICS}
        tables = [table for topic in TOPICS for table in (TableRef.raw(topic), TableRef("decoded", topic))]
        wait_until("windows are decoded", lambda: all(key in lake.receipts(table) for table in tables), _PATIENCE)
        steps: tuple[Callable[[], None], ...] = (
            lambda: self._failing_registry(key),
            lambda: self._commands(key),
            lambda: self._files_of_strangers(key),
            lambda: self._decisions(key),
            lambda: self._broker_that_attacks(broker, key),
            self._mistakes_in_yaml,
            lambda: self._backups(key),
            self._end_of_launched_runs,
        )
        for step in steps:
            try:
                step()
            except Exception:  # noqa: BLE001 - the steps after it are to be seen too
                self.findings.append(f"a step of the day failed: {traceback.format_exc()[-1000:]}")

    def _backups(self, key: str) -> None:
        self.command("backup", f"{self.store.root('backups')}/{secrets.token_hex(4)}")
        self.command("backup", str(self.root / "backups"))
        self.command("status", "--json")
        self.command("load", f"raw/{TOPICS[1]}", key)
        self.command("audit", f"raw/{TOPICS[1]}", "--deep", timeout=600)
        self.command("audit", f"decoded/{_TOPIC}", "--deep", timeout=600)

    def _end_of_launched_runs(self) -> None:
        for run in self.launched:
            wait_until(f"run {run} has ended", lambda run=run: self.status_of(run) in ("SUCCESS", "FAILURE"), _PATIENCE)  # type: ignore[misc]

    def _failing_registry(self, key: str) -> None:
        before = self.registry.unknown
        for status, document, topic in (
            (500, json.dumps({"error_code": 50001, "message": TEXT}), TOPICS[4]),
            (403, json.dumps({"error_code": TEXT, "message": TEXT, "error": TEXT}), TOPICS[4]),
        ):
            self.registry.unknown = (status, {}, document.encode())
            self.command("load", f"decoded/{topic}", key)
        self.registry.unknown = before
        self.command("forget-schemas", "1")

    def _commands(self, key: str) -> None:
        self.command("load", f"decoded/{_TOPIC}", key)
        for topic in TOPICS:
            self.command("dead-letters", f"dead_letters/{topic}", "--samples", "20")
        for arguments in (
            ("dead-letters", _TOPIC, key, "--json"), ("dead-letters", _TOPIC, "--send-to", TOPICS[1]),
            ("dead-letters", _TOPIC, "--send-to", ARGUMENT), ("replay", f"raw/{_TOPIC}", key, "--into", "again"),
            ("status",), ("check",), ("check", "--json"), ("read", f"decoded/{_TOPIC}"), ("audit", f"raw/{TOPICS[2]}"),
            ("load", ARGUMENT), ("load", f"raw/{_TOPIC}", ARGUMENT), ("audit", ARGUMENT), ("replay", f"raw/{_TOPIC}", ARGUMENT),
            ("restore", ARGUMENT), ("backup", ARGUMENT), ("report-loads",), ("prune-runs",), ("find-topics",), (ARGUMENT,),
        ):  # fmt: skip
            self.command(*arguments)

    def _files_of_strangers(self, key: str) -> None:
        """Put hostile file names, folders and rows into the lake, and add a table that another program wrote."""
        import pyarrow as pa
        from deltalake import write_deltalake

        lake = self.root / "lake"
        for folder in ("raw", "decoded", "dead_letters"):
            for path in sorted((lake / folder).iterdir())[:1]:
                (path / FILE_NAME).write_bytes(b"PAR1")
                (path / f"window={FILE_NAME}").mkdir()
                (path / f"window={FILE_NAME}" / FILE_NAME).write_bytes(b"PAR1")
        (lake / "raw" / FILE_NAME).mkdir()
        (lake / FILE_NAME).write_text(TEXT)
        # Rows with the raw table's own columns and an invalid window.
        from deltalake import DeltaTable

        table = DeltaTable(lake / "raw" / TOPICS[1])
        rows = table.to_pyarrow_dataset().to_table().slice(0, 1)
        at = rows.column_names.index("window")
        write_deltalake(table, rows.set_column(at, "window", pa.array([MARKUP[0] + CONTROLS[0]])), mode="append")
        self.command("status")
        self.command("audit", f"raw/{TOPICS[1]}")
        self.command("vacuum", f"raw/{_TOPIC}")
        self.command("load", f"raw/{TOPICS[1]}", key)

    def _decisions(self, key: str) -> None:
        said = ("--reason", ARGUMENT, "--by", ARGUMENT)
        file = self.root / "a key"
        file.write_bytes(b"erased")
        self.command("erase", f"raw/{_TOPIC}", "--key-file", str(file), *said, "--yes")
        self.command("erase", f"raw/{_TOPIC}", "--key", ARGUMENT, *said, "--dry-run")
        self.command("erase", f"raw/{TOPICS[2]}", "--offsets", "0:1-2", *said, "--yes")
        self.command("park", f"raw/{TOPICS[3]}", "2020-01-01-00:00", *said)
        self.command("park", f"decoded/{TOPICS[4]}", key, *said)
        self.command("unpark", f"decoded/{TOPICS[4]}", key, *said)
        self.command("accept-loss", f"raw/{_TOPIC}", key, *said, "--yes")
        self.command("accept-generation", _TOPIC, *said, "--yes")
        self.command("accept-cluster", _TOPIC, *said, "--yes")
        common = {"topic": _TOPIC, "reason": TEXT.replace("\x00", ""), "by": ARGUMENT}
        launched = [
            self.launch("erase_records", "erase_named_records", {**common, "offsets": ["0:3-4"], "dry_run": False}),
            self.launch("accept_loss", "accept_loss_of_window", {**common, "window": ARGUMENT, "dry_run": False}),
            self.launch("park_windows", "park_each_window", {**common, "windows": [key, ARGUMENT], "decoded": True}),
        ]
        self.launched += filter(None, launched)

    def _broker_that_attacks(self, broker: HostileBroker, key: str) -> None:
        login = {
            "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
            "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "KAFKA_SASL_MECHANISM": "PLAIN",
            "KAFKA_SASL_USERNAME": "reader",
            "KAFKA_SASL_PASSWORD": self.settings.options["sasl.password"],
        }
        for arguments in (("check",), ("status",), ("load", f"raw/{_TOPIC}", key)):
            self.command(*arguments, changed=login)
        assert broker.logins, "no client logged in to the hostile broker"

    def _mistakes_in_yaml(self) -> None:
        for field_name, value in (
            ("window", TEXT),
            ("topic", TEXT),
            (TEXT, TEXT),
            ("start", TEXT),
            ("description", TEXT),
        ):
            file = self._write(
                "mistaken", {"topic": "a", "window": "0 * * * *", "start": "2026-01-01", field_name: value}
            )
            self.command("check")
            file.unlink()
        (self.root / "defs" / "mistaken" / "defs.yaml").write_text(TEXT)
        self.command("check", "--json")
        self.command("up", timeout=600)
        (self.root / "defs" / "mistaken" / "defs.yaml").unlink()

    # --- Dagster's own interface ---------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Return the address of the UI."""
        return state.read_records(self.home)["dagster-webserver"].address

    def graphql(self, query: str, **variables: Any) -> Any:
        """Send a GraphQL query to the UI; return the answer."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.address}/graphql", body, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=120) as answer:
            return json.load(answer)

    def launch(self, job: str, op: str, config: dict[str, Any]) -> str:
        """Launch a job as the UI does; return the run id."""
        selector = {**_LOCATION, "jobName": job}
        given = {"ops": {op: {"config": config}}}
        found = self.graphql(_LAUNCH, p={"selector": selector, "runConfigData": given})
        answer = (found.get("data") or {}).get("launchRun") or {}
        if "run" not in answer:
            self.findings.append(f"{job} could not be launched: {str(found)[:500]}")
            return ""
        return str(answer["run"]["runId"])

    def status_of(self, run: str) -> str:
        """Return the status of a run."""
        return str(self.graphql(_FINISHED, id=run)["data"]["runOrError"].get("status"))

    def first_pages(self) -> list[str]:
        """Return the pages of runs, checks and assets that show text from records, and the pages from which all other
        pages can be reached."""
        found = self.graphql(
            """{ runsOrError(limit: 10) { ... on Runs { results { runId } } }
                 assetNodes { assetKey { path } assetChecksOrError { ... on AssetChecks { checks { name } } }
                   assetMaterializations(limit: 1) { timestamp } assetObservations(limit: 1) { timestamp } } }"""
        )["data"]
        checks: list[str] = []
        raw: list[str] = []
        events: list[str] = []
        views: list[str] = []
        for node in found["assetNodes"]:
            path = "/assets/" + "/".join(node["assetKey"]["path"]) + "?view="
            known = (node["assetChecksOrError"] or {}).get("checks") or ()
            listed = checks if node["assetKey"]["path"][0] == "decoded" else raw
            listed += [f"{path}checks&checkDetail={check['name']}" for check in known]
            newest = (*node["assetMaterializations"], *node["assetObservations"])
            events += [f"{path}events&time={each['timestamp']}" for each in newest]
            views += [path + view for view in ("overview", "checks", "definition", "partitions")]
        runs = [f"/runs/{each['runId']}" for each in found["runsOrError"]["results"]]
        others = ["/", "/runs", "/assets", "/overview/activity", "/automation", "/deployment", "/asset-groups", "/jobs"]
        return [*runs, *sorted(checks), *events, *others, *sorted(raw), *sorted(views)]

    def runs(self) -> int:
        """Return the number of Dagster runs."""
        found = self.graphql("{ runsOrError { ... on Runs { count } } }")
        return int(found["data"]["runsOrError"]["count"])


def run(root: Path, *, most_pages: int = 80) -> Outcome:
    """Run the whole day below `root`. The scenario needs Chromium. PostgreSQL is used only if the machine has it."""
    chromium = browser.executable(os.environ)
    if chromium is None:
        raise RuntimeError(f"no Chromium: {browser.REMEDY}")
    began = time.monotonic()
    root.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        database = ""
        if postgres.programs() is not None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="canary-postgres-")))
            folder.chmod(0o755)
            server = stack.enter_context(postgres.server(folder))
            database = server.url
        secret = secrets.token_urlsafe(24)
        store = stack.enter_context(object_store(home_at(root / "home"), root / "store", secret))
        registry = stack.enter_context(fake_registry())
        broker = stack.enter_context(hostile_broker())
        day = Day(root, registry, store, database)
        day.declare()
        day.register()
        with day.serving():
            day.happen(broker)
            secret_values = day.secrets()
            services = {record.mark: name for name, record in state.read_records(day.home).items()}
            running = judges.processes(services, secret_values)
            runs = day.runs()
            crawled = pages.crawl(chromium, day.address, day.first_pages(), most_pages)
            rows = judges.rows(database, secret_values) if database else Looked()
            if database:
                stored = judges.files(folder, secret_values, [])
        tables = judges.tables(root / "lake", secret_values)
        private = [day.home.root / "security", day.home.run, day.private]
        found = judges.files(root, secret_values, [*private, root / "store"], root / "defs")
        if database:
            found.files, found.size = found.files + stored.files, found.size + stored.size
            found.found += stored.found
    asked = sum("authorization" in headers for _, headers in registry.asked)
    anomalies = [*day.findings, *running.found, *crawled.found, *rows.found, *tables.found, *found.found]
    if not asked:
        anomalies.append("the registry was never sent its password")
    if not crawled.hostile.total():
        anomalies.append("no page showed a hostile string, so the crawl proves nothing")
    return Outcome(
        len(secret_values), day.commands, runs, found, tables, rows, running, crawled, time.monotonic() - began,
        tuple(dict.fromkeys(anomalies)),
    )  # fmt: skip


def _command(arguments: tuple[str, ...], environ: dict[str, str], said: str) -> None:
    """Run one `platform-assets` command in this process, and write its output to the file `said`."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(CHECKOUT)
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for each in (1, 2):
        os.dup2(descriptor, each)
    sys.argv = ["platform-assets", *arguments]
    from platform_assets.cli.main import main

    main()


def _values(topic: str) -> Iterator[bytes]:
    """Return hostile values, many of which cannot be decoded."""
    name = json.dumps(TEXT)
    for number in range(_RECORDS):
        attack = (*MARKUP, *CONTROLS, TEXT, LONG)[number % (len(MARKUP) + len(CONTROLS) + 2)]
        if topic in (TOPICS[0], TOPICS[3]):
            value = (
                f'{{"id": {number}, {name}: 1, {name}: 2}}'.encode(),
                json.dumps({"id": number, "name": attack}).encode(),
                json.dumps({"id": attack, "name": attack}).encode(),
                json.dumps({"id": number, attack: {attack: [attack]}}).encode(),
                attack.encode(),
            )[number % 5]
            yield (b"\0" + (6 + number % 4).to_bytes(4, "big") if topic == TOPICS[3] else b"") + value
        elif topic == TOPICS[1]:
            yield (f"{number},{_csv(attack)}", f"{_csv(attack)},{attack}", attack, f'{number},"{attack}')[
                number % 4
            ].encode()
        elif topic == TOPICS[2]:
            yield (f"{number} {attack}", attack, f"{attack} {number}")[number % 3].encode()
        else:
            schema = (number % 12 if number % 4 else (1 if topic == TOPICS[4] else 4)).to_bytes(4, "big")
            yield b"\0" + schema + (b"\x02" if number % 2 else attack.encode())


def _csv(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return text.replace('"', "'").replace("\n", " ").replace("\x00", "")


def _quiet(line: str) -> None:
    """Discard a line of output, because the services' logs already contain the start-up messages."""
