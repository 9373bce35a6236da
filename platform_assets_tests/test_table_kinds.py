"""Code that must handle every kind of table: for a new kind, these tests fail until the kind's rows are erased, backed
up and shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from platform_assets.backup import taking
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model import names
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import KINDS, RESERVED_KINDS, TableRef
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.names import table_key
from platform_assets.windows.erase import erasing
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets.windows.maintain import expiry_reasons
from testbed.samples import START

RAW = TopicDeclaration("orders", "0 * * * *", START)
DECODED = replace(
    RAW,
    decode=DecodeDeclaration(FormatSpec("json", {"schema": "id BIGINT"})),
    state=StateDeclaration(("id",), deletes="none"),
)


def test_erasing_removes_records_from_every_kind(tmp_path: Path) -> None:
    """This includes a topic that is no longer decoded, because its decoded tables still exist."""
    for declaration in (RAW, DECODED):
        tables = WindowEraser(declaration, Ledger(Lake.at(tmp_path))).tables
        assert sorted(table.kind for table in tables) == sorted(KINDS)
        assert tables[0].kind == "raw"


def test_texts_about_windows_that_stay_know_every_kind() -> None:
    assert set(expiry_reasons.DAMAGED_IN) == set(KINDS)
    assert {"raw", *erasing._ELSEWHERE} == set(KINDS)


def test_a_topic_with_a_state_has_every_kind() -> None:
    """Events that Dagster lacks, recorded runs and the tables that commands handle are all derived from
    `TopicDeclaration.tables`."""
    assert [table.kind for table in RAW.tables] == ["raw"]
    assert [table.kind for table in DECODED.tables] == list(KINDS)


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_every_kind_is_an_asset() -> None:
    made = build_definitions(
        DECODED, group="g", description=None, owners=(), sensor_running=False, deep_audit=DeepAudit()
    )
    keys = {key for asset in made.assets or () for key in getattr(asset, "keys", ())}
    assert {table_key(TableRef(kind, "orders")) for kind in KINDS} <= keys


def test_a_backup_has_every_kind_and_takes_it_before_its_sources(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    for kind in KINDS:
        log = tmp_path / kind / "orders" / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").touch()
    in_order = [name for _, name in taking._in_order(lake)]
    assert in_order[1:-1] == [f"{kind}/orders" for kind in reversed(KINDS)]


def test_no_file_of_a_raw_table_is_named_like_one_of_another_kind() -> None:
    others = [*KINDS[1:], *RESERVED_KINDS]
    assert tuple(f"{kind}-" for kind in others) == names._KINDS_IN_FRONT
    for kind in others:
        assert names.file_name("raw", f"{kind}-orders", ".json") != names.file_name(kind, "orders", ".json")
