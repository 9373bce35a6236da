"""The aging check `retention_is_far`, and the retention forecast as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from platform_assets.model.retention import Forecast
from platform_assets.model.tables import TableRef
from platform_assets.model.untrusted import markdown
from platform_assets.orchestration.aging_checks import AgingCheck, Messages, Subject, could_not_tell
from platform_assets.orchestration.names import table_key
from platform_assets.windows.load.retention_forecast import PartitionForecast, RetentionForecast

if TYPE_CHECKING:
    from platform_assets.kafka.batches.observing import OpenTransaction

RETENTION_IS_FAR: Final = "retention_is_far"

_DESCRIPTION: Final = (
    "Kafka's retention leaves enough time for unloaded records: more than a quarter of `retention.ms`, and of "
    "`retention.bytes` at today's rate. This check only warns; it blocks nothing."
)
_LONG: Final = timedelta(minutes=1)
"""Default transaction timeout of producers. Transactions that have been open longer than this are listed."""
_GRACE: Final = timedelta(minutes=1)
"""Time within which a coordinator aborts a transaction after its timeout: the coordinator checks for timeouts every ten
seconds and then writes markers."""
_LONGEST: Final = timedelta(minutes=15)
"""Default maximum transaction timeout (`transaction.max.timeout.ms`). Until this time has passed, a client that is not
allowed to query coordinators cannot distinguish a hanging transaction from one in progress."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """An open transaction, which holds back `offsets` offsets from `start` on. Times are ISO 8601 in UTC.

    `since` is when the transaction began or, if no coordinator knows it, when its producer last wrote. In the second
    case, `transactional_id`, `state` and `ends_at` are None. `ends_at` is when the coordinator aborts the transaction.
    """

    partition: int
    start: int
    offsets: int
    producer_id: int
    since: str
    transactional_id: str | None
    state: str | None
    ends_at: str | None


def transactions(table_forecast: RetentionForecast) -> tuple[TransactionStatus, ...]:
    """Return the open transactions as `status` shows them."""
    return tuple(
        TransactionStatus(
            t.partition,
            t.start,
            table_forecast.held_back_by(t),
            t.producer_id,
            _iso(t.since),
            None if t.coordinated is None else t.coordinated.transactional_id,
            None if t.coordinated is None else t.coordinated.state,
            None if t.coordinated is None else _iso(t.coordinated.ends_at),
        )
        for t in table_forecast.transactions
    )


# --- texts ------------------------------------------------------------------------------------------------------


def problems(table_forecast: RetentionForecast, bootstrap: str, now: datetime) -> Iterator[str]:
    """Yield problems that a person must solve: transactions that never end on their own, and retention that is close to
    the table's position."""
    hung = [t for t in table_forecast.transactions if _is_hung(t, now)]
    for transaction in hung[:_NAMED]:
        yield _transaction_text(table_forecast, transaction, bootstrap, now)
    if len(hung) > _NAMED:
        yield f"{len(hung) - _NAMED} more hanging transactions: `platform-assets status --json` lists them"
    near = [(p, p.forecast) for p in table_forecast.partitions if p.forecast is not None and p.forecast.near]
    for partition, forecast in near[:_NAMED]:
        yield _overtaken(partition, forecast)
    if len(near) > _NAMED:
        yield f"{len(near) - _NAMED} more partitions are close to their retention limit"


def warnings(table_forecast: RetentionForecast, bootstrap: str, now: datetime) -> Iterator[str]:
    """Yield warnings about conditions that resolve on their own, and about facts that could not be determined."""
    for transaction in table_forecast.transactions[:_NAMED]:
        if not _is_hung(transaction, now) and now - transaction.since > _LONG:
            yield _transaction_text(table_forecast, transaction, bootstrap, now)
    if table_forecast.unknown:
        yield f"the forecast is incomplete: {'; '.join(table_forecast.unknown)}"


def _is_hung(transaction: OpenTransaction, now: datetime) -> bool:
    known = transaction.coordinated
    return now > (transaction.written_at + _LONGEST if known is None else known.ends_at) + _GRACE


def _transaction_text(
    table_forecast: RetentionForecast, transaction: OpenTransaction, bootstrap: str, now: datetime
) -> str:
    t, known = transaction, transaction.coordinated
    whose = f"producer id {t.producer_id}" + ("" if known is None else f", transactional id {known.transactional_id!r}")
    text = (
        f"a transaction ({whose}) is open in partition {t.partition} from offset {t.start} on, "
        f"{'last written to' if known is None else 'begun'} at {_iso(t.since)}, and holds back "
        f"{table_forecast.held_back_by(t):,} offsets. Until it ends, windows end before its first offset; after "
        "that, loading continues by itself. "
    )
    if known is not None and not _is_hung(t, now):
        return text + (
            f"Its coordinator aborts it at {_iso(known.ends_at)} (transaction.timeout.ms {known.timeout // _MS:,}), "
            "unless its producer ends it earlier."
        )
    why = (
        "No coordinator that this client is allowed to query knows this transaction, so the transaction will not end by itself."
        if known is None
        else f"It should have been aborted at {_iso(known.ends_at)}, but is still {known.state}."
    )
    return text + (
        f"{why} If its producer is no longer running, abort the transaction: `kafka-transactions.sh --bootstrap-server {bootstrap} "
        f"abort --topic {table_forecast.topic} --partition {t.partition} --start-offset {t.start}`"
    )


def _overtaken(partition: PartitionForecast, forecast: Forecast) -> str:
    where = f"partition {partition.partition}"
    if forecast.lost:
        return (
            f"retention has removed {forecast.lost:,} offsets of {where}, from {partition.loaded} on, that were not "
            "loaded: load their window to see which offsets are lost and what to do next"
        )
    bound = "retention.ms" if forecast.hours == forecast.by_time else "retention.bytes"
    when = "at any moment" if not forecast.hours else f"in {hours_text(forecast.hours)} at the earliest"
    return (
        f"retention will remove offset {partition.loaded} of {where}, which is not loaded, {when} ({bound}: "
        f"{forecast.share or 0:.0%} of the limit is left). See `platform-assets status` for why windows are not "
        "loaded, or increase the topic's "
        "retention"
    )


def hours_text(hours: float) -> str:
    """Return a readable duration whose precision suits its size."""
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} d"


# --- the check --------------------------------------------------------------------------------------------------

_COLUMNS: Final = (
    dg.TableColumn("partition", "int", description="Kafka partition"),
    dg.TableColumn("loaded_to", "int", description="exclusive end of the offsets that are loaded without a gap"),
    dg.TableColumn("lag", "int", description="offsets from `loaded_to` to the last stable offset"),
    dg.TableColumn("held_back", "int", description="offsets that wait for an open transaction to end"),
    dg.TableColumn(
        "hours_by_time", "string", description="time until retention.ms may remove the first unloaded offset"
    ),
    dg.TableColumn(
        "hours_by_size", "string", description="time until retention.bytes may remove that offset, at today's rate"
    ),
)


def result(table: TableRef, table_forecast: RetentionForecast) -> dg.AssetCheckResult:
    """Return the result of the check: a warning if retention is close to the table's position."""
    near = [(p, p.forecast) for p in table_forecast.partitions if p.forecast is not None and p.forecast.near]
    hours, foretold = table_forecast.hours, [p for p in table_forecast.partitions if p.forecast is not None]
    if near:
        text = "; ".join(_overtaken(p, f) for p, f in near[:_NAMED])
        headline = f"**Retention is close**: {markdown(text)}."
    elif table_forecast.unknown and len(foretold) < len(table_forecast.partitions):
        headline = f"**Could not tell**: {markdown('; '.join(table_forecast.unknown))}"
    elif hours is None:
        headline = "No unloaded record is subject to retention."
    else:
        headline = f"Retention will not remove any unloaded record for at least {hours_text(hours)}."
    records = [
        dg.TableRecord(
            {
                "partition": p.partition,
                "loaded_to": p.loaded,
                "lag": p.lag or 0,
                "held_back": p.held_back,
                "hours_by_time": _cell(None if p.forecast is None else p.forecast.by_time),
                "hours_by_size": _cell(None if p.forecast is None else p.forecast.by_size),
            }
        )
        for p in table_forecast.partitions
    ]
    values: dict[str, Any] = {
        "partitions": dg.MetadataValue.table(records, dg.TableSchema(list(_COLUMNS))),
        "lag": sum(p.lag or 0 for p in table_forecast.partitions),
        "held_back": sum(p.held_back for p in table_forecast.partitions),
    }
    if hours is not None:
        values["hours_left"] = round(hours, 2)
    return dg.AssetCheckResult(
        asset_key=table_key(table),
        check_name=RETENTION_IS_FAR,
        passed=not near and not headline.startswith("**"),
        severity=dg.AssetCheckSeverity.WARN,
        description=headline,
        metadata=values,
    )


def _cell(hours: float | None) -> str:
    return "–" if hours is None else f"{hours:.2f}"


def _evaluate(subject: Subject) -> dg.AssetCheckResult:
    found = subject.forecast
    if isinstance(found, str):
        return could_not_tell(RETENTION_IS_FAR, subject.declaration, found)
    return result(subject.declaration.raw_table, found)


def _messages(subject: Subject) -> Messages:
    found, cluster = subject.forecast, subject.cluster
    if isinstance(found, str) or isinstance(cluster, str):
        return Messages()
    servers = cluster.settings.bootstrap_servers
    return Messages(tuple(problems(found, servers, subject.now)), tuple(warnings(found, servers, subject.now)))


CHECK: Final = AgingCheck(RETENTION_IS_FAR, _DESCRIPTION, timedelta(minutes=5), _evaluate, _messages)


_MS: Final = timedelta(milliseconds=1)


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")
