"""The cost of a large value. If a field is not in the schema, no Python code runs for the individual parts of the
field."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from platform_assets.decoding.json.exact import rescue
from platform_assets.decoding.schema import schema_of_ddl

FIELDS = schema_of_ddl("a INT, b STRUCT<c: INT>, d ARRAY<ARRAY<INT>>, e ARRAY<STRUCT<c: INT>>")


def steps(text: str) -> int:
    """Return the number of calls that `rescue` makes to functions written in Python and in C."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # callbacks of the garbage collector, such as hypothesis's, would be counted
    sys.setprofile(count)
    try:
        rescue(text, FIELDS)
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls


@pytest.mark.parametrize("part", ["[]", "1", '"x\\n"', '{"y": [{}, 1e5]}', "[1, 2]", "1" * 5_000])
@pytest.mark.parametrize(
    "form", ['{"x": [%s]}', '{"b": {"c": 1, "y": {"z": [%s]}}}', '{"d": [[%s]], "x": 1}', '{"e": [{"y": [%s]}]}']
)
def test_steps_do_not_grow_with_what_the_schema_lacks(form: str, part: str) -> None:
    few, many = (form % ",".join([part] * count) for count in (1, 500))
    assert steps(few) == steps(many) < 100


def test_steps_grow_with_the_number_of_fields_alone() -> None:
    def fields(count: int) -> str:
        return "{" + ", ".join(f'"k{number}": [1, {{"x": {number}}}]' for number in range(count)) + "}"

    assert steps(fields(2_000)) < 11 * steps(fields(200))
