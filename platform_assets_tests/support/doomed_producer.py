"""A transactional producer in a process of its own, to be killed: `python -m platform_assets_tests.doomed_producer`.

Reads one line of JSON (settings, topic, records as [partition, text, timestamp], whether to die unheard), then tells a
line of JSON at each step: each delivery, "delivered", and after a line on standard input "committing". What comes after
its commit it tells nobody if it is to die unheard: it has committed then, and only Kafka knows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from confluent_kafka import Producer


def tell(step: str, **more: Any) -> None:
    """Tell the parent at once; it may kill this process on hearing it."""
    print(json.dumps({"step": step, **more}), flush=True)


def main() -> None:
    """Send in a transaction, and commit when told to."""
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
