"""The README and the documentation pages: they are concise where required, complete, and built without network access."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

import pytest

from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support.semantics import pages

DOCS: Final = CHECKOUT / "docs"
PAGES: Final = sorted(p for p in DOCS.rglob("*.md"))
TOP: Final = [CHECKOUT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")]


def test_the_readme_is_a_screen_and_a_half() -> None:
    text = pages.README.read_text()
    assert len(text.splitlines()) <= 100
    assert len([word for word in text.split() if word != "|"]) <= 800
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "!["))) <= 125


def test_the_readme_still_has_the_delivery_semantics() -> None:
    assert pages.with_section(pages.README.read_text(), "x") != pages.README.read_text()


def test_figures_of_the_readme_are_those_of_the_page() -> None:
    speed = (DOCS / "speed.md").read_text()
    section = pages.README.read_text().split("## Speed")[1].split("## Read more")[0]
    figures = re.findall(r"\d[\d,.]*\d (?:s|ms)\b|\d{1,3}(?:,\d{3})+", section)
    assert len(figures) >= 5
    assert [f for f in figures if f not in speed] == []


def test_commands_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name for page in (*TOP, *PAGES) for name in re.findall(r"(?:^|`|\$ )make ([a-z-]+)", page.read_text(), re.M)
    }
    assert {"demo", "test", "docs"} <= named <= targets


def test_each_test_that_the_threat_model_names_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (CHECKOUT / "SECURITY.md").read_text())
    assert len(named) > 20
    for file, name in named:
        tree = ast.parse((CHECKOUT / "platform_assets_tests" / file).read_text())
        assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}, f"{file}::{name}"


def test_each_claim_of_the_threat_model_names_its_test() -> None:
    held = (CHECKOUT / "SECURITY.md").read_text().split("## Claims and their tests")[1].split("\n### Known")[0]
    claims = re.findall(r"^\| (?!claim \|)(?!---)(.+) \|$", held.replace("|---|---|\n", ""), re.MULTILINE)
    assert len(claims) > 40
    test = r"`[\w/]+\.py::test_\w+`"
    assert [claim for claim in claims if not re.search(rf"\| {test}(, {test})*$", claim)] == []


def test_packages_are_installed_by_their_hashes_alone() -> None:
    commands = re.findall(r"pip (?:sync|install) .*", (CHECKOUT / "Makefile").read_text())
    unhashed = [c for c in commands if "--require-hashes" not in c]
    # This checkout, which is not packed into an archive, and none of its dependencies.
    assert len(commands) >= 3
    assert {("--no-deps" in c, c.endswith("--editable .")) for c in unhashed} == {(True, True)}
    for name in ("requirements.lock", "requirements-product.lock", "requirements-demo.lock", "uv-requirements.txt"):
        pinned = re.split(r"\n(?=[a-zA-Z0-9])", (CHECKOUT / name).read_text())
        assert [each for each in pinned if "==" in each and "--hash=sha256:" not in each] == []


def test_the_line_for_a_scheduler_mails_what_status_says_and_writes_no_file(tmp_path: Path) -> None:
    (line,) = re.findall(r"^\*/5 \* \* \* \*  (.+)$", (DOCS / "guide" / "alerts.md").read_text(), re.MULTILINE)
    programs, empty, sent = tmp_path / "lake" / ".venv" / "bin", tmp_path / "empty", tmp_path / "sent"
    programs.mkdir(parents=True)
    empty.mkdir()
    for name, script in {
        "platform-assets": """printf '%s\\n' "$(basename "$PWD") failed" '\\n~!x \\c \\0033'; exit "$CODE\"""",
        "mail": 'cat >"$SENT"; echo "$@" >>"$SENT"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    # cron ends the command at a percent sign without a backslash.
    line = re.sub(r"(?<!\\)%", "\n", line).replace("\\%", "%").replace("/srv/lake", f"{tmp_path}/lake")
    for code in ("0", "1"):
        environ = {"PATH": f"{programs}:{os.environ['PATH']}", "CODE": code, "SENT": str(sent)}
        # cron's shell on Debian, whose `echo` interprets backslashes.
        subprocess.run([shutil.which("dash") or "/bin/sh", "-c", line], env=environ, cwd=empty, check=True)
        assert sent.exists() is (code == "1")
    assert sent.read_text() == "lake failed\n\\n~!x \\c \\0033\n-s lake team@example.com\n"
    assert not list(empty.iterdir())


def test_no_page_has_a_program_write_a_fixed_file_in_a_folder_of_everybodys() -> None:
    assert [p.name for p in (*TOP, *PAGES) if re.search(r">\s*/tmp/", p.read_text())] == []


def test_the_architecture_is_one_page_that_names_modules_that_exist() -> None:
    text = (CHECKOUT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) <= 130
    assert max(len(line) for line in text.splitlines()) <= 120
    packages = {p.name for p in (CHECKOUT / "platform_assets").iterdir() if p.is_dir()}
    named = {n for n in re.findall(r"`([a-z_]+(?:/[a-z_]+)+)/?`", text) if n.split("/")[0] in packages}
    assert len(named) > 50
    for name in named:
        path = CHECKOUT / "platform_assets" / name
        assert path.is_dir() or path.with_suffix(".py").exists(), name


@pytest.mark.parametrize("page", [*TOP, *PAGES], ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_links_lead_somewhere_in_the_repository_too(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_pages_are_built_strictly_and_fetch_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    built = sorted(site.rglob("*.html"))
    assert len(built) > len(PAGES)
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]*)\"")
    for page in built:
        assert loads.findall(page.read_text()) == [], page


def _literals() -> list[str]:
    """Return the program's string literals, with `…` in place of inserted values."""
    found = []
    for path in (CHECKOUT / "platform_assets").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_the_runbook_quotes_messages_as_the_program_has_them() -> None:
    runbook = (DOCS / "what-happens-when.md").read_text()
    lines = re.findall(r"^\* \*\*Message:\*\*(.*(?:\n  .*)*)", runbook, re.MULTILINE)
    quoted = [message for line in lines for message in re.findall(r"`([^`]*…[^`]*)`", line)]
    assert len(quoted) > 40
    literals = _literals()
    for message in quoted:
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in message.split("…")), re.DOTALL)
        assert any(pattern.search(literal) for literal in literals), message


def _rewritten() -> Callable[[str, str], str]:
    spec = spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    rewritten: Callable[[str, str], str] = module.rewritten
    return rewritten


@pytest.mark.parametrize(
    ("page", "link", "built"),
    [
        ("guide/read.md", "[a](../../SECURITY.md#roles)", "[a](../project/security.md#roles)"),
        ("project/security.md", "[a](docs/guide/spark.md)", "[a](../guide/spark.md)"),
        ("project/benchmarks.md", "[a](SCALE.md)", "[a](scale.md)"),
        ("project/benchmarks.md", "[a](../docs/decisions.md#levers-tried)", "[a](../decisions.md#levers-tried)"),
        ("project/architecture.md", "[`testbed/`](testbed/)", "`testbed/`"),
        (
            "project/architecture.md",
            "[the lock](platform_assets/services/jars.lock)",
            "the lock (`platform_assets/services/jars.lock`)",
        ),
        ("index.md", "[a](checks.md)", "[a](checks.md)"),
        ("index.md", "[a](nowhere.md)", "[a](nowhere.md)"),
        ("index.md", "[a](https://kafka.apache.org/protocol)", "[a](https://kafka.apache.org/protocol)"),
        ("index.md", "```\n[a](../SECURITY.md)\n```", "```\n[a](../SECURITY.md)\n```"),
    ],
)
def test_a_link_leads_to_the_page_of_what_it_names(page: str, link: str, built: str) -> None:
    assert _rewritten()(link, page) == built
