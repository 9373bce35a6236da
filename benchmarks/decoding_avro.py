"""From Avro in a raw table to typed rows: the decode hop compared with Spark's `from_avro` over the same table."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from benchmarks import spark_avro
from benchmarks.avro_flights import BROKEN_EVERY, FAULTS, SCHEMA, broken, whole
from benchmarks.bulk import as_shipped
from benchmarks.decoding import made
from benchmarks.rounds import alternate, middle, ratio
from benchmarks.scenario import Bench, Measured, at_least
from platform_assets.model.decoding import FormatSpec
from testbed.homes import home_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOP: Final = "decode hop alone"
FROM_AVRO: Final = "Spark's from_avro over the raw table"
BROKEN: Final = f"decode hop alone, one record in {BROKEN_EVERY} cut by a byte"
SPEC: Final = FormatSpec("avro", {"schema": SCHEMA})


def run(bench: Bench) -> Measured:
    """Measure the seconds for all records of one window."""
    records, rounds = bench.pick(1_000_000, 200_000), bench.pick(5, 3)
    values = whole(records, SCHEMA)
    good = made(bench, pa.array(values, pa.binary()), "avro", SPEC)
    bad = made(bench, broken(values, SCHEMA, FAULTS["cut by a byte"]), "broken-avro", SPEC)
    spark = as_shipped(bench.remote)
    spark.addArtifact(str(spark_avro.installed(home_at(bench.root), bench.report)))
    shipped = replace(good, bulk=replace(good.bulk, spark=spark))
    contenders: dict[str, Callable[[], object]] = {
        HOP: good.decode,
        FROM_AVRO: lambda: shipped.by_spark(typed),
        BROKEN: bad.decode,
    }
    seconds = alternate(contenders, rounds, bench.report, good.bulk.clear)
    goals = [
        at_least(f"{HOP}, speed relative to {FROM_AVRO}", 3.0, ratio(seconds[FROM_AVRO], seconds[HOP])),
        at_least(f"{BROKEN}, speed relative to unbroken records", 0.5, ratio(seconds[HOP], seconds[BROKEN])),
    ]
    size = round(sum(map(len, values)) / records)
    setting = {"records": records, "bytes a record": size, "cores": os.cpu_count() or 1}
    rates = {name: round(records / middle(s)[0]) for name, s in seconds.items()}
    return Measured("decoding-avro", seconds, goals, setting=setting, more={"records per second": rates})


def typed(frame: DataFrame, *kept: str) -> DataFrame:
    """Return the columns that Spark decodes from the values. Spark stops at an unreadable value."""
    from pyspark.sql.connect.avro.functions import from_avro

    return frame.select(*kept, from_avro("value", json.dumps(SCHEMA)).alias("value")).select(*kept, "value.*")
