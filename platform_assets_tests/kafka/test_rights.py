"""The rights listed in the guide are sufficient if a user has all of them. If any of them is missing, the operation
that needs it fails, and the error contains its name."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from platform_assets.checks.consuming import _consumed
from platform_assets.engines.choice import choose_engine
from platform_assets.errors import PlatformError
from platform_assets.kafka.batches.observing import EpochBrokers, ObservingBrokers
from platform_assets.kafka.batches.wire import Connection
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.evidence.gathering import gather_evidence
from platform_assets.kafka.outbox import Letter, Outbox
from platform_assets.kafka.quorum import controller_time
from platform_assets.kafka.settings import ClientSettings
from platform_assets.kafka.timestamps import unreadable_records
from platform_assets.lake.location import Lake
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.publishing import commit
from platform_assets.services import platform
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.home import CHECKOUT
from platform_assets.services.platform import UpOptions
from platform_assets.services.ports import LOOPBACK, choose_ports
from platform_assets_tests.support.variants import long_after
from testbed.homes import home_at, service_environment
from testbed.loads import Record, TopicLake, wait_until

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = pytest.mark.broker

SOURCE: Final = "source"
LOADED: Final = "loaded"
"""The topic that tests load. The other topic has a transaction that stays open."""
PASSWORD: Final = "a-password"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"


@dataclass(frozen=True)
class Right:
    """One right: an operation from the guide's tables, with its `section` and `resource` there."""

    section: str
    resource: str
    operation: str

    @property
    def user(self) -> str:
        """Name of the user who has all rights except for this right."""
        return re.sub(r"\W+", "-", f"{self.section}-{self.resource}-{self.operation}").lower()

    def binding(self, user: str, topic: str = SOURCE) -> AclBinding:
        """Return the ACL that grants this right to `user`, who loads `topic` and sends to a topic named after the user."""
        kinds = {
            "topic": (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL),
            "cluster": (ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL),
            "group, prefix `platform-assets.`": (ResourceType.GROUP, "platform-assets.", ResourcePatternType.PREFIXED),
            "transactional id": (ResourceType.TRANSACTIONAL_ID, "*", ResourcePatternType.LITERAL),
            "topic `TARGET`": (ResourceType.TOPIC, f"to-{user}", ResourcePatternType.LITERAL),
            "topic `TARGET.sent`": (ResourceType.TOPIC, f"to-{user}.sent", ResourcePatternType.LITERAL),
            "transactional id, prefix `platform-assets.dead-letters.`": (
                ResourceType.TRANSACTIONAL_ID, "platform-assets.dead-letters.", ResourcePatternType.PREFIXED,
            ),
        }  # fmt: skip
        kind, name, pattern = kinds[self.resource]
        operation = AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", self.operation).upper()]
        return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def of_the_guide() -> list[Right]:
    """Return all rights in the guide's tables."""
    text = (CHECKOUT / "docs" / "guide" / "kafka.md").read_text("utf-8")
    found = []
    for section in ("Rights to load", "Rights to send dead letters"):
        (table,) = re.findall(rf"^### {section}\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
        for line in table.splitlines():
            if line.startswith("| ") and not line.startswith("| resource"):
                resource, operations = (cell.strip() for cell in line.split("|")[1:3])
                found += [Right(section, resource, each) for each in re.findall(r"`(\w+)`", operations)]
    return found


RIGHTS: Final = of_the_guide()
SEEING: Final = {"Rights to load": "sees-load", "Rights to send dead letters": "sees-send"}
"""For each section of the guide, a user who can see the topic but not use it."""


@dataclass(frozen=True)
class Ruled:
    """A broker with access rules. Users who log in at `sasl` are subject to these rules; at `plain`, everyone has all
    rights."""

    plain: str
    sasl: str

    def cluster(self, user: str) -> Cluster:
        settings = {
            "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "KAFKA_SASL_USERNAME": user,
            "KAFKA_SASL_PASSWORD": PASSWORD,
        }
        return Cluster.connect(ClientSettings.from_environment(settings, self.sasl), 20)

    def grant(self, *rules: AclBinding) -> None:
        """Add these rules."""
        admin = AdminClient({"bootstrap.servers": self.plain})
        for future in admin.create_acls(list(rules)).values():
            future.result(30)

    def wait_for(self, use: Callable[[], object]) -> None:
        """Wait until `use` succeeds. Waiting is necessary because a broker applies rules shortly after they are added."""

        def works() -> bool:
            with suppress(PlatformError, AssertionError):
                use()
                return True
            return False

        wait_until("the newest rules are in force", works)


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ruled]:
    plain, sasl, controller = choose_ports(3, "KAFKA_PORT", environ={})
    home = home_at(tmp_path_factory.mktemp("ruled"))
    listeners = f"CLIENTS://{LOOPBACK}:{plain},SASL://{LOOPBACK}:{sasl}"
    users = ["complete", *(right.user for right in RIGHTS)]
    others = ["groupless", *SEEING.values()]
    broker = BrokerSettings(
        heap="384m",
        properties={
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f"{_PLAIN} required "
            + " ".join(f'user_{user}="{PASSWORD}"' for user in (*users, *others))
            + ";",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    )
    environment = {**service_environment(), "KAFKA_PORT": str(plain)}
    try:
        platform.start_service("kafka", home, UpOptions(broker=broker), report=lambda _: None, environ=environment)
        made = Ruled(f"{LOOPBACK}:{plain}", f"{LOOPBACK}:{sasl}")
        _prepare(made, users, others)
        yield made
    finally:
        platform.down(home, report=lambda _: None)


def _prepare(ruled: Ruled, users: list[str], others: list[str]) -> None:
    """Create topics, rules for `users`, and a transaction that stays open on the source topic."""
    admin = AdminClient({"bootstrap.servers": ruled.plain})
    topics = [SOURCE, LOADED, *(f"to-{user}" for user in (*users, *others))]
    for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result(30)
    rules = [right.binding(user) for user in users for right in RIGHTS if right.user != user]
    rules += [right.binding("complete", LOADED) for right in RIGHTS if right.resource == "topic"]
    ruled.grant(*rules)
    producer = Producer(
        {"bootstrap.servers": ruled.plain, "transactional.id": "open", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(SOURCE, b"committed")
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(SOURCE, b"open")
    assert producer.flush(30) == 0

    ruled.wait_for(lambda: hold_back(ruled.cluster(users[-1])))


def load(cluster: Cluster) -> None:
    """Send the requests that a load needs."""
    topic = cluster.topic(SOURCE)
    ends = cluster.last_stable_offsets(topic)
    assert cluster.offsets_at(topic, {0: 0})[0] is not None
    ranges = TopicRanges({p: OffsetRange(0, end.offset) for p, end in ends.items()})
    until = time.monotonic() + 30
    assert gather_evidence(cluster.settings, SOURCE, topic.topic_id, ranges, compacted=False, deadline=until).complete
    assert cluster.topic_config(SOURCE)["cleanup.policy"] == "delete"
    epochs = EpochBrokers(cluster.settings, SOURCE, topic.topic_id, patience=20, stopped=lambda: False)
    assert epochs.epoch_end(0, 0) is not None
    epochs.close()


def audit(cluster: Cluster) -> None:
    """Read with a plain consumer, as `audit --deep` and the search for unreadable timestamps do."""
    (record,) = _consumed(cluster.settings, SOURCE, 0, OffsetRange(0, 1), time.monotonic() + 20)
    assert record.value() == b"committed"
    assert unreadable_records(cluster.settings, SOURCE, TopicRanges({0: OffsetRange(0, 1)}), 20) == []


def foresee(cluster: Cluster) -> None:
    """Send the requests that the retention forecast and `status` need."""
    cluster.check_reachable()
    assert SOURCE in cluster.topics()
    with _observing(cluster) as brokers:
        assert brokers.newest_timestamp(0, 0)
        assert brokers.sizes([0]), "log sizes are unknown"


def tell_the_time(cluster: Cluster) -> None:
    """Request the controller's clock."""
    assert controller_time(cluster.settings, 20) is not None, "the clock is unknown"


def hold_back(cluster: Cluster) -> None:
    """Request the transactions that hold windows back."""
    with _observing(cluster) as brokers:
        (found,) = brokers.open_transactions([0])
    assert found.coordinated is not None, "who holds it is unknown"


def publish(cluster: Cluster) -> None:
    """Publish a position for lag monitors."""
    commit(cluster, TableRef("raw", SOURCE), cluster.topic(SOURCE).topic_id, {0: 1}, 20)


def send(cluster: Cluster) -> None:
    """Send letters twice, as `dead-letters --send-to` does. The second call is necessary because TARGET.sent is empty
    during the first."""
    user = cluster.settings.options["sasl.username"]
    for number in range(1, 3):
        letters = [Letter("topic id", 0, offset, b"key", b"value", ()) for offset in range(number)]
        assert Outbox(cluster, SOURCE, f"to-{user}", 20).send(letters).now == 1


class _observing(ObservingBrokers):
    def __init__(self, cluster: Cluster) -> None:
        topic = cluster.topic(SOURCE)
        super().__init__(cluster.settings, SOURCE, topic.topic_id, patience=20, stopped=lambda: False)

    def __enter__(self) -> ObservingBrokers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


USES: Final = (load, audit, foresee, tell_the_time, hold_back, publish, send)
LOAD, SEND = "Rights to load", "Rights to send dead letters"
GROUP: Final = Right(LOAD, "group, prefix `platform-assets.`", "Read")
SENT, SENDING = "topic `TARGET.sent`", "transactional id, prefix `platform-assets.dead-letters.`"
NEEDED: Final[dict[Right, tuple[Callable[[Cluster], None], str]]] = {
    Right(LOAD, "topic", "Read"): (load, r"Grant .* `Describe` \(included in `Read` and `Write`\) on topic 'source'"),
    Right(LOAD, "topic", "DescribeConfigs"): (load, r"Grant the KAFKA_\* user `DescribeConfigs` on topic 'source'"),
    Right(LOAD, "cluster", "Describe"): (foresee, "log sizes are unknown"),
    GROUP: (publish, r"Grant the KAFKA_\* user `Read` on consumer group 'platform-assets.raw/source'"),
    Right(LOAD, "transactional id", "Describe"): (hold_back, "who holds it is unknown"),
    Right(SEND, "topic `TARGET`", "Write"): (send, "Grant .* `Describe` .* `Write`.* on topic 'to-{user}'"),
    Right(SEND, SENT, "Create"): (send, "Grant .* `Create` on topic 'to-{user}.sent'"),
    Right(SEND, SENT, "DescribeConfigs"): (send, "Grant .* `DescribeConfigs` on topic 'to-{user}.sent'"),
    Right(SEND, SENT, "Read"): (send, "Grant .* `Read` on topic 'to-{user}.sent'"),
    Right(SEND, SENT, "Write"): (send, "Grant .* `Write` on topic 'to-{user}.sent'"),
    Right(SEND, SENDING, "Write"): (
        send,
        "Grant .* `Write` on transactional id 'platform-assets.dead-letters.source.to-{user}'",
    ),
}
ADMIN_CALLS: Final = re.compile(r"self\._admin\.(\w+)\(")
RAW_REQUESTS: Final = re.compile(r"\b(\w+Request)\b")


def test_the_guide_lists_these_rights_and_no_other() -> None:
    assert sorted(RIGHTS, key=repr) == sorted(NEEDED, key=repr)


def test_the_rights_of_the_guide_are_enough_for_every_request(ruled: Ruled, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = set[str]()
    send_request = Connection.send

    def recorded(connection: Connection, request: Any) -> None:
        tried.add(type(request).__name__)
        send_request(connection, request)

    monkeypatch.setattr(Connection, "send", recorded)
    for use in USES:
        cluster = ruled.cluster("complete")
        cluster._admin = _Recording(cluster._admin, tried)
        use(cluster)
    made = set[str]()
    for path in (CHECKOUT / "platform_assets" / "kafka").rglob("*.py"):
        text = path.read_text("utf-8")
        made.update(ADMIN_CALLS.findall(text))
        for lines in re.findall(r"^from kafka\.protocol[^(]*?import (\([^)]*\)|.*)$", text, re.MULTILINE):
            made.update(RAW_REQUESTS.findall(lines))
    assert tried == made


class _Recording:
    """An admin client that records which of its methods are called."""

    def __init__(self, admin: Any, called: set[str]) -> None:
        self._admin, self._called = admin, called

    def __getattr__(self, name: str) -> Any:
        self._called.add(name)
        return getattr(self._admin, name)


@pytest.mark.parametrize("right", long_after(3, NEEDED), ids=lambda right: right.user)
def test_a_missing_right_is_named_and_granting_it_helps(ruled: Ruled, right: Right) -> None:
    use, message = NEEDED[right]
    cluster = ruled.cluster(right.user)
    with pytest.raises((PlatformError, AssertionError), match=f"(?s){message.format(user=right.user)}"):
        use(cluster)
    ruled.grant(right.binding(right.user))
    ruled.wait_for(lambda: use(cluster))


@pytest.mark.parametrize(
    ("right", "use", "message"),
    [
        (Right(LOAD, "topic", "Read"), load, r"Grant the KAFKA_\* user `Read` on topic 'source'"),
        (Right(SEND, "topic `TARGET`", "Write"), send, r"Grant the KAFKA_\* user `Write` on topic 'to-sees-{section}'"),
    ],
)
def test_who_may_only_see_a_topic_is_told_the_right_to_use_it(
    ruled: Ruled, right: Right, use: Callable[[Cluster], None], message: str
) -> None:
    user = SEEING[right.section]
    sees = replace(right, operation="Describe").binding(user)
    ruled.grant(sees, *(each.binding(user) for each in RIGHTS if each != right))
    cluster = ruled.cluster(user)
    ruled.wait_for(lambda: cluster.topic(sees.name))
    with pytest.raises(PlatformError, match=message.format(section=right.section[10:14])):
        use(cluster)


def test_positions_alone_need_a_right_to_a_group(ruled: Ruled) -> None:
    cluster = ruled.cluster("groupless")
    ruled.grant(*(each.binding("groupless") for each in RIGHTS if each != GROUP))
    ruled.wait_for(lambda: cluster.topic("to-groupless"))
    for use in USES:
        if use is not publish:
            use(cluster)


@pytest.mark.spark
def test_the_rights_of_the_guide_are_enough_to_load(
    ruled: Ruled, connection: Callable[[], SparkSession], tmp_path: Path
) -> None:
    lk = TopicLake(ruled.plain, LOADED, tmp_path / "lake", connection)
    key = lk.window_of([Record(b"one"), Record(b"two")])
    cluster = ruled.cluster("complete")
    engine = choose_engine(Lake.at(lk.root), lambda: cluster.settings, connection, "connector")
    assert replace(lk.loader(), cluster=cluster, engine=engine).load(key).receipt.rows == 2
