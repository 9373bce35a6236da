"""Format `string`: the result is the characters of a value, or the position at which the value is not UTF-8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support.decoding import BROKEN, UNTIMED, any_bytes, decoded

DECODER = decoder_of(FormatSpec("string"))


@UNTIMED
@given(st.lists(st.none() | any_bytes, max_size=12))
def test_both_paths_give_what_python_decodes(values: list[bytes | None]) -> None:
    found = decoded(DECODER, values)
    dead = set(found.dead["row"].to_pylist())
    for row, (value, text) in enumerate(zip(values, found.columns["value"].to_pylist(), strict=True)):
        if value is None:
            assert text is None
            continue
        try:
            wanted = value.decode()
        except UnicodeDecodeError:
            assert row in dead
        else:
            assert text == wanted


@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("before", [b"", b"x" * 8, "ä€💡".encode()])
def test_broken_bytes_are_dead_letters_that_name_the_place(value: bytes, before: bytes) -> None:
    found = decoded(DECODER, [b"good", before + value, None, b""])
    with pytest.raises(UnicodeDecodeError) as error:
        (before + value).decode()
    (dead,) = found.dead.to_pylist()
    assert (dead["row"], dead["reason"], dead["place"]) == (1, "malformed", None)
    assert f"byte {error.value.start}, which is 0x{(before + value)[error.value.start]:02x}" in dead["detail"]
    assert found.columns["value"].to_pylist() == ["good", None, None, ""]


def test_a_value_of_more_than_max_bytes_is_too_large() -> None:
    found = decoded(
        decoder_of(FormatSpec("string", {"max_bytes": 3, "column": "line"})), [b"abc", b"abcd", b"\xff" * 4]
    )
    assert found.columns["line"].to_pylist() == ["abc", None, None]
    assert found.dead["reason"].to_pylist() == ["too_large", "too_large"]
    assert "4 bytes, but max_bytes is 3" in found.dead["detail"][0].as_py()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"charset": "latin-1"}, "option 'charset' of format 'string' is 'latin-1'; it must be one of: utf-8"),
        ({"column": ""}, "option 'column' .* a non-empty string"),
        ({"max_bytes": True}, "option 'max_bytes' .* is True; it must be a number of bytes from 1 to"),
        ({"encoding": "utf-8"}, "has no option 'encoding'; its options are: charset, column, max_bytes"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        decoder_of(FormatSpec("string", options))
