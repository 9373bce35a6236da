"""Tables of a real PostgreSQL, followed by Debezium's real connector, while the connector, the broker, Spark's server and
the commands that load and fold are killed.

The connector can lose changes without an error. So the judge is a plain consumer with Python's `json`: it says what the
topic says about each row. The state must have exactly these rows, and `compare-postgres` must name exactly the keys for
which PostgreSQL has another row. If there is none, it must find the table equal.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from platform_assets.services import jars
from platform_assets_tests.soak.database_seed import HEADER, KILLS, FollowedDatabase, Kill, SeedResult, Services
from platform_assets_tests.soak.embedded import Embedded
from platform_assets_tests.support.warm_commands import warm_commands
from testbed import postgres

__all__ = ["HEADER", "SeedResult", "Services", "run", "services"]
STEPS: Final = 3
COPY_ROWS: Final = 100_000


@contextmanager
def services(root: Path) -> Iterator[Services]:
    """Run all services until the block ends."""
    platform = Embedded(root, root / "unused")
    jars.install(platform.home, ["connect"], report=lambda _: None)
    # PostgreSQL runs as another user, who cannot enter `root`.
    with TemporaryDirectory(dir="/tmp", prefix="soak-postgres-") as folder:
        Path(folder).chmod(0o755)
        with (
            postgres.server(Path(folder), wal_level="logical") as server,
            platform.running(("kafka", "spark")),
            warm_commands() as commands,
        ):
            yield Services(root, server, commands)


def run(
    seed: int,
    among: Services,
    root: Path,
    *,
    copied: int = COPY_ROWS,
    steps: int = STEPS,
    kills: Sequence[Kill] = KILLS,
) -> SeedResult:
    """Run a seed with a database and a lake of its own. Without anomalies, its files are deleted. `copied` is the number of
    rows of the large COPY, which only even seeds have."""
    import psycopg2

    began, found = time.monotonic(), SeedResult(seed)
    address = among.server.database(f"soak{seed}")
    with closing(psycopg2.connect(address)) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute("SET TIME ZONE 'UTC'")
        rng = random.Random(f"database/{seed}")
        made = FollowedDatabase(rng, seed, among, root, address, cursor, found, copied)
        try:
            made.run(steps, kills)
        finally:
            made.connector.end(kill=True)
            made.drop_slot()
    found.seconds = time.monotonic() - began
    if not found.anomalies:
        shutil.rmtree(root)
    return found
