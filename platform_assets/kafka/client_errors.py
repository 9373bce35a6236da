"""Errors of librdkafka, by what they mean: no broker answers, or a broker refuses."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

_UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._DESTROY,
        # librdkafka drops its handle of a broker that a newer list of brokers no longer has, along with waiting requests.
        KafkaError._DESTROY_BROKER,
        KafkaError._FAIL,
        KafkaError._INTR,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._RETRY,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._WAIT_CACHE,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)
ANOTHER_LEADER: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # The client's knowledge of the leader is older or newer than the broker's.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""Error codes from a broker that is not the partition's leader. After such an error, `kafka.cluster` looks up the leader,
because librdkafka's admin client does not do so."""
OUT_OF_REACH: Final = frozenset(
    _UNREACHABLE
    | ANOTHER_LEADER
    | {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError._UNKNOWN_PARTITION,
        # "No leaders found": no partition has one, or the topic was deleted after it was described.
        KafkaError._NOENT,
    }
)
"""Error codes after which the same call may succeed later."""
REFUSALS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    }
)
"""Error codes of a broker that refuses a record, a topic or a user."""


def is_out_of_reach(error: KafkaError) -> bool:
    """Return True if a client's error says that no broker, or no leader, could answer: the same call may succeed later.

    librdkafka's `retriable` alone is true only for some of the codes that brokers send, and never for local ones.
    """
    return error.retriable() or error.code() in OUT_OF_REACH


def error_of(raised: KafkaException | KafkaError | SystemError) -> KafkaError:
    """Return the client's error. The client raises a fatal error in the middle of its callbacks for single records, so
    what the caller gets may be the error itself, or a SystemError that it has caused. Any other SystemError is raised
    again."""
    error = raised.__cause__ if isinstance(raised, SystemError) else raised
    if isinstance(error, KafkaError):
        return error
    if not isinstance(error, KafkaException):
        raise raised
    found: KafkaError = error.args[0]
    return found
