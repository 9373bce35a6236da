"""The input of tasks. It consists of plain values without secrets, because Spark stores and displays plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from platform_assets.engines.shared.reports import UnsupportedError
from platform_assets.errors import ConfigurationError
from platform_assets.kafka.settings import BatchLimits, ClientSettings
from platform_assets.lake.field_ids import NO_IDS, FieldIds
from platform_assets.model.offsets import OffsetRange


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """The offsets `wanted` of one partition, which one task reads. Either end of the range can be inside a batch or a
    transaction."""

    partition: int
    wanted: OffsetRange


def shares(ranges: Mapping[int, Sequence[OffsetRange]], smallest: int, most: int) -> tuple[tuple[Piece, ...], ...]:
    """Divide the offsets in `ranges` (by partition, ascending and disjoint) into shares of equal size, one for each
    task.

    Returns at most `most` shares. Each share has at least `smallest` offsets, unless `ranges` has fewer in total.
    Pieces and shares are ordered by partition and offset. A large partition is divided among several tasks, and small
    partitions share a task. Empty ranges are omitted. If there are no offsets, there are no shares.
    """
    if smallest < 1 or most < 1:
        raise ValueError(
            f"cannot make at most {most} shares of at least {smallest} offsets each: both must be positive"
        )
    line = [Piece(p, r) for p in sorted(ranges) for r in ranges[p] if r.size]
    total = sum(piece.wanted.size for piece in line)
    count = min(most, -(-total // smallest))
    found: list[list[Piece]] = [[] for _ in range(count)]
    passed = 0
    for piece in line:
        at = piece.wanted.start
        while at < piece.wanted.end:
            share = passed * count // total
            ends = -(-(share + 1) * total // count)  # the first position of the next share
            until = min(piece.wanted.end, at + ends - passed)
            found[share].append(Piece(piece.partition, OffsetRange(at, until)))
            passed += until - at
            at = until
    return tuple(tuple(share) for share in found)


@dataclass(frozen=True, slots=True)
class Source:
    """A topic with its id, and the table that the topic is loaded into. `table` is the table's path on the worker."""

    topic: str
    topic_id: str
    table: str


@dataclass(frozen=True, slots=True)
class Share:
    """The offsets that one task reads, and its output folder. `folder` is relative to the table's folder.

    `window_column` is true if the files get a window column. `field_ids` are the ids of the files' columns.
    """

    window: str
    folder: str
    pieces: tuple[Piece, ...]
    source: Source
    window_column: bool = False
    field_ids: FieldIds = NO_IDS


@dataclass(frozen=True, slots=True)
class Work:
    """All shares of a job, and the connection to the brokers.

    `options` are the names of the required client settings. The values of these settings come from the worker's own
    environment. `limits` are the batch limits of this process. A partition with `rows_apart` rows or more gets a file
    of its own.
    """

    bootstrap: str
    options: tuple[str, ...]
    shares: tuple[Share, ...]
    rows_apart: int
    patience: float
    fetch_bytes: int
    limits: BatchLimits = field(default_factory=BatchLimits)

    def settings(self, environment: Mapping[str, str]) -> ClientSettings:
        """Read the client settings from a worker's environment. Raises UnsupportedError if a setting is missing or
        invalid."""
        try:
            found = ClientSettings.from_environment(environment, self.bootstrap)
        except ConfigurationError as error:
            raise UnsupportedError(f"the environment of Spark's workers has invalid settings ({error})") from None
        if missing := sorted(set(self.options) - set(found.options)):
            names = ["KAFKA_" + name.upper().replace(".", "_") for name in missing]
            raise UnsupportedError(f"the environment of Spark's workers lacks {names}")
        options = {name: found.options[name] for name in self.options}
        return ClientSettings(self.bootstrap, options, self.limits, found.cleartext_logins)
