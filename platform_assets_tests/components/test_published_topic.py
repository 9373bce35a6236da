"""Published topics: mistakes in their YAML with lines, and the way from YAML to records, evidence and status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from platform_assets.cli.main import main
from platform_assets.components import declared, query_columns
from platform_assets.components.yaml_check import judge
from platform_assets.model.names import identifier
from platform_assets.orchestration.resources import KafkaResource, LakeResource
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.published import consumed
from platform_assets_tests.support.shell import DAGSTER_WARNINGS
from testbed.clients import librdkafka

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

SOURCE = """type: platform_assets.components.TopicTable
attributes:
  topic: orders
  window: "0 * * * *"
  start: "2026-01-01T00:00Z"
  decode: {value: {format: json, schema: "id BIGINT NOT NULL, amount DECIMAL(12, 2)"}}
"""
PUBLISHED = """type: platform_assets.components.PublishedTopic
attributes:
  topic: clean
  table: decoded/orders
  key: id
"""


def declare(root: Path, published: str) -> Path:
    for name, text in (("source", SOURCE), ("published", published)):
        file = root / "defs" / name / "defs.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root / "defs"


def said(root: Path, published: str) -> list[tuple[int, str]]:
    return [(m.line, m.message) for m in judge(declare(root, published)).mistakes]


def test_what_is_right_is_declared(tmp_path: Path) -> None:
    assert said(tmp_path, PUBLISHED) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("  topic: clean", "  topic: or ders", 3, "topic: 'or ders' is not a legal Kafka topic name"),
        ("  topic: clean\n", "", 2, "topic: it is missing: add `topic: orders`"),
        ("topic: clean", "topic: clean.published", 2, "'clean.published' ends with '.published', which is reserved"),
        ("topic: clean", f"topic: {'a' * 240}", 2, f"'{'a' * 240}' is too long"),
        ("decoded/orders", "orders", 4, "table: 'orders' is not a table: write decoded/orders or raw/orders"),
        ("decoded/orders", "typed/orders", 4, "table: 'typed/orders' is not a table name"),
        ("decoded/orders", "decoded/others", 4, "table: decoded/others is not declared: declare topic 'others'"),
        ("decoded/orders", "dead_letters/orders", 2, "dead_letters/orders cannot be published"),
        ("clean", "orders", 2, "decoded/orders cannot be published to topic 'orders'"),
        ("key: id", "key: {format: xml}", 5, "key: format 'xml' is not one of json, text, bytes"),
        ("key: id", "key: {format: text}", 5, "key: format 'text' needs exactly one column"),
        (
            "key: id",
            "key: {format: json, registry: true}",
            5,
            "key: format 'json' does not support `registry`: use avro or protobuf",
        ),
        ("key: id", "key: {format: avro, columns: [id], register: true}", 5, "key: `register` needs `registry: true`"),
        (
            "key: id",
            "key: {format: avro, schema: long, name: a}",
            5,
            "key: `name` is the name of a record whose schema",
        ),
        ("key: id", "value: {format: avro, registry: yes please}", 5, "value: registry must be true or false"),
        ("key: id", "value: {format: avro, message: a}", 5, "value: message is the name of a Protobuf message"),
        ("key: id", "value: {format: avro, subject: 1}", 5, "value: subject must be text"),
        (
            "key: id",
            "value: {format: avro, shema: {}}",
            5,
            "value: unknown field 'shema': use format, columns, schema, name",
        ),
        ("key: id", "tombstones: true", 2, "tombstones need a key"),
        ("key: id", "kee: id", 5, "kee: unknown field: did you mean 'key'?"),
        ("key: id", "corrections: never", 5, "corrections: "),
        ("key: id", "start: yesterday", 5, "start: 'yesterday' is not a window key"),
        ("key: id", "transaction_rows: 0", 2, "transaction_rows must be from 1 to 1,000,000, not 0"),
        ("key: id", "transaction_timeout_seconds: 5", 2, "transaction_timeout_seconds must be from 10 to 900"),
    ],
)
def test_each_mistake_has_its_line(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    ((found, message), *_) = said(tmp_path, PUBLISHED.replace(old, new))
    assert message.startswith(says)
    assert found == line


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("key: id", "key: iid", 5, "key: decoded/orders has no column 'iid': did you mean 'id'?"),
        ("key: id", "value: {format: json, columns: [id, amounts]}", 5, "value: decoded/orders has no column 'amounts': did you mean"),
        ("key: id", "headers: {at: zzz}", 5, "headers: decoded/orders has no column 'zzz': use one of amount, id, kafka_offset"),
        ("decoded/orders\n  key: id", "raw/orders\n  key: id", 5, "key: raw/orders has no column 'id'"),
        ("key: id", "headers: {at: kafka_timestamp}", 0, ""),
        ("key: id", "value: {format: avro, registry: true}", 0, ""),
        ("key: id", "key: {format: avro, schema: long, columns: [id]}", 0, ""),
        ("key: id", "value: {format: protobuf, message: shop.Order, registry: true}", 0, ""),
        ("key: id", "value: {format: protobuf, message: a-b}", 5, "value: value of published/clean: message 'a-b' is not a name"),
        ("key: id", "key: {format: avro, schema: int, columns: [amount]}", 5, "key: key of published/clean: column amount has type"),
        ("key: id", "value: {format: avro, name: a-b}", 5, "value: value of published/clean: name 'a-b' is not an Avro name"),
        ("key: id", "value: {format: avro, columns: [iid]}", 5, "value: decoded/orders has no column 'iid': did you mean 'id'?"),
    ],
)  # fmt: skip
def test_a_column_that_the_table_lacks_has_its_line(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    judged = judge(declare(tmp_path, PUBLISHED.replace(old, new)))
    found = query_columns.unpublishable(judged.published, judged.declared)
    assert [m.line for m in found] == ([line] if line else [])
    assert "".join(m.message for m in found).startswith(says)


DERIVED = """type: platform_assets.components.DerivedTable
attributes:
  table: by_amount
  by: {amount: amount}
  sql: SELECT amount, count(*) AS n FROM decoded.orders GROUP BY amount
"""


@pytest.mark.parametrize(
    ("table", "part", "line", "says"),
    [
        ("state/orders", "key: {columns: [iid]}", 5, "key: state/orders has no column 'iid': did you mean 'id'?"),
        ("state/orders", "key: {columns: [id]}\n  headers: {at: zz}", 6, "headers: state/orders has no column 'zz'"),
        ("state/orders", "key: {format: avro, columns: [id], schema: string}", 5, "key: key of published/clean: column id has type"),
        ("state/orders", "key: {format: avro, columns: [id], schema: long}", 0, ""),
        ("derived/by_amount", "key: {columns: [amounts]}", 5, "key: derived/by_amount has no column 'amounts': did you mean"),
        ("derived/by_amount", "key: amount\n  value: {columns: [n, m]}", 6, "value: derived/by_amount has no column 'm'"),
        ("derived/by_amount", "key: amount\n  value: {columns: [n, amount]}", 0, ""),
    ],
)  # fmt: skip
def test_columns_of_tables_without_windows_have_lines_too(
    tmp_path: Path, table: str, part: str, line: int, says: str
) -> None:
    published = PUBLISHED.replace("decoded/orders", table).replace("key: id", part)
    folder = declare(tmp_path, f"{published}---\n{DERIVED}")
    source = folder / "source" / "defs.yaml"
    key = 'key: {format: json, schema: "id BIGINT NOT NULL"}, value'
    source.write_text(SOURCE.replace("value", key, 1) + "  state: {key: [id]}\n")
    judged = judge(folder)
    assert judged.mistakes == ()
    found = query_columns.unpublishable(judged.published, judged.declared, judged.derived)
    assert [m.line for m in found] == ([line] if line else [])
    assert "".join(m.message for m in found).startswith(says)


def test_a_mistake_in_a_topic_is_not_also_one_of_what_is_made_from_it(tmp_path: Path) -> None:
    derived = """type: platform_assets.components.DerivedTable
attributes:
  table: by_amount
  by: {amount: amount}
  sql: SELECT amount, count(*) AS n FROM decoded.orders GROUP BY amount
"""
    folder = declare(tmp_path, f"{PUBLISHED}---\n{derived}")
    source = folder / "source" / "defs.yaml"
    for wrong in ("window: hourly", "start: now", "topic: [a]", "window: ["):
        name, _, _ = wrong.partition(":")
        lines = [f"  {wrong}" if line.startswith(f"  {name}:") else line for line in SOURCE.splitlines()]
        source.write_text("\n".join(lines))
        assert {m.file for m in judge(folder).mistakes} == {source}, wrong
    source.write_text(SOURCE.replace("topic: orders", "topic: others"))
    assert [m.message for m in judge(folder).mistakes] == [
        "table: decoded/orders is not declared: declare topic 'orders' with a TopicTable, with `decode`",
        "sql: decoded/orders is not a table of this project: did you mean decoded/others?",
    ]


def test_a_topic_that_is_published_twice_is_refused(tmp_path: Path) -> None:
    ((line, message),) = said(tmp_path, f"{PUBLISHED}---\n{PUBLISHED}")
    assert (line, "is published twice, first at" in message) == (9, True)


@pytest.mark.broker
@pytest.mark.filterwarnings(*DAGSTER_WARNINGS)
def test_from_yaml_to_records_and_evidence(
    broker: Broker, topic: TopicMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, target = DecodedTopic(tmp_path / "lake", "orders"), topic()
    made.load([order(n) for n in range(7)], [order(7)])
    made.decode()
    monkeypatch.setenv("PLATFORM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLATFORM_DEFS", str(declare(tmp_path, PUBLISHED.replace("clean", target))))
    monkeypatch.setenv("LAKE_ROOT", str(tmp_path / "lake"))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker.bootstrap)

    def run(*arguments: str) -> tuple[int, str]:
        found = CliRunner().invoke(main, list(arguments))
        assert found.exit_code != 1 or found.stdout, found.output
        return found.exit_code, found.stdout

    assert run("publish", target, "--dry-run") == (
        0,
        f"published/{target}: would publish 2 windows with 8 rows: 0 begun, 2 new, 0 loaded again; 0 are published\n",
    )
    resources = {
        "kafka": KafkaResource(bootstrap_servers=broker.bootstrap),
        "lake": LakeResource(root=str(tmp_path / "lake")),
    }
    assets = dg.Definitions.merge(declared.definitions(), dg.Definitions(resources=resources | {
        "spark": dg.ResourceDefinition.hardcoded_resource(None)
    }))  # fmt: skip
    with dg.DagsterInstance.ephemeral() as instance:
        job = assets.get_repository_def().get_job(f"{identifier(target)}_publish_job")
        result = job.execute_in_process(instance=instance)
        assert result.success
        (check,) = result.get_asset_check_evaluations()
        assert (check.check_name, check.passed, check.metadata["records"].value) == ("published_once", True, 8)
    assert len(consumed(broker.bootstrap, target)) == 8
    code, text = run("publish", target, "--json")
    assert (code, json.loads(text)["records"]) == (0, 0)
    code, text = run("audit", f"published/{target}")
    assert code == 0, text
    assert text.startswith(f"published/{target}: proved\n")
    producer = Producer(librdkafka(broker.bootstrap))
    producer.produce(target, b"foreign")
    producer.flush()
    code, text = run("audit", f"published/{target}", "--json")
    assert (code, json.loads(text)["outcome"]) == (1, "anomalies")
    assert "has a record that published/" in json.loads(text)["problems"][0]
