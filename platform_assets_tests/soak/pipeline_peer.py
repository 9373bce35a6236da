"""The peer of the scenario `pipeline`: Structured Streaming with its sink for Kafka, which delivers at least once.

The query has the same filter and aggregates, by windows of a minute of the records' timestamps, and sends a window once
it has ended. The server that runs it is killed and started again, and the query continues from its checkpoint.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from platform_assets_tests.soak.pipeline import Course, Kill, Outcome, outcome
from platform_assets_tests.soak.request_log import LEAST_STATUS, SCHEMA, Key, Row, SteadyProducer, end_of_minute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BY: Final = "Structured Streaming"
_WATERMARK: Final = "10 seconds"
"""How late a record may be. A window is sent after this time."""
_LATEST: Final = 8.0
"""Latest moment of a kill, in seconds after the end of a minute."""
_BATCH_WITHIN: Final = 90.0


def by_structured_streaming(course: Course, seed: int, root: Path) -> Outcome:
    """Let Structured Streaming do it. Kafka and Spark must be running."""
    query = _Query(course, root / f"checkpoint-{course.name}")
    query.start()

    def expected(producer: SteadyProducer) -> dict[Key, Row]:
        return producer.notes().by_time()

    producer, read, wanted = course.run(query.kill, expected)
    query.stop()
    return outcome(course, seed, BY, producer, read, wanted, {w: end_of_minute(w) for w, _ in wanted})


@dataclass
class _Query:
    """The query on the platform's Spark server."""

    course: Course
    checkpoint: Path
    _query: Any = None

    def start(self) -> None:
        """Start the query, or continue from its checkpoint."""
        from pyspark.sql import SparkSession

        session: Any = SparkSession.builder.remote(self.course.platform.remote).create()
        self._query = (
            self._results(session)
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self.course.platform.bootstrap)
            .option("topic", self.course.results)
            .option("checkpointLocation", str(self.checkpoint))
            .outputMode("append")
            .start()
        )

    def _results(self, session: Any) -> DataFrame:
        from pyspark.sql import functions as F

        requests = (
            session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.course.platform.bootstrap)
            .option("subscribe", self.course.source)
            .option("startingOffsets", "earliest")
            .load()
            .select("timestamp", F.from_json(F.col("value").cast("string"), SCHEMA).alias("r"))
            .withWatermark("timestamp", _WATERMARK)
        )
        rows = (
            requests.where(F.col("r.status") >= LEAST_STATUS)
            .groupBy(F.window("timestamp", "1 minute").alias("minute"), F.col("r.service").alias("service"))
            .agg(
                F.count("*").alias("failures"), F.sum("r.bytes").alias("bytes"), F.max("r.number").alias("last"),
            )
        )  # fmt: skip
        window = F.date_format("minute.start", "yyyy-MM-dd-HH:mm").alias("window")
        return rows.select(
            F.to_json(F.struct(window, "service")).alias("key"), F.to_json(F.struct(*Row._fields)).alias("value")
        )

    def stop(self) -> None:
        """Stop the query. Raises what has ended it before."""
        error = self._query.exception()
        if error is not None:
            raise error
        self._query.stop()

    def kill(self, kind: Kill) -> bool:
        """Kill the server at a random moment after the end of a minute, or when the first record of a batch is seen; start
        server and query again. Return False if there was no batch for some time."""
        course = self.course
        if kind == "sending":
            course.first_of_batch.clear()
            until = time.monotonic() + _BATCH_WITHIN
            while not course.first_of_batch.wait(0.003):
                if course.ended.is_set() or time.monotonic() > until:
                    return False
        elif course.ended.wait(60 - time.time() % 60 + course.rng.uniform(0, _LATEST)):
            return False
        course.platform.kill("spark")
        course.platform.start("spark")
        self.start()
        return True
