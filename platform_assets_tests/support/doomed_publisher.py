"""A publisher in a separate process that a test kills: `python -m platform_assets_tests.support.doomed_publisher`.

It reads one line of JSON (bootstrap, lake, source, target, rows). It prints the name of each step before the step, and
begins the step after it has read a line from standard input.
"""

from __future__ import annotations

import json
import sys

from platform_assets.kafka.cluster import Cluster
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish.publishing import Publisher
from testbed.clients import client_settings


def main() -> None:
    """Publish everything. The parent kills this process at one of the steps."""
    work = json.loads(sys.stdin.readline())

    def before_step(step: str) -> None:
        print(step, flush=True)
        sys.stdin.readline()

    table = TableRef.parse(work["table"])
    key, value = Part("text", ("kafka_offset",)), Part("bytes", ("value",))
    declared = PublishDeclaration(work["target"], table, key, value, tombstones=True, transaction_rows=work["rows"])
    cluster, ledger = Cluster.connect(client_settings(work["bootstrap"])), Ledger(Lake.at(work["lake"]))
    Publisher(declared, ledger, cluster, before_step).run()
    print("done", flush=True)


if __name__ == "__main__":
    main()
