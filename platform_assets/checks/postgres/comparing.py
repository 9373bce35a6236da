"""Comparison of a topic's latest rows with the table in PostgreSQL, at one snapshot of the database.

The decoded rows are restricted to transactions that the snapshot includes, so the comparison is exact while both sides
change. Equal rows are a proof. A difference counts only if Kafka and the lake had every change of the snapshot before
the rows were read: the connector's slot has confirmed the snapshot's position, and every record that Kafka had after
that is decoded.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Final, Literal

from platform_assets.checks.postgres.database import Database, opened
from platform_assets.checks.postgres.latest import Cause, Key, Latest, LatestRows, order_of
from platform_assets.checks.postgres.values import Conversion, DatabaseType, conversion, key_text
from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError, Terminal
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake import delta_log
from platform_assets.lake.decoded_table import type_name
from platform_assets.ledger.store import Ledger
from platform_assets.model import debezium
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.state import RECORD_KEY
from platform_assets.windows.decode.decoding import Receipts

KEPT: Final = 1_000
"""Default number of differences that are kept; all are counted."""
_LOOK_AGAIN: Final = 1.0
Kind = Literal["missing", "extra", "different", "undecided"]
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Outcome = Literal["equal", "different", "undecided"]
_UNSURE: Final[dict[Cause, str]] = {
    "unplaced": (
        "have newer decoded rows that name no transaction, so it is unknown whether the snapshot includes these: let the "
        "connector send the rows of the keys again"
    ),
    "ambiguous": (
        "have newer decoded rows whose transaction ids are those of running transactions, but may be older, because ids "
        "began again: run again when the transactions that run now have ended"
    ),
    "tombstone": (
        "end with a tombstone that follows no delete event, so the state does not have them. If the database still has "
        "their rows when you run again, let the connector send them again (an incremental snapshot)"
    ),
}
"""Text about undecided keys for each cause. The number of the keys comes before it."""


class DiskFullError(Terminal):
    """The folder of temporary files is full."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"the decoded rows cannot be sorted in temporary files below {folder}: {reason}. Nothing was compared. Free space "
            "there, or set TMPDIR to a folder on a larger disk, and run the command again"
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose rows differ. `missing` rows are only in the database, `extra` rows only in the lake; of `different`
    rows, `columns` are those that differ. `values` has PostgreSQL's text and the row's value for each column, if they
    were requested. `undecided` keys have several rows in the lake that may be the one in the snapshot, of which some equal
    the database's."""

    kind: Kind
    key: dict[str, str | None]
    columns: tuple[str, ...] = ()
    values: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)


@dataclass
class Comparison:
    """The result of a comparison. `later` is the number of decoded rows of transactions that began after the snapshot.
    `not_compared` maps columns to the reasons. `reasons` say why differences may be changes that are not in the lake
    yet, and `notes` what else may explain differences. `doubts` say why neither equal rows nor differences count.
    `differences` has the first `limit` of them. `unsure` counts undecided keys by their cause."""

    topic: str
    table: str
    snapshot: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    not_compared: dict[str, str]
    reasons: tuple[str, ...]
    notes: list[str]
    rows: int = 0
    later: int = 0
    differences: list[Difference] = field(default_factory=list)
    counts: Counter[Kind] = field(default_factory=Counter)
    doubts: list[str] = field(default_factory=list)
    limit: int = KEPT
    unsure: Counter[Cause] = field(default_factory=Counter)

    @property
    def outcome(self) -> Outcome:
        """The outcome: rows that differ are undecided if the lake may lack changes of the snapshot. Keys that are undecided
        do not matter if rows of others differ."""
        if self.why_undecided:
            return "undecided"
        return "different" if self.counts.total() else "equal"

    @property
    def why_undecided(self) -> list[str]:
        """Why the outcome is undecided; empty if it is decided."""
        is_decided = self.counts.total() > self.counts["undecided"]
        reasons = self.reasons if self.counts.total() else ()
        return [*self.doubts, *reasons, *(() if is_decided and not (self.doubts or reasons) else self.about_keys)]

    @property
    def about_keys(self) -> list[str]:
        """Why keys are undecided; empty if none is."""
        return [f"{self.unsure[cause]:,} keys {text}" for cause, text in _UNSURE.items() if self.unsure[cause]]

    def add(self, difference: Difference) -> None:
        """Count a difference, and keep it if there are not too many."""
        self.counts[difference.kind] += 1
        if len(self.differences) < self.limit:
            self.differences.append(difference)


@dataclass(frozen=True)
class PostgresComparison:
    """Compares a topic with its table in the database at `address`, which the environment variable `variable` contains.

    `table` is `schema.table`; by default, the end of the topic's name. `slot` is the connector's replication slot; by
    default, the only logical one of the database. `wait` is the number of seconds to wait for changes that are not in
    the lake yet. With `values`, differences contain values. The first `limit` differences are kept, in the order of keys.
    """

    declaration: TopicDeclaration
    ledger: Ledger
    cluster: Cluster
    address: str = field(repr=False)
    variable: str
    table: str | None = None
    slot: str | None = None
    wait: float = 0.0
    values: bool = False
    limit: int = KEPT
    on_progress: Callable[[str], None] = lambda text: None

    def run(self) -> Comparison:
        """Compare all rows. Raises ConfigurationError if the topic is not one of a database table, or has no key that
        can be compared, or has no decoded rows yet; FilesLostError, DiskFullError, DatabaseUnreachableError and ServerLimitError."""
        d = self.declaration
        if d.decode is None or d.decode.value.format != debezium.FORMAT:
            raise ConfigurationError(
                f"topic {d.topic!r} is not decoded with the format debezium, so it does not follow a table of a database"
            )
        if not delta_log.exists(self.ledger.lake.table(d.decoded_table)):
            raise ConfigurationError(
                f"{d.decoded_table} has no rows yet: load a window of the topic, then compare again"
            )
        schema, table = self._names()
        with opened(self.address, self.variable, schema, table) as database:
            reasons = self._waited(database)
            try:
                with TemporaryDirectory(prefix="platform-assets-compare-") as folder:
                    return self._compared(database, reasons, Path(folder))
            except OSError as e:
                if e.errno in _FULL:
                    raise DiskFullError(gettempdir(), e.strerror or os.strerror(e.errno)) from e
                raise

    def _names(self) -> tuple[str, str]:
        parts = self.declaration.topic.split(".")[-2:] if self.table is None else self.table.split(".")
        if len(parts) != 2 or not all(parts):
            raise ConfigurationError(
                f"{self.table or self.declaration.topic!r} does not end with schema.table: name the table with `--table "
                "schema.table`"
            )
        return parts[0], parts[1]

    def _compared(self, database: Database, reasons: tuple[str, ...], folder: Path) -> Comparison:
        d = self.declaration
        assert d.decode is not None
        spec = d.decode.value
        declared = {f.name: f.type for f in decoder_of(spec).fields}
        facts = {fact: debezium.column_of(spec, fact) for fact in debezium.DEFAULT_NAMES}
        held, there = {n: t for n, t in declared.items() if n not in facts.values()}, database.columns()
        key = self._key(database, there)
        texts = {}
        for name in key:
            found = key_text(there[name], held[name]) if name in held and name in there else None
            if found is None:
                raise ConfigurationError(
                    f"the key column {name!r} is {there.get(name, 'missing')} in the database and "
                    f"{type_name(held[name]) if name in held else 'missing'} in `schema`: a key needs whole numbers, strings, "
                    "booleans, dates or binaries on both sides"
                )
            texts[name] = found
        table = self.ledger.lake.table(d.decoded_table)
        decoded = {field.name for field in table.delta().schema().fields}
        lacking = [name for name in (*facts.values(), *key) if name not in decoded]
        if lacking:
            raise ConfigurationError(
                f"{d.decoded_table} lacks the columns {', '.join(lacking)}, which the comparison needs: decode the topic's "
                "windows again with today's `decode:`, then compare again"
            )
        judged: dict[str, Conversion] = {}
        not_compared = {name: "not in `schema`" for name in there if name not in held}
        for name, kind in held.items():
            how = conversion(there[name], kind) if name in there else None
            if name in there and there[name].is_generated:
                not_compared[name] = "PostgreSQL generates it, and streams it as null before version 18"
            elif name not in decoded:
                not_compared[name] = f"{d.decoded_table} has no such column yet: decode the topic's windows again"
            elif how is not None:
                judged[name] = how
            elif name in there:
                not_compared[name] = f"{there[name]} is not compared with {type_name(kind)}"
            else:
                not_compared[name] = "the database has no such column"
        result = Comparison(
            d.topic, f"{database.schema}.{database.table}", database.snapshot.text, tuple(key), tuple(judged),
            not_compared, reasons, self._notes(), limit=self.limit,
        )  # fmt: skip
        windows = [window.key for window in self.ledger.windows(d.topic)]
        rows = LatestRows(table, windows, facts, texts, tuple(judged), database.snapshot, folder)
        self._merge(result, database.rows(key, {name: there[name] for name in judged}), rows.sorted(), judged)
        result.later = rows.later
        if database.is_rewritten():
            result.doubts.append("the table was truncated or rewritten: run again")
        if rows.later_reads:
            result.reasons += (
                f"{rows.later_reads:,} rows are from a snapshot of the connector that had not ended when the database's "
                "snapshot was taken: run again after the connector's snapshot",
            )
        return result

    def _key(self, database: Database, there: dict[str, DatabaseType]) -> list[str]:
        state = self.declaration.state
        key = list(state.key) if state is not None and RECORD_KEY not in state.key else database.primary_key()
        if not key:
            raise ConfigurationError(
                f"{database.schema}.{database.table} has no primary key, and the topic has no `state:` with columns as its "
                "key, so rows cannot be identified: declare `state: {key: [...]}`"
            )
        return key

    def _merge(
        self,
        result: Comparison,
        there: Iterator[tuple[Key, list[Any]]],
        here: Iterator[tuple[Key, Latest]],
        judged: dict[str, Conversion],
    ) -> None:
        """Compare two series of rows, both sorted by key. Raises ConfigurationError if the database has several rows
        with the same key, or does not sort by bytes of UTF-8."""
        before, at, row = None, next(there, None), next(here, None)
        while at is not None or row is not None:
            if at is not None and at[0] == before:
                raise ConfigurationError(
                    f"several rows of {result.table} have the same key {', '.join(result.key)}: declare a `state: key` that "
                    "identifies a row"
                )
            if at is not None and before is not None and order_of(at[0]) < order_of(before):
                raise ConfigurationError(
                    f"the database does not sort the key {', '.join(result.key)} by the bytes of UTF-8, so it cannot be "
                    "compared: use a database with the encoding UTF8"
                )
            if at is None or (row is not None and order_of(row[0]) < order_of(at[0])):
                assert row is not None
                self._judge(result, row[0], None, row[1], judged)
                row = next(here, None)
                continue
            is_same = row is not None and row[0] == at[0]
            self._judge(result, at[0], at[1], row[1] if row is not None and is_same else None, judged)
            row = next(here, None) if is_same else row
            result.rows += 1
            if result.rows % 100_000 == 0:
                self.on_progress(f"{result.rows:,} rows compared")
            before, at = at[0], next(there, None)

    def _judge(
        self,
        result: Comparison,
        key: Key,
        texts: list[Any] | None,
        latest: Latest | None,
        judged: dict[str, Conversion],
    ) -> None:
        """Compare the database's row with the lake's. If several rows may be the lake's, a difference needs that all of them
        differ, and equality that none does."""
        if texts is None and latest is not None and latest.rows[-1] is None:
            # Neither the database nor the state has the key: what `Latest` leaves out does not come last, or is no row.
            return
        rows = (None,) if latest is None else latest.rows
        found = [self._difference(result, key, texts, row, judged) for row in rows]
        differing = [each for each in found if each is not None]
        if len(differing) == len(found) and (latest is None or latest.are_all):
            result.add(differing[-1])
        elif differing or (latest is not None and not latest.are_all):
            assert latest is not None
            result.add(Difference("undecided", dict(zip(result.key, key, strict=True))))
            result.unsure[latest.cause or "unplaced"] += 1

    def _difference(
        self,
        result: Comparison,
        key: Key,
        texts: list[Any] | None,
        row: dict[str, Any] | None,
        judged: dict[str, Conversion],
    ) -> Difference | None:
        """Return how a row of the lake differs from one of the database; None if they are equal, or both are None."""
        names = dict(zip(result.key, key, strict=True))
        if texts is None or row is None:
            is_same = texts is None and row is None
            return None if is_same else Difference("extra" if texts is None else "missing", names)
        of = dict(zip(judged, texts, strict=True))
        wrong = tuple(name for name, how in judged.items() if not how.same(of[name], row[name]))
        if not wrong:
            return None
        shown = {n: (of[n], None if row[n] is None else str(row[n])) for n in wrong} if self.values else {}
        return Difference("different", names, wrong, shown)

    # --- whether the lake has every change of the snapshot ------------------------------------------------------

    def _waited(self, database: Database) -> tuple[str, ...]:
        """Return why the lake may lack changes of the snapshot, after waiting for at most `wait` seconds."""
        end = time.monotonic() + self.wait
        while (reasons := self._lacking(database)) and time.monotonic() < end:
            self.on_progress(f"waiting: {reasons[0]}")
            time.sleep(min(_LOOK_AGAIN, max(end - time.monotonic(), 0)))
        return reasons

    def _lacking(self, database: Database) -> tuple[str, ...]:
        # In this order: what the connector has confirmed is in Kafka before the offsets are read.
        slots = database.slots(self.slot)
        if len(slots) != 1:
            found = ", ".join(slot.name for slot in slots) or "none"
            return (
                f"the connector's replication slot is unknown (found: {found}), so it is unknown whether the connector has "
                "sent every change: name the slot with `--slot`",
            )
        behind = database.snapshot.lsn - slots[0].confirmed
        if behind > 0:
            return (
                f"the connector has not confirmed the last {behind:,} bytes of the database's log before the snapshot (slot "
                f"{slots[0].name})",
            )
        d = self.declaration
        ends = self.cluster.last_stable_offsets(topic := self.cluster.topic(d.topic))
        cut = self.ledger.newest_cut(d.topic)
        if cut is not None and cut.topic_id != topic.topic_id:
            return (
                f"the topic was created again (id {topic.topic_id}) after its newest window (id {cut.topic_id}): see "
                "`platform-assets accept-generation --help`",
            )
        unreached = [p for p in topic.partitions if p not in ends]
        if unreached:
            return (f"the brokers did not give the end of partitions {unreached}",)
        waiting = sum(
            max(found.offset - (0 if cut is None else cut.cut.at(partition)), 0) for partition, found in ends.items()
        )
        if waiting:
            return (f"{waiting:,} offsets of the topic come after the newest sealed window",)
        return not_decoded(d, self.ledger)

    def _notes(self) -> list[str]:
        d = self.declaration
        letters = sum(r.rows for r in self.ledger.receipts(d.dead_letter_table).values())
        keys = [window.key for window in self.ledger.windows(d.topic)]
        lost = sum(
            each.size
            for partitions in self.ledger.accepted_losses_of(d.raw_table, keys).values()
            for ranges in partitions.values()
            for each in ranges
        )
        found = {"records are dead letters": letters, "offsets were erased or accepted as lost": lost}
        return [f"{count:,} {text}, so the rows of their keys may differ" for text, count in found.items() if count]


def not_decoded(declaration: TopicDeclaration, ledger: Ledger) -> tuple[str, ...]:
    """Return why the decoded table may lack rows of the topic's windows."""
    assert declaration.decode is not None
    raw, decoded, letters = (
        ledger.receipts(table)
        for table in (declaration.raw_table, declaration.decoded_table, declaration.dead_letter_table)
    )
    missing, outdated, expired = list[str](), list[str](), list[str]()
    for window in ledger.windows(declaration.topic):
        key = window.key
        known = Receipts(decoded.get(key), letters.get(key))
        if key not in raw or not known.are_there:
            missing.append(key)
        elif any(r is not None and r.is_expired for r in (raw[key], known.decoded, known.dead_letters)):
            expired.append(key)
        elif raw[key].topic_id != window.topic_id or (
            window.ranges.size
            and not (known.are_of(declaration.decode.digest_of(key)) and known.are_made_from(raw[key]))
        ):
            outdated.append(key)
    found = {
        "windows are not decoded yet": missing,
        "windows must be decoded again, because their raw rows or `decode:` have changed": outdated,
        "windows are past `keep`, so the lake no longer has their rows": expired,
    }
    return tuple(f"{len(keys):,} {text}, the first is {keys[0]}" for text, keys in found.items() if keys)
