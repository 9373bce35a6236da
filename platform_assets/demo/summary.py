"""The demo's result: one line a topic, and what is wrong where something is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from platform_assets.demo.dataset import TopicName, load
from platform_assets.demo.proof import Exactness, compare
from platform_assets.demo.topic_log import scan, whole_log
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.offsets import TopicRanges

if TYPE_CHECKING:
    from platform_assets.demo.watching import TopicView


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What is known of one topic at the end.

    Attributes:
        produced: records in the log, those of aborted transactions included.
        committed: records that a read_committed consumer gets.
        log: the offsets of the topic, from its log start to its last stable offset.
        exactness: the comparison of the table with the data and the topic.
        view: windows, holes and checks.
    """

    produced: int
    committed: int
    log: TopicRanges
    exactness: Exactness
    view: TopicView

    @property
    def aborted(self) -> int:
        """Records of aborted transactions."""
        return self.produced - self.committed

    @property
    def markers(self) -> int:
        """Offsets that hold no record, but the end of a transaction."""
        return self.log.size - self.produced

    def faults(self) -> list[str]:
        """What is wrong, in words; empty where all is as it has to be."""
        view = self.view
        found = self.exactness.faults()
        if view.waiting:
            found.append(f"{len(view.waiting)} of {len(view.sealed)} windows are not loaded, first {view.waiting[0]}")
        if view.ranges != self.log:
            found.append(f"the windows cover offsets {_ranges(view.ranges)}, the topic has {_ranges(self.log)}")
        if view.holes != self.aborted + self.markers:
            found.append(
                f"{view.holes:,} offsets without a row, and the log explains {self.aborted + self.markers:,}: "
                f"{self.aborted:,} aborted records and {self.markers:,} transaction markers"
            )
        return found + [f"check {name}: {state}" for name, state in view.checks.items() if state != "passed"]


def collect(client: ClientSettings, lake: Path, topic: TopicName, view: TopicView) -> TopicResult:
    """Read topic and table of one topic and compare them.

    Raises:
        BrokerUnreachableError: the topic cannot be read.
    """
    ends = whole_log(Cluster.connect(client), topic)
    committed = scan(client, topic, ends)
    produced = scan(client, topic, ends, committed=False)
    exactness = compare(lake / "raw" / topic, load(topic), committed)
    return TopicResult(len(produced), len(committed), ends, exactness, view)


def print_results(console: Console, results: Sequence[TopicResult]) -> bool:
    """Print the table and what is wrong; returns whether nothing is."""
    table = Table(title="Kafka topics and lake tables")
    table.add_column("topic")
    for column in ("produced", "committed", "in table", "windows"):
        table.add_column(column, justify="right")
    table.add_column("offset ranges")
    table.add_column("holes", justify="right")
    table.add_column("checks")
    for result in results:
        view = result.view
        table.add_row(
            result.exactness.topic,
            f"{result.produced:,}",
            f"{result.committed:,}",
            f"{result.exactness.rows:,}",
            f"{view.loaded} of {len(view.sealed)} loaded\n{view.with_rows} with rows",
            _ranges(view.ranges, "\n"),
            f"{view.holes:,}\n{result.aborted:,} aborted\n{result.markers:,} markers",
            _checks(view.checks),
            end_section=True,
        )
    console.print(table)
    for result in results:
        verdict = "NOT exact" if result.faults() else f"exact: each of {result.exactness.rows:,} rows once"
        console.print(f"{result.exactness.topic}: {verdict}", markup=False)
        for fault in result.faults():
            console.print(f"  {fault}", markup=False, soft_wrap=True)
    return not any(result.faults() for result in results)


def _checks(states: Mapping[str, str]) -> str:
    return "\n".join(f"{name} {state}" for name, state in states.items())


def _ranges(ranges: TopicRanges, separator: str = "; ") -> str:
    return separator.join(f"{partition}: [{span.start:,}, {span.end:,})" for partition, span in ranges.items())
