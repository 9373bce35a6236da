"""The demo's result: one line per topic, and the faults, if there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from platform_assets.demo import typed_proof
from platform_assets.demo.comparison import Comparison
from platform_assets.demo.dataset import SOURCES, TopicName, load
from platform_assets.demo.proof import Exactness, compare
from platform_assets.demo.topic_log import scan, whole_log
from platform_assets.demo.typed_proof import TypedExactness
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef

if TYPE_CHECKING:
    from platform_assets.demo.waiting import TopicView

_NUMBERS: Final = frozenset({"produced", "committed", "in table", "windows", "holes"})

_WRAPPED: Final = frozenset({"checks"})


@dataclass(frozen=True, slots=True)
class TopicResult:
    """Final state of one topic.

    Attributes:
        produced: records in the log, including those of aborted transactions.
        committed: records that a read_committed consumer receives.
        log: the offset range of each partition, from its log start to its last stable offset.
        exactness: the comparison of the raw table with the data and the topic.
        typed: the comparison of the decoded table with the source file.
        ranges: the offsets of all sealed windows.
        sealed: number of windows whose offsets are fixed.
        loaded: number of sealed windows that are in the table.
        with_rows: number of loaded windows that have rows.
        holes: number of offsets in the loaded windows that have no row.
        checks: maps the name of each check to its result, such as `passed`.
        check_faults: a sentence about each check that has not passed.
    """

    produced: int
    committed: int
    log: TopicRanges
    exactness: Exactness
    typed: TypedExactness
    ranges: TopicRanges
    sealed: int
    loaded: int
    with_rows: int
    holes: int
    checks: Mapping[str, str]
    check_faults: tuple[str, ...]

    @property
    def aborted(self) -> int:
        """Number of records in aborted transactions."""
        return self.produced - self.committed

    @property
    def markers(self) -> int:
        """Number of offsets that have a transaction marker instead of a record."""
        return self.log.size - self.produced

    def faults(self) -> list[str]:
        """A description of each difference; empty if there are none."""
        found = self.exactness.faults()
        if self.loaded != self.sealed:
            found.append(f"{self.sealed - self.loaded} of {self.sealed} windows are not loaded")
        if self.ranges != self.log:
            found.append(
                f"the windows cover offsets {_ranges(self.ranges)}, but the topic has offsets {_ranges(self.log)}"
            )
        if self.holes != self.aborted + self.markers:
            found.append(
                f"{self.holes:,} offsets have no row, but the log accounts for {self.aborted + self.markers:,}: "
                f"{self.aborted:,} aborted records and {self.markers:,} transaction markers"
            )
        return [*found, *self.typed.faults(), *self.check_faults]


def collect(client: ClientSettings, ledger: Ledger, topic: TopicName, view: TopicView) -> TopicResult:
    """Read one topic with its tables and its part of the ledger, and compare them.

    Raises:
        BrokerUnreachableError: the topic cannot be read.
        PlatformError: the ledger cannot be read.
    """
    log = whole_log(Cluster.connect(client), topic)
    committed = scan(client, topic, log)
    produced = scan(client, topic, log, committed=False)
    windows = ledger.windows(topic)
    receipts = ledger.receipts(TableRef.raw(topic), [window.key for window in windows]) if windows else {}
    return TopicResult(
        produced=len(produced),
        committed=len(committed),
        log=log,
        exactness=compare(ledger.lake.table(TableRef.raw(topic)).path, load(topic), committed),
        typed=typed_proof.compare(ledger.lake, SOURCES[topic], load(topic)),
        ranges=_merged([window.ranges for window in windows]),
        sealed=len(windows),
        loaded=len(receipts),
        with_rows=sum(1 for receipt in receipts.values() if receipt.rows),
        holes=sum(receipt.missing for receipt in receipts.values()),
        checks=view.checks,
        check_faults=view.check_faults,
    )


def _merged(ranges: Sequence[TopicRanges]) -> TopicRanges:
    """Return, for each partition, the range from the start of the first window to the end of the last window. If a
    partition was added later, its range starts in the first window that has the partition."""
    starts: dict[int, int] = {}
    for window in ranges:
        for partition, span in window.items():
            starts.setdefault(partition, span.start)
    return TopicRanges({p: OffsetRange(starts[p], span.end) for p, span in ranges[-1].items()} if ranges else {})


def print_results(
    console: Console, results: Sequence[TopicResult], made: Sequence[Comparison] = (), faults: Sequence[str] = ()
) -> bool:
    """Print the table of topics, what is `made` from their tables, and all faults; return True if there are none.

    `faults` are faults of what is made that the comparisons do not show, such as failed checks.
    """
    table = Table(
        title="Kafka topics and lake tables",
        box=SIMPLE_HEAD,
        title_justify="left",
        collapse_padding=True,
        pad_edge=False,
    )
    for column in ("topic", "produced", "committed", "in table", "windows", "offset ranges", "holes", "checks"):
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=column not in _WRAPPED)
    for result in results:
        table.add_row(
            result.exactness.topic,
            f"{result.produced:,}",
            f"{result.committed:,}",
            f"{result.exactness.rows:,}",
            f"{result.loaded} of {result.sealed}\n{result.with_rows} with rows",
            _ranges(result.ranges, "\n"),
            f"{result.holes:,}\n{result.aborted:,} aborted\n{result.markers:,} markers",
            _checks(result.checks),
            end_section=True,
        )
    console.print(table)
    for result in results:
        exactness = result.exactness
        outcome = f"exact: each of the {exactness.rows:,} rows exists once" if exactness.exact else "NOT exact"
        console.print(f"{exactness.topic}: {outcome}", markup=False)
        if not result.typed.faults():
            console.print(result.typed.sentence(), markup=False, soft_wrap=True)
        for fault in result.faults():
            console.print(f"  {fault}", markup=False, soft_wrap=True)
    for line in (*map(str, made), *(f"  {fault}" for fault in faults)):
        console.print(line, markup=False, soft_wrap=True)
    passed = not faults and not any(result.faults() for result in results) and all(each.is_equal for each in made)
    if passed:
        console.print(
            "Every raw table holds exactly the committed records, everything made from them matches the files, and every "
            "check has passed.",
            markup=False,
        )
    return passed


def _checks(states: Mapping[str, str]) -> str:
    """Return the number of checks that have passed, and the checks that have not passed."""
    others = [f"{name} {state}" for name, state in states.items() if state != "passed"]
    return "\n".join([f"{len(states) - len(others)} of {len(states)} passed", *others])


def _ranges(ranges: TopicRanges, separator: str = "; ") -> str:
    return separator.join(f"{partition}: [{span.start:,}, {span.end:,})" for partition, span in ranges.items())
