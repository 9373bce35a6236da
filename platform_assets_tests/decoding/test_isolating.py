"""If one value causes an error, only that value becomes a dead letter."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from platform_assets.decoding.decoder import MOST_DETAIL, Decoded, decode_each
from platform_assets.decoding.formats import decoder_of
from platform_assets.engines.decoding.rows import RowMaker
from platform_assets.errors import RegistryUnreachableError
from platform_assets.lake import dead_letter_table, decoded_table
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support.raw_records import raw

JSON = decoder_of(FormatSpec("json", {"schema": "id BIGINT"}))


class Panic(BaseException):
    """A panic in the form in which a Rust library raises it."""


@dataclass
class Failing:
    """A JSON decoder that raises `error` for each value that contains `trigger`, or for every block if `trigger` is
    empty."""

    error: BaseException
    trigger: bytes = b"!"
    calls: int = 0

    @property
    def fields(self) -> pa.Schema:
        return JSON.fields

    def decode(self, values: pa.BinaryArray) -> Decoded:
        self.calls += 1
        if any(self.trigger in (value or b"") for value in values.to_pylist()):
            raise self.error
        return JSON.decode(values)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        return self.decode(values)


@pytest.mark.parametrize(
    "error", [TypeError("no '<' \ud800" + "x" * 999), RecursionError(), pa.ArrowInvalid("x"), Panic()], ids=repr
)
def test_all_other_values_of_the_block_are_decoded(error: BaseException) -> None:
    good: list[bytes | None] = [b'{"id": %d, "x": %d}' % (number, number) for number in range(500)]
    values = [b"!", *good[:250], b"{", b"!", None, *good[250:], b"!"]
    of = Failing(error)
    found = decode_each(of.fields, of.decode, pa.array(values, pa.binary()))
    expected = JSON.decode(pa.array([None if value == b"!" else value for value in values], pa.binary()))
    assert found.columns.equals(expected.columns)
    assert found.rescued.equals(expected.rescued)
    letters = [(each["row"], each["reason"]) for each in found.dead.to_pylist()]
    assert letters == [(0, "failed"), (251, "malformed"), (252, "failed"), (504, "failed")]
    detail = found.dead["detail"][0].as_py()
    assert type(error).__name__ in detail
    assert len(detail) <= MOST_DETAIL
    assert of.calls < 80


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("x"), OSError("x"), RegistryUnreachableError("http://x", "HTTP 503")], ids=repr
)
def test_an_error_that_is_not_about_a_value_stops_the_window(error: Exception) -> None:
    with pytest.raises(type(error)):
        decode_each(JSON.fields, Failing(error).decode, pa.array([b"{}", b"!"], pa.binary()))


def test_an_error_over_every_value_stops_the_window() -> None:
    with pytest.raises(TypeError):
        decode_each(JSON.fields, Failing(TypeError("x"), b"").decode, pa.array([b"{}", b"{}"], pa.binary()))


def test_headers_go_with_their_values() -> None:
    seen: list[tuple[bytes | None, int | None]] = []

    def decode(values: pa.BinaryArray, headers: pa.Array) -> Decoded:
        if any(value == b"!" for value in values.to_pylist()):
            raise TypeError
        seen.extend(zip(values.to_pylist(), headers.to_pylist(), strict=True))
        return JSON.decode(values)

    values = [b'{"id": %d}' % number if number % 7 else b"!" for number in range(40)]
    found = decode_each(JSON.fields, decode, pa.array(values, pa.binary()), pa.array(range(40)))
    assert found.dead["row"].to_pylist() == list(range(0, 40, 7))
    assert [pair for pair in seen if pair != (None, None)] == [(b'{"id": %d}' % n, n) for n in range(40) if n % 7]


@pytest.mark.parametrize("side", ["value", "key"])
def test_rows_of_a_table_and_dead_letters_are_made_of_what_is_left(side: str) -> None:
    failing = Failing(TypeError("x"))
    value, key = (failing, JSON) if side == "value" else (JSON, failing)
    layout = decoded_table.columns(JSON.fields, JSON.fields)
    files = [pa.schema([f for f in s if f.name != "window"]) for s in (layout, dead_letter_table.columns())]
    made = RowMaker(value, key, files[0], files[1], "digest")
    good, bad = b'{"id": 1}', b"!"
    pairs = [(good, good), (bad, good) if side == "value" else (good, bad), (good, good)]
    rows, dead = made.rows(raw(*[(0, offset, key, value) for offset, (value, key) in enumerate(pairs)]))
    assert rows["kafka_offset"].to_pylist() == [0, 2]
    assert [(each["kafka_offset"], each["side"], each["reason"]) for each in dead.to_pylist()] == [(1, side, "failed")]
    assert dead["value"].to_pylist() == [pairs[1][0]]
