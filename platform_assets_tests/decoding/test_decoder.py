"""Behavior common to all decoders: dead letters form a batch, and long details are truncated."""

import pyarrow as pa
import pytest

from platform_assets.decoding.decoder import DEAD_LETTER_FIELDS, MOST_DETAIL, DeadLetter, dead_letters
from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.untrusted import MOST_PLACE


def test_dead_letters_are_a_batch_with_cut_details() -> None:
    batch = dead_letters([DeadLetter(3, "malformed", None, "x" * 1_000), DeadLetter(7, "missing", "$.id", "no id")])
    assert batch.schema == DEAD_LETTER_FIELDS
    assert batch["row"].to_pylist() == [3, 7]
    assert batch["place"].to_pylist() == [None, "$.id"]
    assert [len(detail) for detail in batch["detail"].to_pylist()] == [MOST_DETAIL, 5]


def test_places_are_cut_and_say_so() -> None:
    """The name of a field can be nearly as long as the record that contains the field."""
    decoder = decoder_of(FormatSpec("json", {"schema": "a INT"}))
    name = "n" * 1_000_000
    dead = decoder.decode(pa.array([f'{{"{name}": 1, "{name}": 2}}'.encode()], pa.binary())).dead
    assert dead.num_rows == 1
    (place,) = dead["place"].to_pylist()
    assert (len(place), place[:4], place[-1]) == (MOST_PLACE, "$.nn", "…")
    assert len(dead["detail"][0].as_py()) <= MOST_DETAIL


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="'yaml' is not a format"):
        decoder_of(FormatSpec("yaml"))


def test_digest_follows_what_decides_on_rows_and_not_the_thresholds_of_checks() -> None:
    declared = DecodeDeclaration(FormatSpec("json", {"schema": "a INT"}))
    assert declared.digest == DecodeDeclaration(FormatSpec("json", {"schema": "a INT"}), warn_share=0.01).digest
    assert declared.digest != DecodeDeclaration(FormatSpec("json", {"schema": "a BIGINT"})).digest
    assert declared.digest != DecodeDeclaration(declared.value, key=FormatSpec("string")).digest


def test_shares_of_dead_letters_are_judged() -> None:
    with pytest.raises(ConfigurationError, match="0 ≤ warn ≤ fail ≤ 1"):
        DecodeDeclaration(FormatSpec("json"), warn_share=0.2, fail_share=0.1)
