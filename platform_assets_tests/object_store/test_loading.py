"""The walk of records into a lake that is in an object store: loads, checks, status, audit, and the ledger made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from platform_assets.model.declaration import EngineName
from testbed.loads import numbered, records

if TYPE_CHECKING:
    from platform_assets_tests.object_store.conftest import StoreLakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.cluster]


@pytest.mark.parametrize("engine", ["columnar", "connector"])
def test_windows_are_loaded_exactly_and_found_unchanged_again(store_lake: StoreLakeMaker, engine: EngineName) -> None:
    lk = store_lake(partitions=2, engine=engine)
    keys = [lk.window_of(numbered(300, 2, stem)) for stem in ("a", "b")]

    assert [lk.load(key).outcome for key in keys] == ["loaded", "loaded"]
    assert records(lk.rows()) == records(lk.committed())
    assert [lk.load(key).outcome for key in keys] == ["unchanged", "unchanged"]
    assert lk.version() == 2
    assert lk.unnamed_files() == []
