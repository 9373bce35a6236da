"""Run one example: start the services, send its data to Kafka, load and derive its tables, and compare the result.

An example is a folder with declarations in `defs/`, and a module `example.py` that has one `Example`. The data is from
a Python package, or in the folder. Its time runs faster or slower, by default 1,440 times as fast: a day of the source
becomes a window of one minute. The last window ends when the example starts.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from platform_assets.demo.comparison import Comparison as Comparison
from platform_assets.demo.comparison import rows_compared as rows_compared
from platform_assets.errors import ConfigurationError, PlatformError
from platform_assets.services import dagster_services, platform
from platform_assets.services.home import CHECKOUT, HOME_VARIABLE, Home
from platform_assets.services.platform import CLIENT_SETTINGS, SERVICES, UpOptions
from platform_assets.services.project import DEFS_VARIABLE

if TYPE_CHECKING:
    import dagster as dg

    from platform_assets.cli.environment import Environment
    from platform_assets.lake.location import Lake
    from platform_assets.model.declaration import TopicDeclaration

FOLDER: Final = Path(__file__).parent
START: Final = "EXAMPLE_START"
"""Variable with the start of the first window. The YAML of each example reads it."""
SPEED: Final = 1440
"""Seconds of the source's time per second of Kafka's time, unless an example has another speed."""
ROUNDS: Final = 2
"""Parts of the windows that are loaded one after the other. Derived tables are computed after each part."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record to send.

    Attributes:
        topic: the topic.
        at: time in the source when the record was sent, timezone-aware.
        value: the value.
        key: the key, which chooses the Kafka partition.
    """

    topic: str
    at: datetime
    value: bytes | None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """One use case.

    Attributes:
        name: name of the folder.
        first: time in the source at which the first window starts, timezone-aware.
        topics: maps each topic to its number of partitions.
        records: returns the records in the order of their times.
        compare: compares the tables of a lake with the source file.
        config: configuration of all topics.
        speed: seconds of the source's time per second of Kafka's time.
        results: maps each topic that the example itself publishes to its number of partitions.
    """

    name: str
    first: datetime
    topics: Mapping[str, int]
    records: Callable[[], Sequence[Record]]
    compare: Callable[[Lake], list[Comparison]]
    config: Mapping[str, str] = field(default_factory=dict)
    speed: float = SPEED
    results: Mapping[str, int] = field(default_factory=dict)

    @property
    def window(self) -> timedelta:
        """Part of the source's time that becomes a window of one minute."""
        return timedelta(seconds=60 * self.speed)

    @property
    def defs(self) -> Path:
        """Folder of the declarations."""
        return FOLDER / self.name / "defs"


def names() -> list[str]:
    """Return the names of all examples."""
    return sorted(path.parent.name for path in FOLDER.glob("*/example.py"))


def example(name: str) -> Example:
    """Return the example with this name. Raises ConfigurationError."""
    if name not in names():
        raise ConfigurationError(f"{name!r} is not an example; the examples are: {', '.join(names())}")
    found = importlib.import_module(f"examples.{name}.example").EXAMPLE
    assert isinstance(found, Example)
    return found


def compare(
    lake: Lake, table: str, columns: Sequence[str], expected: Iterable[tuple[Any, ...]], figures: str = ""
) -> Comparison:
    """Compare these columns of a table with the expected rows, in any order. The table is read without Spark."""
    from deltalake import DeltaTable

    rows = DeltaTable(f"{lake.root}/{table}").to_pyarrow_table(columns=list(columns)).to_pylist()
    return rows_compared(table, (tuple(row[c] for c in columns) for row in rows), expected, figures)


def run(which: Example, report: Callable[[str], None] = print) -> list[Comparison]:
    """Run an example with the services in the environment, and an empty lake. Return the comparisons.

    The environment has `PLATFORM_HOME`, and the addresses of services that this home did not start. `PLATFORM_DEFS`
    and `EXAMPLE_START` are set here, for this process and for the home's services.

    Raises:
        PlatformError: a service is missing, a window could not be loaded, or a check failed.
    """
    from platform_assets.cli.environment import Environment

    home = Home.from_environment()
    records = which.records()
    last = max(record.at for record in records)
    windows = math.floor((last - which.first) / which.window) + 1
    start = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=windows)
    os.environ[DEFS_VARIABLE] = str(which.defs)
    os.environ[START] = f"{start:%Y-%m-%dT%H:%M:%SZ}"
    home.prepare()
    home.variables_file.write_text(f"{START}={os.environ[START]}\n", encoding="utf-8")
    dagster_services.prepare(home)
    environment = Environment.of_process()
    for name, value in environment.variables.items():
        os.environ.setdefault(name, value)
    _send(which, records, start, environment)
    report(
        f"sent {len(records):,} records to {', '.join(which.topics)}: {windows} windows of a minute, each with {which.window} "
        "(h:mm:ss) of the source"
    )
    _load_and_derive(environment, report)
    return which.compare(environment.ledger().lake)


def _send(which: Example, records: Sequence[Record], start: datetime, environment: Environment) -> None:
    """Create the topics and send all records with the times that they have in Kafka."""
    from confluent_kafka import KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = environment.settings().librdkafka()
    made = [NewTopic(name, n, -1, config=dict(which.config)) for name, n in {**which.topics, **which.results}.items()]
    admin = AdminClient(settings)
    for created in admin.create_topics(made).values():
        created.result(30)
    failed: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer({**settings, "enable.idempotence": True, "linger.ms": 20, "log_level": 3})
    for record in records:
        at = start + (record.at - which.first) / which.speed
        arguments = {"value": record.value, "key": record.key, "timestamp": round(at.timestamp() * 1000)}
        while True:
            try:
                producer.produce(record.topic, on_delivery=delivered, **arguments)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(60)
    if failed or left:
        raise PlatformError(
            f"{left + len(failed):,} records were not sent: {failed[0] if failed else 'the broker did not answer'}"
        )


def _load_and_derive(environment: Environment, report: Callable[[str], None]) -> None:
    from platform_assets import definitions
    from platform_assets.cli.loads import load_windows
    from platform_assets.components.declared import declarations
    from platform_assets.windows.load import sealing

    declared = list(declarations().values())
    ledger, cluster, instance = environment.ledger(), environment.cluster(), environment.instance()
    if instance is None:
        raise ConfigurationError("DAGSTER_HOME has no instance")
    ledger.create()
    for each in declared:
        while sealing.seal(each, cluster, ledger, datetime.now(UTC), deadline=time.monotonic() + 60).more:
            pass
    found = definitions.defs()
    for part in range(ROUNDS):
        rows = 0
        for each in declared:
            keys = [w.key for w in ledger.windows(each.topic)]
            half = math.ceil(len(keys) / ROUNDS)
            loaded = load_windows(
                each, each.raw_table, keys[part * half : (part + 1) * half], environment, as_json=True
            )
            _refuse(each, loaded.fields, loaded.exit_code)
            rows += sum(w["rows"] for w in loaded.fields["windows"])
        report(f"round {part + 1} of {ROUNDS}: loaded and decoded {rows:,} rows")
        _materialize(found, instance, report)


def _refuse(declared: TopicDeclaration, fields: Mapping[str, Any], exit_code: int) -> None:
    """Raise PlatformError if a window was not loaded, or if a check failed."""
    if exit_code:
        wrong = [w for w in (*fields["windows"], *fields["decoded"], *fields["changes"]) if w["outcome"] == "failed"]
        wrong += [check for check in fields["checks"] if not check["passed"]]
        raise PlatformError(f"topic {declared.topic} was not loaded correctly: {wrong[:3]}")


def _materialize(found: dg.Definitions, instance: dg.DagsterInstance, report: Callable[[str], None]) -> None:
    """Compute the derived tables and publish the published topics in one run, as their sensors would request."""
    keys = [
        key
        for key in found.resolve_asset_graph().get_all_asset_keys()
        if key.path[0] in ("derived", "published") and key in found.resolve_asset_graph().materializable_asset_keys
    ]
    if not keys:
        return
    done = found.resolve_implicit_global_asset_job_def().execute_in_process(
        {"loggers": {"console": {"config": {"log_level": "WARNING"}}}}, instance, asset_selection=keys
    )
    failed = [each for each in done.get_asset_check_evaluations() if not each.passed]
    if failed:
        raise PlatformError(f"check {failed[0].check_name} of {failed[0].asset_key.to_user_string()} failed")
    for event in done.get_asset_materialization_events():
        made = event.step_materialization_data.materialization
        values = {name: value.value for name, value in made.metadata.items()}
        if "groups" in values:
            extent = f"all rows, because {values['because']}" if values["because"] else f"{values['groups']:,} groups"
            report(f"  {made.asset_key.to_user_string()}: {values['dagster/row_count']:,} rows; computed {extent}")


def main(arguments: Sequence[str]) -> int:
    """Run the example that the arguments name. Return the exit code: 0 if all rows are equal."""
    parser = argparse.ArgumentParser("python -m examples", description="Run one example from an empty lake.")
    parser.add_argument("name", choices=names())
    parser.add_argument(
        "--once", action="store_true", help="Stop when done, instead of leaving the UI open until Ctrl-C."
    )
    given = parser.parse_args(arguments)
    which = example(given.name)
    # Dagster says this of parts that the platform and Dagster itself use on purpose.
    warnings.filterwarnings("ignore", message=r".* is (currently in (beta|preview)|superseded)")
    for name in [n for n in os.environ if n.startswith(CLIENT_SETTINGS)]:
        del os.environ[name]
    for name in (platform.SPARK_ADDRESS, platform.LAKE_ROOT, platform.DAGSTER_FOLDER, platform.KAFKA_ADDRESS):
        os.environ.pop(name, None)
    os.environ[HOME_VARIABLE] = str(CHECKOUT / ".platform" / "examples" / which.name)
    os.environ[DEFS_VARIABLE] = str(which.defs)
    home = Home.from_environment()
    print(f"Example {which.name}. Its lake, topics and logs are in {home.root}; each run begins with an empty folder.")
    try:
        platform.down(home, report=lambda _: None)
        with suppress(FileNotFoundError):
            shutil.rmtree(home.root)
        platform.up(home, UpOptions(services=("kafka", "spark")))
        found = run(which)
        for each in found:
            print(each)
        passed = all(each.is_equal for each in found)
        if not given.once:
            _leave_open(home)
        return 0 if passed else 1
    except PlatformError as error:
        print(f"The example failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        platform.down(home, report=lambda _: None)


def _leave_open(home: Home) -> None:
    """Start Dagster and wait for Ctrl-C."""
    platform.up(home, UpOptions(services=SERVICES))
    address = next(s.address for s in platform.running_state(home) if s.service == "dagster-webserver")
    print(f"Dagster UI: {address}. Press Ctrl-C to stop the services.")
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
