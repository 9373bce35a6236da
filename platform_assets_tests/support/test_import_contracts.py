"""The project's own import contract finds an import of a test module in any module."""

from __future__ import annotations

import pytest
from grimp import ImportGraph

from platform_assets_tests.support.import_contracts import NobodyImportsTests


def contract() -> NobodyImportsTests:
    return NobodyImportsTests("no test is imported", {}, {"package": "tests"})


def graph(*imports: tuple[str, str]) -> ImportGraph:
    made = ImportGraph()
    for importer, imported in imports:
        made.add_import(importer=importer, imported=imported, line_number=3, line_contents="import it")
    return made


def test_tests_that_import_helpers_keep_it() -> None:
    assert (
        contract().check(graph(("tests.a.test_a", "tests.support.rows"), ("other.test_b", "other.test_c")), False).kept
    )


@pytest.mark.parametrize("importer", ["tests.b.test_b", "tests.support.rows", "benchmarks.load"])
def test_an_import_of_a_test_breaks_it(importer: str, capsys: pytest.CaptureFixture[str]) -> None:
    broken = contract()
    check = broken.check(graph((importer, "tests.a.test_a"), ("tests.a.test_a", "tests.support.rows")), False)
    assert not check.kept
    broken.render_broken_contract(check)
    assert f"{importer} -> tests.a.test_a (l.3)" in capsys.readouterr().out
