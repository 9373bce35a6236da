"""A publisher in a separate process that a test kills: `python -m platform_assets_tests.support.doomed_publisher`.

It reads one line of JSON (bootstrap, lake, table, target, rows; optional: key, the column of keys, seconds, the limit of
a transaction, and identity). It prints the name of each step before the step, and begins the step after it has read a line from
standard input. It exits with `INTERRUPTED` if another attempt is needed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from platform_assets.errors import PublishingInterruptedError
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish.publishing import Publisher
from testbed.clients import client_settings

INTERRUPTED: Final = 3


def declared(work: Mapping[str, Any]) -> PublishDeclaration:
    """Return the declaration of the published topic that `work` describes."""
    return PublishDeclaration(
        work["target"],
        TableRef.parse(work["table"]),
        Part("bytes", (work["key"],)) if "key" in work else Part("text", ("kafka_offset",)),
        Part("bytes", ("value",)),
        tombstones=True,
        transaction_rows=work["rows"],
        transaction_timeout=timedelta(seconds=work.get("seconds", 60)),
        identity=work.get("identity", "header"),
    )


def main() -> None:
    """Publish everything. The parent kills this process at one of the steps."""
    work = json.loads(sys.stdin.readline())

    def before_step(step: str) -> None:
        print(step, flush=True)
        sys.stdin.readline()

    cluster, ledger = Cluster.connect(client_settings(work["bootstrap"])), Ledger(Lake.at(work["lake"]))
    try:
        Publisher(declared(work), ledger, cluster, before_step).run()
    except PublishingInterruptedError as e:
        print(e, file=sys.stderr)
        sys.exit(INTERRUPTED)
    print("done", flush=True)


if __name__ == "__main__":
    main()
