"""A transactional producer in a separate process that a test kills: `python -m platform_assets_tests.doomed_producer`.

It reads one line of JSON (settings, topic, records as [partition, text, timestamp], and whether to end silently). Then
it prints a line of JSON at each step: each delivery, "delivered", and, after a line on standard input, "committing". If
it ends silently, it prints nothing after its commit, so the commit is recorded only in Kafka.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from confluent_kafka import Producer


def tell(step: str, **more: Any) -> None:
    """Report a step to the parent process immediately. The parent might then kill this process."""
    print(json.dumps({"step": step, **more}), flush=True)


def main() -> None:
    """Send records in a transaction, and commit on request."""
    work = json.loads(sys.stdin.readline())
    producer = Producer(work["settings"])
    producer.init_transactions(30)
    producer.begin_transaction()

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            tell("delivery", value=message.value().decode(), offset=message.offset())

    for partition, value, timestamp in work["records"]:
        producer.produce(work["topic"], value.encode(), None, partition, on_delivery=delivered, timestamp=timestamp)
    producer.flush(30)
    tell("delivered")
    if not sys.stdin.readline():
        return
    tell("committing")
    producer.commit_transaction(30)
    if work["dies_unheard"]:
        os.kill(os.getpid(), signal.SIGKILL)
    tell("committed")


if __name__ == "__main__":
    main()
