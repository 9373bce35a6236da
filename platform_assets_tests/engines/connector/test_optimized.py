"""Tables sorted by Spark's own OPTIMIZE, which writes INT96 timestamps and other files. Every command still sees the
same rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from platform_assets.model.tables import TableKind
from platform_assets.windows.recover.rebuild import rebuild
from platform_assets.windows.recover.rebuild_decoded import rebuild_decoded
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, proved
from platform_assets_tests.support.made_kafka import MadeCluster, loader_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


KINDS: tuple[TableKind, ...] = ("raw", "decoded")


def contents(topic: MadeTopic) -> dict[tuple[str, str], Any]:
    """Return the row counts and digests of the receipts."""
    return {(kind, key): (r.offsets, r.content) for kind in KINDS for key, r in topic.receipts(kind).items()}


@pytest.mark.long
@pytest.mark.spark
def test_a_live_table_that_spark_has_sorted_is_loaded_decoded_checked_rebuilt_and_erased_as_before(
    tmp_path: Path, spark: SparkSession
) -> None:
    topic = MadeTopic(tmp_path)
    topic.fill(
        topic.seal([{p: [(b"k%d" % i, b"%d/%d/%d" % (w, p, i)) for i in range(6)] for p in (0, 1)} for w in range(2)])
    )
    values, windows, kafka = topic.values(), topic.ledger.windows(topic.topic), MadeCluster(topic)
    before = contents(topic)
    # Spark's default. Tests that share this session may have given it the platform's settings.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    for kind in KINDS:
        table = topic.root / kind / topic.topic
        spark.sql(f"OPTIMIZE delta.`{table}` ZORDER BY (kafka_timestamp)")
        delta = DeltaTable(table)
        delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        schema = pq.ParquetFile(next(p for p in table.rglob("*.parquet") if "_delta_log" not in p.parts)).schema
        kinds = {schema.column(n).name: schema.column(n).physical_type for n in range(len(schema))}
        assert kinds["kafka_timestamp"] == "INT96"
    kafka.expire(0, 6)
    kafka.expire(1, 6)
    assert [loader_of(topic, kafka).load(w.key).outcome for w in windows] == ["kept", "unchanged"]
    assert [topic.decoder().decode(w.key).outcome for w in windows] == ["unchanged"] * 2
    proved(topic)
    shutil.rmtree(topic.root / "_ledger")
    assert rebuild(topic.declaration, topic.ledger, topic.engine).unread == ()
    assert rebuild_decoded(topic.declaration, topic.ledger, topic.decoder().engine) == 2
    assert contents(topic) == before
    topic.erasure.record(topic.erasure.of_keys([b"k3"]), AUTHOR)
    assert topic.erasure.run(AUTHOR).rows == {"raw/people": 4, "decoded/people": 4}
    assert topic.values() == [v for v in values if not v.endswith(b"/3")]
    proved(topic)
