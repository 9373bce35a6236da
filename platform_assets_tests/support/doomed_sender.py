"""A sender of dead letters in a separate process that a test kills: `python -m
platform_assets_tests.support.doomed_sender`.

It reads one line of JSON (bootstrap, source, target, number). It prints the name of each step before the step, and
begins the step after it has read a line from standard input.
"""

from __future__ import annotations

import json
import sys

from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.outbox import Letter, Outbox
from testbed.clients import client_settings


def letters(number: int) -> list[Letter]:
    """Return dead letters from two partitions, with keys, values and headers of every kind."""
    return [
        Letter(
            "source-id",
            place % 2,
            10_000_000_000 + 37 * place,
            None if place % 3 == 0 else b"key %d" % place,
            None if place % 5 == 0 else b"value %d \xff" % place,
            (("trace", b"%d" % place), ("trace", None), ("é", b"\x00\xff")),
        )
        for place in range(number)
    ]


def main() -> None:
    """Send all dead letters. The parent kills this process at one of the steps."""
    work = json.loads(sys.stdin.readline())

    def before_step(step: str) -> None:
        print(step, flush=True)
        sys.stdin.readline()

    cluster = Cluster.connect(client_settings(work["bootstrap"]))
    sent = Outbox(cluster, work["source"], work["target"], before_step=before_step).send(letters(work["number"]))
    print(f"{sent.now} {sent.before}", flush=True)


if __name__ == "__main__":
    main()
