"""The `state:` block of topics in the format `debezium`: its only choice of deletes, and errors with file, line and
remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from platform_assets.components import yaml_check
from platform_assets.components.decode_block import decode_declaration
from platform_assets.components.state_block import state_declaration
from platform_assets.model.keeping import Keep
from platform_assets.model.state import StateDeclaration

KEY: Final = {"format": "json", "schema": "id BIGINT"}
EVENTS: Final = decode_declaration({"value": {"format": "debezium", "schema": "id BIGINT"}, "key": KEY})
FILE: Final = """type: platform_assets.components.TopicTable
attributes:
  topic: orders
  window: "0 * * * *"
  start: "2026-01-01T00:00Z"
  decode:
    value: {{format: {format}, schema: "id BIGINT"}}
    key: {{format: json, schema: "id BIGINT"}}
  state: {state}
"""


@pytest.mark.parametrize("block", [{"key": ["id"]}, {"key": ["id"], "deletes": "debezium"}])
def test_change_events_have_deletes_of_their_own(block: dict[str, Any]) -> None:
    assert state_declaration(block, EVENTS) == StateDeclaration(("id",), deletes="debezium")


def test_snapshots_are_read_from_the_declared_columns() -> None:
    value = {"format": "debezium", "schema": "id BIGINT", "envelope": {"lsn": "at", "snapshot": "part"}}
    state = state_declaration({"key": ["id"], "snapshots": "whole"}, decode_declaration({"value": value, "key": KEY}))
    assert (state.operation, state.lsn, state.snapshot) == ("change_operation", "at", "part")
    assert state.has_sweeps
    assert state.digest != state_declaration({"key": ["id"]}, EVENTS).digest, "changes are made again"


def test_deleted_keys_are_kept_for_a_number_of_days() -> None:
    assert state_declaration({"key": ["id"], "deletes_kept": "2 weeks"}).deletes_kept == Keep(14)
    assert state_declaration({"key": ["id"]}).deletes_kept is None
    one, other = (state_declaration({"key": ["id"], "deletes_kept": f"{days} days"}) for days in (7, 8))
    assert one.digest == other.digest, "the changes do not depend on it"


def test_the_operation_is_in_the_declared_column() -> None:
    value = {"format": "debezium", "schema": "id BIGINT", "envelope": {"operation": "op"}}
    state = state_declaration({"key": ["id"]}, decode_declaration({"value": value, "key": KEY}))
    assert state.operation == "op"


@pytest.mark.parametrize(
    ("format", "state", "problem"),
    [
        ("debezium", "{key: [id], deletes: tombstone}", "would be a row of the state: use `deletes: debezium`"),
        ("debezium", "{key: [id], deletes: none}", "would be a row of the state: use `deletes: debezium`"),
        ("json", "{key: [id], deletes: debezium}", "or `deletes: tombstone`"),
        ("json", "{key: [idd]}", "did you mean 'id'"),
        ("json", "{key: [id], snapshots: whole}", "only change events say which snapshot they belong to"),
        ("debezium", "{key: [id], snapshots: all}", "snapshots: must be one of partial, whole, not 'all'"),
        ("json", "{key: [id], deletes_kept: 7}", "7 is not a number of days or weeks: write `7 days`"),
        (
            "json",
            "{key: [id], deletes: none, deletes_kept: 7 days}",
            "has no deleted keys, so there is nothing to remove",
        ),
    ],
)
def test_deletes_that_do_not_fit_the_format_are_refused_with_file_line_and_remedy(
    tmp_path: Path, format: str, state: str, problem: str
) -> None:
    file = tmp_path / "orders" / "defs.yaml"
    file.parent.mkdir()
    file.write_text(FILE.format(format=format, state=state))
    (mistake,) = yaml_check.judge(tmp_path).mistakes
    assert str(mistake).startswith(f"{file}:{len(FILE.splitlines())}: state: ")
    assert problem in str(mistake)
