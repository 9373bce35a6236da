"""A search by key refuses rows that have no window instead of missing them, in both layouts and whichever windows share
a file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.errors import ConfigurationError
from platform_assets_tests.support.erasures import MadeTopic
from testbed.layouts import Layout

NEEDLE = b"secret-key"


@pytest.mark.parametrize(
    ("layout", "is_shared"), [("partitioned", False), ("flat", False), ("flat", True)], indirect=["layout"]
)
def test_rows_without_a_window_are_refused_until_they_are_deleted(
    tmp_path: Path, layout: Layout, is_shared: bool
) -> None:
    topic = MadeTopic(tmp_path / "lake")
    sealed = topic.seal([{0: [(NEEDLE, b"a"), (b"k", b"b")]}, {0: [(b"k", b"c")]}])
    topic.fill(sealed, decode=False)
    where = topic.root / "raw" / topic.topic
    one = DeltaTable(where).to_pyarrow_table().filter(pa.compute.field("key") == NEEDLE)
    one = one.set_column(one.column_names.index("window"), "window", pa.nulls(1, pa.string()))
    write_deltalake(where, one, mode="append")
    if is_shared:
        DeltaTable(where).optimize.compact()
    with pytest.raises(ConfigurationError, match=r"without a window.*Delete the rows whose `window` is null"):
        topic.erasure.of_keys([NEEDLE])
    # The error's remedy is followed to its end.
    DeltaTable(where).delete("window IS NULL")
    assert [s.sealed.key for s in topic.erasure.of_keys([NEEDLE])] == [sealed[0].key]
