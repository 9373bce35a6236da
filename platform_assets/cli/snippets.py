"""Code that users can paste to read a table elsewhere, and the names of tables on a Spark Connect server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote, urlsplit

from platform_assets.errors import ConfigurationError
from platform_assets.lake.location import Folder
from platform_assets.model.derived import DerivedRef
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.orchestration.names import catalogue_table

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Reader = Literal["spark", "polars", "duckdb", "pandas"]

_NO_ADDRESS: Final = "sc://localhost:15002/;token=…"


def snippets(table: TableRef | DerivedRef | StateRef, folder: Folder, remote: str | None) -> Mapping[Reader, str]:
    """Return Python code for each reader that prints the first rows of the table. `remote` is a Spark Connect address
    with its token, if there is one. The code contains the token, so print it only to the user's terminal."""
    opened = datasets({"rows": folder})
    lines: Mapping[Reader, tuple[str, ...]] = {
        "spark": (
            "from pyspark.sql import SparkSession",
            f"spark = SparkSession.builder.remote({remote or _NO_ADDRESS!r}).getOrCreate()",
            f"rows = spark.read.format('delta').load({folder.spark_path!r})",
            "rows.show(5)",
        ),
        "polars": (
            "import polars as pl",
            *opened,
            "rows = pl.scan_pyarrow_dataset(rows)",
            "print(rows.head(5).collect())",
        ),
        "duckdb": (
            "import duckdb",
            *opened,
            "# The column name window needs double quotes: it is a reserved word in DuckDB.",
            """print(duckdb.sql('SELECT "window", * EXCLUDE "window" FROM rows LIMIT 5'))""",
        ),
        "pandas": (*opened, "print(rows.head(5).to_pandas())"),
    }
    return {reader: "\n".join(text) for reader, text in lines.items()}


def datasets(folders: Mapping[str, Folder]) -> tuple[str, ...]:
    """Return code that opens the tables in these folders as Arrow datasets with these names."""
    opened = ["from deltalake import DeltaTable"]
    if not all(folder.is_in_store for folder in folders.values()):
        opened.append("from pyarrow.fs import LocalFileSystem, SubTreeFileSystem")
    for name, folder in folders.items():
        # Arrow reads local files itself: see `platform_assets.lake.datasets`.
        files = "" if folder.is_in_store else f"filesystem=SubTreeFileSystem({folder.uri!r}, LocalFileSystem())"
        opened.append(f"{name} = DeltaTable({folder.uri!r}).to_pyarrow_dataset({files})")
    return tuple(opened)


def sql_name(table: TableRef | DerivedRef | StateRef) -> str:
    """Return the table's name in SQL, such as `raw.orders`. Names in Spark have letters, digits and underscores, and
    their case does not matter."""
    schema, name = catalogue_table(table)
    return f"{schema}.{name}" if name[0].isalpha() else f"{schema}.`{name}`"


def register(spark: SparkSession, table: TableRef | DerivedRef | StateRef, folder: Folder) -> str:
    """Register the table by name on the Spark server, if needed; return the name. The embedded server keeps its catalog
    in memory, so it forgets names when it stops.

    Raises:
        PySparkException: the server refuses.
        ConfigurationError: the server has another table with this name.
    """
    location = folder.spark_path.replace("\\", "\\\\").replace("'", "\\'")
    schema, own = catalogue_table(table)
    name = f"`{schema}`.`{own}`"
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS `{schema}`")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{location}'")
    known = spark.sql(f"DESCRIBE DETAIL {name}").first()
    if known is None or _place(known["location"]) != _place(folder.spark_path):
        where = "nowhere" if known is None else known["location"]
        raise ConfigurationError(
            f"the Spark server already has another table named {sql_name(table)}: {where}. If nothing uses that "
            f"name, run `DROP TABLE {sql_name(table)}` on that server (the files are kept), then run this command again"
        )
    return sql_name(table)


def _place(location: str) -> tuple[str, str]:
    """Return the host and the path from `place`, which is a path or a URI."""
    if "://" not in location and not location.startswith("file:"):
        return "", location.rstrip("/")
    parts = urlsplit(location)
    return parts.netloc, unquote(parts.path).rstrip("/")
