"""Plan of a job: the shares of some windows, and the number of tasks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from platform_assets.engines.columnar.job import shares_of
from platform_assets.engines.columnar.pieces import shares
from platform_assets.engines.columnar.work import Share, Source
from platform_assets.engines.protocol import Order
from platform_assets.lake.load_folders import load_folder
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef

LARGEST_SHARE: Final = 5_000_000
"""Maximum offsets per task, which bounds the work that is lost with a task or moved to another."""
_SHARES_A_TASK: Final = 8
"""Small windows per task: a task costs about as much as writing one of them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The shares of `orders`, in order; share `i` belongs to `orders[owners[i]]`. An order without offsets has no shares."""

    orders: tuple[Order, ...]
    shares: tuple[Share, ...]
    owners: tuple[int, ...]
    tasks: int

    @classmethod
    def of(
        cls,
        orders: Sequence[Order],
        records_per_file: int,
        parallelism: Callable[[], int],
        folder: Callable[[TableRef], str],
        *,
        apart: bool,
    ) -> Plan:
        """Plan several shares for large windows; small ones share a task, unless they are to be kept `apart`.

        `folder` returns the path of a table on the workers.

        `parallelism` returns the number of tasks that run at once; it is called only for large windows, since it takes as long
        as loading a small one.
        """
        found: list[Share] = []
        owners: list[int] = []
        total = 0
        for index, order in enumerate(orders):
            ranges: dict[int, list[OffsetRange]] = {}
            for part in order.records.pieces:
                for partition, left in part.items():
                    ranges.setdefault(partition, []).append(left)
            size = order.records.ranges.size
            cores = parallelism() if size > records_per_file else 1
            most = cores * -(-size // (cores * LARGEST_SHARE)) if size > records_per_file else 1
            below = load_folder(order.records.window, order.load_id)
            source = Source(order.records.topic, order.records.topic_id, folder(order.table))
            pieces = shares(ranges, records_per_file, most)
            own = [Share(order.records.window, below, some, source) for some in pieces]
            found += own
            owners += [index] * len(own)
            total += size
        count = len(found)
        together = max(-(-count // _SHARES_A_TASK), min(count, -(-total // records_per_file)))
        return cls(tuple(orders), tuple(found), tuple(owners), count if apart else together)

    def is_last(self, share: int) -> bool:
        """Return true if no later share belongs to the same order."""
        return share + 1 == len(self.owners) or self.owners[share + 1] != self.owners[share]

    def of_task(self, task: int) -> dict[int, tuple[Share, ...]]:
        """Return the shares of a task, by the index of their order."""
        done: dict[int, tuple[Share, ...]] = {}
        for number in shares_of(task, len(self.shares), self.tasks):
            done[self.owners[number]] = (*done.get(self.owners[number], ()), self.shares[number])
        return done

    def of_order(self, index: int) -> tuple[Share, ...]:
        """Return all shares of an order."""
        return tuple(share for share, owner in zip(self.shares, self.owners, strict=True) if owner == index)
