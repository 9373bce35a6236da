"""The declaration of one topic: checked values from a few lines of YAML, without Dagster or Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, get_args

from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.model.keeping import Keep
from platform_assets.model.names import checked_topic
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import STATE_KINDS, StateRef, TableRef
from platform_assets.model.windows import first_edge, is_cron, window_starting_at

LoadEngineName = Literal["columnar", "connector"]
"""connector: Spark's own Kafka connector; columnar: compiled kernels in Spark's Python workers."""
EngineName = Literal["auto", LoadEngineName]
"""auto: the columnar engine if that engine can load what is requested; otherwise, the connector engine."""
ENGINES: Final[tuple[LoadEngineName, ...]] = get_args(LoadEngineName)
"""Engines that load windows; `auto` chooses one of them. `engines/choice` creates these engines, and decides which
engine confirms the other engine's loads."""
DEFAULT_ENGINE: Final[EngineName] = "auto"
DEFAULT_FILE_SIZE: Final = 128 << 20
"""Size in bytes to which upkeep merges files. Larger files do not help readers, and make it more expensive to replace a
window."""
_SMALLEST_FILE, _LARGEST_FILE = 1 << 20, 4 << 30


@dataclass(frozen=True, slots=True)
class TopicDeclaration:
    """One topic, and the way in which it is loaded.

    `schedule` is a cron schedule in UTC for the window boundaries. `start` (timezone-aware) is the earliest boundary.
    Records older than `start` are in the first window, because that window starts at the log start. Without `decode`,
    there is only the raw table. While the topic is `paused`, windows are sealed, loaded and decoded only on request.
    Topics with the same value of `together` share a sensor and runs. `target_file_size` is the size in bytes to which
    upkeep merges files.
    Upkeep removes the rows of windows past `keep` from all of the topic's tables; None keeps rows permanently. With
    `state`, the last record of each key in each window is in the table of changes.
    """

    topic: str
    schedule: str
    start: datetime
    sensor_interval: timedelta = timedelta(seconds=30)
    max_records_per_run: int = 5_000_000
    max_windows_per_run: int = 200
    max_edges_per_tick: int = 200
    tick_budget: timedelta = timedelta(seconds=20)
    records_per_file: int = 200_000
    engine: EngineName = DEFAULT_ENGINE
    decode: DecodeDeclaration | None = None
    publish_position: bool = True
    paused: bool = False
    together: str | None = None
    target_file_size: int = DEFAULT_FILE_SIZE
    keep: Keep | None = None
    state: StateDeclaration | None = None

    def __post_init__(self) -> None:
        checked_topic(self.topic)
        if not is_cron(self.schedule):
            raise ConfigurationError(
                f"window {self.schedule!r} of topic {self.topic!r} is not a cron schedule with five fields; use, for example, "
                "'0 * * * *' for every hour, or '* * * * *' for every minute"
            )
        if self.start.tzinfo is None:
            raise ConfigurationError(f"start {self.start} of topic {self.topic!r} has no time zone")
        if self.start.timestamp() < 0:
            # Negative timestamps have special meanings in Kafka: -1 is the end of the log.
            raise ConfigurationError(f"start {self.start} of topic {self.topic!r} is before 1970")
        for name in ("max_records_per_run", "max_windows_per_run", "max_edges_per_tick", "records_per_file"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} of topic {self.topic!r} must be 1 or more, not {getattr(self, name)}")
        if not _SMALLEST_FILE <= self.target_file_size <= _LARGEST_FILE:
            raise ConfigurationError(
                f"target_file_size of topic {self.topic!r} is {self.target_file_size:,} bytes, but must be from 1 MB to 4 GB: use "
                "128 MB if you have no reason for another size"
            )
        if self.state is not None and self.decode is None:
            raise ConfigurationError(
                f"state of topic {self.topic!r} needs typed rows, but the topic is not decoded: add `decode:`, or remove `state:`"
            )
        if self.state is not None and self.keep is not None:
            raise ConfigurationError(
                f"keep of topic {self.topic!r} would remove the last record of keys that have not changed for {self.keep}, so they "
                "would vanish from its state: remove `keep:`, or remove `state:`"
            )
        for name in ("sensor_interval", "tick_budget"):
            if getattr(self, name) < timedelta(seconds=1):
                raise ConfigurationError(f"{name} of topic {self.topic!r} must be at least one second")

    @property
    def first_edge(self) -> datetime:
        """The first window boundary at or after `start`, in UTC."""
        return first_edge(self.schedule, self.start).astimezone(UTC)

    def has_partition(self, edge: datetime, now: datetime) -> bool:
        """Return True if, at `now`, Dagster has a partition that starts at `edge`. Dagster has a partition for each
        window of `schedule` that has ended."""
        window = window_starting_at(self.schedule, edge)
        return window is not None and window.end <= now and edge >= self.first_edge

    def cluster_by(self, table: TableRef) -> tuple[str, ...]:
        """Return the columns by which upkeep sorts the rows in the merged files of `table`, which is one of the topic's
        tables."""
        return () if self.decode is None or table.kind != "decoded" else self.decode.cluster_by

    @property
    def raw_table(self) -> TableRef:
        """The topic's raw table."""
        return TableRef.raw(self.topic)

    @property
    def decoded_table(self) -> TableRef:
        """The table of typed rows, if the topic is decoded."""
        return TableRef("decoded", self.topic)

    @property
    def dead_letter_table(self) -> TableRef:
        """The table of records that could not be decoded."""
        return TableRef("dead_letters", self.topic)

    @property
    def changes_table(self) -> TableRef:
        """The table of the last record of each key in each window, if the topic has a state."""
        return TableRef("changes", self.topic)

    @property
    def state_tables(self) -> tuple[StateRef, ...]:
        """The tables of live and of deleted keys, and the history if one is declared, in this order; none if the topic has
        no state."""
        if self.state is None:
            return ()
        return tuple(StateRef(kind, self.topic) for kind in STATE_KINDS if kind != "history" or self.state.history)

    @property
    def tables(self) -> tuple[TableRef, ...]:
        """All tables of the topic that have windows, each after the tables from which it is made."""
        if self.decode is None:
            return (self.raw_table,)
        changes = () if self.state is None else (self.changes_table,)
        return (self.raw_table, self.decoded_table, self.dead_letter_table, *changes)
