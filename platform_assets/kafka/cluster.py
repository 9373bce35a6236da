"""Facts that brokers report about topics: ids, partitions, log starts, last stable offsets, and offsets by timestamp.

Nothing here consumes a message. Every call ends within its timeout, whatever the brokers do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from platform_assets.errors import BrokerRefusedError, BrokerUnreachableError, PlatformError, TopicMissingError
from platform_assets.kafka import rights
from platform_assets.kafka.client_errors import ANOTHER_LEADER, OUT_OF_REACH, is_out_of_reach
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.logs import logger
from platform_assets.model.names import checked_topic

_log = logger(__name__)

_LEADER_PAUSES_SECONDS = (0.0, 0.1, 0.2, 0.4, 0.8)
"""Pauses before each further request to a leader. Brokers learn about a new leader within moments, but not all at the
same time."""

_PATIENCE_SECONDS = 1.5
"""Time, in seconds, after which a call that is still running makes the client look up the brokers again."""
_NO_TOPIC = "_"
"""Topic to request when only the brokers matter: the answer lists all brokers, but no other topic."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the brokers describe it: its id (URL-safe base64, as Kafka's tools print it) and its partitions.

    `cluster_id` is the id of the topic's cluster; None if the brokers have no cluster id.
    """

    name: str
    topic_id: str
    partitions: tuple[int, ...]
    cluster_id: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """An offset that a look-up found. `timestamp` is the timestamp in ms of the record at that offset; -1 if there is
    no record."""

    offset: int
    leader_epoch: int | None
    timestamp: int


class Cluster:
    """A thin wrapper of the admin client, with time limits. `timeout` limits each call, in seconds. If `deadline` (a
    time of `time.monotonic`) is given, all calls must end by then. Every call raises BrokerUnreachableError if no
    broker answers in that time, and BrokerRefusedError if a broker refuses the request. Calls about a topic also raise
    TopicMissingError."""

    def __init__(
        self, admin: AdminClient, settings: ClientSettings, timeout: float = 10.0, deadline: float | None = None
    ) -> None:
        self._admin = admin
        self._settings = settings
        self._timeout = timeout
        self._deadline = deadline

    @classmethod
    def connect(cls, settings: ClientSettings, timeout: float = 10.0) -> Cluster:
        """Return a new client. The client connects only when needed, so an unreachable broker is noticed at the first
        call."""
        options = {
            **settings.librdkafka(),
            "socket.connection.setup.timeout.ms": 5000,
            "allow.auto.create.topics": "false",
        }
        return cls(AdminClient(options, logger=_log), settings, timeout)

    def with_deadline(self, deadline: float) -> Cluster:
        """Return a client with the same connection, whose calls are all limited by `deadline` (a time of
        `time.monotonic`)."""
        allowed = max(round(deadline - time.monotonic(), 1), 0.0)
        return Cluster(self._admin, self._settings, min(self._timeout, allowed), deadline)

    @property
    def settings(self) -> ClientSettings:
        """Settings with which the client was created."""
        return self._settings

    @property
    def timeout(self) -> float:
        """Seconds that one call may take."""
        return self._timeout

    @property
    def deadline(self) -> float | None:
        """Time (of `time.monotonic`) by which all calls must end; None if there is no such limit."""
        return self._deadline

    def check_reachable(self) -> None:
        """Raise BrokerUnreachableError or BrokerRefusedError unless the brokers answer."""
        doing = "requesting the list of brokers"
        (future,) = self._call(doing, lambda s: {None: self._admin.describe_cluster(request_timeout=s)}).values()
        self._result(future, doing, topic=None)

    def topics(self) -> tuple[str, ...]:
        """Return the names of all topics that the brokers show to this client, sorted."""
        doing = "listing the topics"
        try:
            found = self._admin.list_topics(timeout=max(self._remaining(doing), 0.001))
        except KafkaException as e:
            raise self._translated(e, doing, None) from e
        return tuple(sorted(found.topics))

    def topic(self, name: str) -> TopicState:
        """Describe a topic. Also raises TopicNameError."""
        checked_topic(name)
        doing = f"describing topic {name!r}"
        future = self._call(doing, lambda s: self._admin.describe_topics(TopicCollection([name]), request_timeout=s))[
            name
        ]
        described = self._result(future, doing, topic=name)
        # librdkafka prints ids in plain base64, Kafka's own tools in the URL-safe alphabet.
        topic_id = str(described.topic_id).translate(str.maketrans("+/", "-_"))
        # One after the other: an admin client must not be freed while it waits for an answer, as would happen if the
        # first fails.
        (cluster,) = self._call(doing, lambda s: {None: self._admin.describe_cluster(request_timeout=s)}).values()
        cluster_id = self._result(cluster, doing, topic=None).cluster_id or None
        return TopicState(name, topic_id, tuple(sorted(p.id for p in described.partitions)), cluster_id)

    def last_stable_offsets(self, topic: TopicState) -> dict[int, FoundOffset]:
        """Map each partition to the exclusive end of what read_committed consumers may read.

        Unreachable partitions are left out.
        """
        return self._list(topic, dict.fromkeys(topic.partitions, OffsetSpec.latest()), "last stable offsets")

    def high_watermarks(self, topic: TopicState) -> dict[int, FoundOffset]:
        """Map each partition to the exclusive end of its replicated records, including records of open transactions.

        Unreachable partitions are left out.
        """
        return self._list(
            topic, dict.fromkeys(topic.partitions, OffsetSpec.latest()), "high watermarks", committed=False
        )

    def log_starts(self, topic: TopicState) -> dict[int, FoundOffset]:
        """Map each partition to the earliest offset that it still has. Unreachable partitions are left out."""
        return self._list(topic, dict.fromkeys(topic.partitions, OffsetSpec.earliest()), "log starts")

    def offsets_at(self, topic: TopicState, timestamps: Mapping[int, int]) -> dict[int, FoundOffset | None]:
        """Map each partition to the earliest offset whose record has the given timestamp (ms) or a later one. The value
        is None if no committed record is that new; unreachable partitions are left out. Brokers treat a transaction
        marker as a record: see `kafka.lookup`."""
        specs = {p: OffsetSpec.for_timestamp(t) for p, t in timestamps.items()}
        found = self._list(topic, specs, "offsets by timestamp")
        return {p: (f if f.offset >= 0 else None) for p, f in found.items()}

    def topic_config(self, name: str) -> dict[str, str]:
        """Return the topic's effective configuration, under Kafka's names. Also raises TopicNameError."""
        resource = ConfigResource(ResourceType.TOPIC, checked_topic(name))
        doing = f"reading the configuration of topic {name!r}"
        future = self._call(doing, lambda s: self._admin.describe_configs([resource], request_timeout=s))[resource]
        found = self._result(future, doing, topic=name, right="`DescribeConfigs`")
        return {k: e.value for k, e in found.items() if e.value is not None}

    def allowed(self, name: str) -> frozenset[str] | None:
        """Return the operations on the topic that this client's user is allowed to perform, under Kafka's names; None
        if the brokers do not report them."""
        doing = f"requesting the rights on topic {checked_topic(name)!r}"
        future = self._call(
            doing,
            lambda s: self._admin.describe_topics(
                TopicCollection([name]), include_authorized_operations=True, request_timeout=s
            ),
        )[name]
        found = self._result(future, doing, topic=name).authorized_operations
        return None if found is None else frozenset(operation.name.title().replace("_", "") for operation in found)

    def is_compacted(self, name: str) -> bool:
        """Return True if the topic's policy allows compaction. Also raises TopicNameError."""
        return "compact" in self.topic_config(name).get("cleanup.policy", "")

    def create_topic(self, name: str, config: Mapping[str, str]) -> TopicState:
        """If the topic is missing, create it with one partition and the brokers' default replication, and wait until
        the brokers know it. Also raises TopicNameError."""
        new = NewTopic(checked_topic(name), num_partitions=1, config=dict(config))
        doing = f"creating topic {name!r}"
        future = self._call(doing, lambda s: self._admin.create_topics([new], request_timeout=s))[name]
        try:
            self._raw_result(future, doing)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._translated(e, doing, name, "`Create`") from e
        until = time.monotonic() + self.timeout
        while True:
            try:
                return self.topic(name)
            except TopicMissingError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def _list(
        self, topic: TopicState, specs: Mapping[int, OffsetSpec], what: str, *, committed: bool = True
    ) -> dict[int, FoundOffset]:
        # Explicit, because the admin client's default is read_uncommitted.
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        doing = f"looking up {what} of topic {topic.name!r}"
        if not specs:
            return {}
        found, failed = self._list_once(topic.name, specs, isolation, doing)
        for pause in _LEADER_PAUSES_SECONDS:
            moved = {p: specs[p] for p, e in failed.items() if e.args[0].code() in ANOTHER_LEADER}
            # Keep the offsets found so far even if the others fail.
            if not moved or self._left() <= pause + _PATIENCE_SECONDS:
                break
            time.sleep(pause)
            self._look_up(topic.name, _PATIENCE_SECONDS)
            found_now, failed_now = self._list_once(topic.name, moved, isolation, doing)
            found |= found_now
            failed = {p: e for p, e in failed.items() if p not in moved} | failed_now
        if failed and not found:
            unreachable = next(iter(failed.values()))
            raise self._translated(unreachable, doing, topic.name) from unreachable
        return found

    def _list_once(
        self, topic: str, specs: Mapping[int, OffsetSpec], isolation: IsolationLevel, doing: str
    ) -> tuple[dict[int, FoundOffset], dict[int, KafkaException]]:
        """Return the offsets that were found, and the errors of unreachable partitions."""
        asked = {TopicPartition(topic, p): spec for p, spec in specs.items()}
        futures = self._call(
            doing, lambda s: self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=s)
        )
        found: dict[int, FoundOffset] = {}
        failed: dict[int, KafkaException] = {}
        for where, future in futures.items():
            try:
                info = self._raw_result(future, doing)
            except KafkaException as e:
                if e.args[0].code() not in OUT_OF_REACH:
                    raise self._translated(e, doing, topic) from e
                failed[where.partition] = e
                continue
            if info.offset == OFFSET_INVALID:
                # librdkafka reports this instead of an error if the request timed out.
                failed[where.partition] = KafkaException(KafkaError(KafkaError._TIMED_OUT, "timed out"))
                continue
            found[where.partition] = FoundOffset(info.offset, info.leader_epoch, info.timestamp)
        return found, failed

    def _left(self) -> float:
        """Return the number of seconds that a call begun now may take; zero or less if the deadline for all calls has
        passed."""
        return self._timeout if self._deadline is None else min(self._timeout, self._deadline - time.monotonic())

    def _remaining(self, doing: str) -> float:
        if (remaining := self._left()) <= 0:
            raise BrokerUnreachableError(doing, self._timeout, "the time limit for all lookups was reached")
        return remaining

    def _call(self, doing: str, call: Callable[[float], dict[Any, Future[Any]]]) -> dict[Any, Future[Any]]:
        # librdkafka takes no request timeout below a millisecond.
        seconds = max(self._remaining(doing), 0.001)
        try:
            return call(seconds)
        except KafkaException as e:
            raise self._translated(e, doing, None) from e

    def _raw_result(self, future: Future[Any], doing: str) -> Any:
        until = time.monotonic() + self._remaining(doing) + 0.5
        while (left := until - time.monotonic()) > _PATIENCE_SECONDS:
            try:
                return future.result(timeout=_PATIENCE_SECONDS)
            except FutureTimeoutError:
                self._look_up(_NO_TOPIC, left)
        try:
            return future.result(timeout=max(left, 0))
        except FutureTimeoutError as e:
            raise BrokerUnreachableError(doing, self._timeout, "timed out") from e

    def _look_up(self, topic: str, seconds: float) -> None:
        """Make the client look up the brokers, and the leaders of a topic's partitions.

        After that, a call that is waiting for the controller continues. librdkafka remembers which broker was the
        controller, and looks up the controller again only when the connection breaks. At that time, the other brokers
        do not know yet that the controller has failed, and librdkafka does not ask again for minutes. Similarly,
        librdkafka does not look up leaders when a broker reports that it is no longer a leader.
        """
        try:
            self._admin.list_topics(topic=topic, timeout=min(seconds, _PATIENCE_SECONDS))
        except KafkaException as e:
            # The waiting call reports the error when its time is over.
            _log.debug("the lookup of the brokers failed: %s", e)

    def _result(self, future: Future[Any], doing: str, topic: str | None, right: str = rights.INCLUDED) -> Any:
        try:
            return self._raw_result(future, doing)
        except KafkaException as e:
            raise self._translated(e, doing, topic, right) from e

    def _translated(
        self, e: KafkaException, doing: str, topic: str | None, right: str = rights.INCLUDED
    ) -> PlatformError:
        """Translate the client's errors; `right` is the right on `topic` that the call needs."""
        error: KafkaError = e.args[0]
        if topic is not None and error.code() in {
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError.UNKNOWN_TOPIC_ID,
        }:
            return TopicMissingError(topic)
        if is_out_of_reach(error):
            return BrokerUnreachableError(doing, self._timeout, error.str())
        return BrokerRefusedError(
            doing, error.str(), "" if topic is None else rights.needed(error.code(), topic, right)
        )
