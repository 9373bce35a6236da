"""The command: run the legs, and record and show their results.

`python -m platform_assets_tests.support.semantics` repeats the run shown in README.md and docs/SEMANTICS.md with the same
seed, records and faults, and writes the result to these files. It starts its own brokers and its own Spark Connect
server.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from platform_assets_tests.support.semantics import copying, judging, lake, producing
from platform_assets_tests.support.semantics.pages import LEGS, SEED, Leg, LegName, record, recorded, table
from testbed.homes import engines

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the legs, print the table, and write the pages. Return 0 if every leg gave the expected result."""
    parser = argparse.ArgumentParser(prog="semantics", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED, help="another seed gives other records and crashes")
    parser.add_argument(
        "--leg", choices=LEGS, action="append", help="run only this leg; keep what is recorded of others"
    )
    parser.add_argument("--print-only", action="store_true", help="leave the documents as they are")
    chosen = parser.parse_args(arguments)
    wanted: list[LegName] = chosen.leg or list(LEGS)
    legs, right = ({} if set(wanted) == set(LEGS) else recorded()), True
    with tempfile.TemporaryDirectory(prefix="semantics-") as folder:
        if "producer" in wanted:
            sent = producing.run(Path(folder) / "three")
            legs["producer"] = judging.leg(sent)
            right &= all(j.as_due for j in sent)
        if {"copy", "lake"} & set(wanted):
            right &= _on_one_broker(Path(folder), wanted, chosen.seed, legs)
    print(f"seed {chosen.seed}\n\n{table(legs)}")
    if not right:
        print("The results are not as expected. The documents were not changed.", file=sys.stderr)
        return 1
    if not chosen.print_only:
        record(legs, chosen.seed)
    return 0


def _on_one_broker(folder: Path, wanted: Sequence[LegName], seed: int, legs: dict[LegName, Leg]) -> bool:
    right = True
    with engines(folder) as (bootstrap, remote):
        if "copy" in wanted:
            copied = copying.run(bootstrap, new_topic(bootstrap), lambda: new_topic(bootstrap), folder, seed)
            legs["copy"] = copying.leg(copied)
            right &= all(r.as_due for r in copied)
        if "lake" in wanted:
            crashes, results = lake.run(bootstrap, new_topic(bootstrap), session_of(remote), folder / "lakes", seed)
            legs["lake"] = lake.leg(crashes, results)
            for sentence in (s for r in results for s in r.others):
                print(sentence, file=sys.stderr)
            right &= all(r.as_due and r.exact for r in results)
    return right


def new_topic(bootstrap: str) -> str:
    """Make an empty topic for a run."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"semantics-{uuid.uuid4().hex[:12]}"
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    client.create_topics([NewTopic(name, lake.PARTITIONS, 1)])[name].result(30)
    return name


def session_of(remote: str) -> Callable[[], SparkSession]:
    """Provide one session on the Spark Connect server at `remote`."""
    from platform_assets.engines.shared.session import connect

    session = connect(remote)
    return lambda: session


if __name__ == "__main__":
    sys.exit(main())
