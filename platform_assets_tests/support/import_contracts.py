"""Import rules that import-linter cannot express."""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class NobodyImportsTests(Contract):
    """Forbids imports of those modules of `package` whose names begin with `test_`. Code that two tests need belongs in
    a helper."""

    package = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find each forbidden import."""
        package = str(self.package)
        tests = {m for m in graph.modules if m.startswith(f"{package}.") and m.rpartition(".")[2].startswith("test_")}
        found = [
            (details["importer"], details["imported"], details["line_number"])
            for test in sorted(tests)
            for importer in sorted(graph.find_modules_that_directly_import(test))
            for details in graph.get_import_details(importer=importer, imported=test)
        ]
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each forbidden import."""
        for importer, imported, line in check.metadata["found"]:
            output.print_error(f"{importer} -> {imported} (l.{line}): move what both need to a helper.")
