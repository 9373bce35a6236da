"""`platform-assets forget-schemas`: the schemas that it lists, deletes, and refuses to delete."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_assets.decoding.registry.cache import Registered, SchemaCache
from platform_assets.lake.files import files_below
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

GUID = "123e4567-e89b-12d3-a456-426614174000"
SCHEMA = Registered("AVRO", '"int"')


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path / "project")
    made.variables["LAKE_ROOT"] = str(tmp_path / "lake")
    return made


def test_ids_are_listed_and_then_forgotten_of_every_registry(shell: Shell, tmp_path: Path) -> None:
    files = files_below(tmp_path / "lake" / "_ledger" / "schemas")
    one, other = SchemaCache(files, "0" * 16, "http://one"), SchemaCache(files, "1" * 16, "http://other")
    for known, number in ((one, 7), (other, 7), (one, 8), (one, GUID)):
        known.write(number, SCHEMA)
    listed = shell.run("forget-schemas", "7", GUID, "--dry-run")
    lines = [
        f"AVRO schema {n}, fingerprint {SCHEMA.fingerprint}, from {url}"
        for n, url in ((7, "http://one"), (GUID, "http://one"), (7, "http://other"))
    ]
    assert listed.output.splitlines() == [f"would forget {line}" for line in lines]
    assert one.read(7) == SCHEMA
    done = shell.run("forget-schemas", "7", GUID)
    assert done.output.splitlines()[:3] == [f"forgot {line}" for line in lines]
    assert (one.read(7), other.read(7), one.read(GUID), one.read(8)) == (None, None, None, SCHEMA)
    again = shell.run("forget-schemas", "7")
    assert (again.exit_code, again.output) == (0, "Nothing to forget: the lake has no stored schema for these ids.\n")


@pytest.mark.parametrize(
    "given", ["0", "-1", "2147483648", "../x", "7.json", pytest.param("1" * 5_000, id="long"), "contentId-x", "٣"]
)
def test_what_is_not_an_id_is_refused(shell: Shell, given: str) -> None:
    refused = shell.run("forget-schemas", "--", given)
    assert refused.exit_code == 1
    assert "is not a schema id: give a number from 1 to 2147483647, a GUID such as" in refused.output
    assert len(refused.output) < 400
