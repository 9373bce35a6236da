"""The table of formats agrees with the code and the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_assets.checks import other_readers
from platform_assets.checks.fastavro_reader import NOT_JUDGED
from platform_assets.decoding.formats import FORMATS, decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", FORMATS)
def test_only_formats_with_readers_for_schemas_take_a_registry(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        decoder_of(FormatSpec(name, {"registry": True}))
    assert ("does not support `registry`" in str(refused.value)) != FORMATS[name].registry
    if not FORMATS[name].registry:
        assert "only avro, debezium, json and protobuf do" in str(refused.value)


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if known.other_reader])
def test_a_format_that_another_reader_judges_has_one(name: str) -> None:
    spec = FormatSpec(
        name,
        {
            "schema": '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}'
            if name == "avro"
            else "a INT"
        },
    )
    assert other_readers.is_judged(spec)
    assert not other_readers.is_judged(FormatSpec(name, {**spec.options, "columns": {}}))
    fields = decoder_of(spec).fields
    found = other_readers.difference(spec, fields, b"", dict.fromkeys(fields.names))
    assert found in (None, NOT_JUDGED) or str(FORMATS[name].other_reader) in found


@pytest.mark.parametrize("name", FORMATS)
def test_the_guide_names_each_format(name: str) -> None:
    assert f"`{name}`" in (DOCS / "guide" / "decode.md").read_text()
