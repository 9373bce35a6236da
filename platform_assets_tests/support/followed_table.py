"""A table of a real PostgreSQL, and the topic and lake that follow it through the real connector."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from platform_assets.checks.postgres.comparing import Comparison, PostgresComparison
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets_tests.support.decoded_topic import InProcessEngine, tables_without_spark
from platform_assets_tests.support.local_engine import Kept, LocalEngine
from testbed.loads import TopicLake, wait_until

VARIABLE = "ORDERS_DSN"


@dataclass
class FollowedTable:
    """A table, which `cursor` changes, and the topic and lake that follow it. `address` is the database's."""

    cursor: Any
    address: str
    lake: TopicLake

    def load(self) -> str:
        """Wait until the connector has sent every change, and load and decode them as a window. Return its key."""
        self.cursor.execute("SELECT pg_current_wal_insert_lsn()")
        ((position,),) = self.cursor.fetchall()

        def sent() -> bool:
            self.cursor.execute("SELECT bool_and(confirmed_flush_lsn >= %s) FROM pg_replication_slots", [position])
            return bool(self.cursor.fetchone()[0])

        wait_until("the connector has sent every change", sent, 120)
        key = self.lake.close_window()
        kept = [
            Kept(r.partition, r.offset, r.key, r.value, datetime.fromtimestamp(r.timestamp / 1000, UTC))
            for r in self.lake.committed()
        ]
        of_lake = self.lake.ledger.lake
        self.lake.loader(engine=LocalEngine(of_lake, kept)).load(key)
        engine = InProcessEngine(of_lake, tables_without_spark)
        WindowDecoder(self.lake.declaration, self.lake.ledger, engine).decode(key)
        return key

    def compare(self, **options: Any) -> Comparison:
        """Compare the topic with the table."""
        made = PostgresComparison(
            self.lake.declaration, self.lake.ledger, self.lake.cluster, self.address, VARIABLE, **options
        )
        return made.run()
