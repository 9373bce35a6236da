"""`python -m benchmarks.keyed_producer BOOTSTRAP TOPIC STREAMS PER_SECOND BYTES SECONDS`: produce keyed streams at a
steady rate.

Each stream sends its records evenly over time. The program ends after SECONDS, and prints the number of acknowledged
records.
"""

from __future__ import annotations

import os
import sys
import time

from confluent_kafka import KafkaError, Message, Producer


def main(bootstrap: str, topic: str, streams: int, per_second: int, size: int, seconds: int) -> None:
    """Produce the records. Raises RuntimeError if the producer was more than a second late, or if a record was
    refused."""
    failed: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1 << 18, "enable.idempotence": True,
         "compression.type": "none", "queue.buffering.max.messages": 500_000, "on_delivery": delivered}
    )  # fmt: skip
    keys = [b"stream-%06d" % n for n in range(streams)]
    values = [os.urandom(size) for _ in range(997)]
    began = time.monotonic()
    sent = 0
    for turn in range(seconds * per_second):
        late = time.monotonic() - began - turn / per_second
        if late > 1:
            raise RuntimeError(f"{late:.1f} s late after {sent:,} records: this machine is too slow for the rate")
        if late < 0:
            time.sleep(-late)
        for key in keys:
            producer.produce(topic, values[sent % 997], key)
            sent += 1
        producer.poll(0)
    left = producer.flush(60)
    if failed or left:
        raise RuntimeError(f"{len(failed)} records failed, and {left} were not delivered: {failed[:1]}")
    print(sent)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
