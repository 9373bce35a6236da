"""Names of lake tables: each name has a single spelling, survives a round trip, and cannot lead outside its folder."""

from __future__ import annotations

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.model.tables import KINDS, TableRef


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_read_back_as_the_table_it_is_of(kind: str) -> None:
    table = TableRef.parse(f"{kind}/a.b_c-d")
    assert (table.kind, table.topic, table.name, table.parts) == (kind, "a.b_c-d", f"{kind}/a.b_c-d", (kind, "a.b_c-d"))
    assert str(table) == table.name


def test_a_topic_alone_stands_for_its_raw_table() -> None:
    assert TableRef.parse("orders") == TableRef.raw("orders")


@pytest.mark.parametrize("name", ["", "raw/", "raw/..", "raw/a/b", "/orders", "row/orders", "raw/or ders"])
def test_what_names_no_table_is_refused_and_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        TableRef.parse(name)
