"""A producer in a process of its own, which takes notes: `python -m platform_assets_tests.support.semantics.sender`.

It reads the client's settings and the topic as one line of JSON, and then a command in each line: `begin`, `send FIRST
END`, `flush`, `commit`. Values are numbers, sent to partition 0. It prints a line of JSON for each value that it is about
to send, for each delivery report, and after each command. A killed process leaves the notes that it has printed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import Producer

TIMEOUT = 180.0


def note(kind: str, **more: Any) -> None:
    """Print a note immediately."""
    print(json.dumps({"note": kind, **more}), flush=True)


def main() -> None:
    """Carry out commands until standard input ends."""
    work = json.loads(sys.stdin.readline())
    producer = Producer(work["settings"])
    if "transactional.id" in work["settings"]:
        producer.init_transactions(TIMEOUT)

    def reported(error: Any, message: Any) -> None:
        if error is None:
            note("delivered", value=int(message.value()), offset=message.offset())
        else:
            note("failed", value=int(message.value()), error=error.name())

    note("ready")
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "send":
            for value in range(*map(int, arguments)):
                note("try", value=value)
                producer.produce(work["topic"], b"%d" % value, None, 0, on_delivery=reported)
        elif command == "flush":
            assert producer.flush(TIMEOUT) == 0
        elif command == "begin":
            producer.begin_transaction()
        elif command == "commit":
            producer.commit_transaction(TIMEOUT)
        note("done", command=command)


if __name__ == "__main__":
    main()
