"""Hooks of mkdocs: the documents at the top of the repository are pages too, and links work there as in the site."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

REPOSITORY: Final = Path(__file__).resolve().parent.parent
PAGES: Final = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/SCALE.md": "project/scale.md",
    "examples/README.md": "examples/index.md",
    "examples/activity/README.md": "examples/activity.md",
    "examples/commit_log/README.md": "examples/commit_log.md",
    "examples/logs/README.md": "examples/logs.md",
    "examples/metrics/README.md": "examples/metrics.md",
    "examples/stream/README.md": "examples/stream.md",
    "examples/suggestions/README.md": "examples/suggestions.md",
    "README.md": "index.md",
}
"""Documents by their path in the repository, and where they are in the site; the README is no page, but `index.md` is."""

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents that lie outside of `docs/`."""
    from mkdocs.structure.files import File

    for document, page in PAGES.items():
        if document != "README.md":
            files.append(File.generated(config, page, content=(REPOSITORY / document).read_text()))
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """Have links lead where they lead in the repository; one to a file that is no page becomes its name."""
    return rewritten(markdown, page.file.src_uri)  # type: ignore[attr-defined]


def rewritten(markdown: str, page: str) -> str:
    """`markdown` of the site's page `page` with its links rewritten, code left as it is.

    A link to what the repository lacks is left as it is, for mkdocs to complain of.
    """
    documents = {where: document for document, where in PAGES.items() if document != "README.md"}
    source = documents.get(page, f"docs/{page}")
    parts, at = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(lambda m: _link(m, source, page), markdown[at : fence.start()]), fence.group()]
        at = fence.end()
    return "".join([*parts, _LINK.sub(lambda m: _link(m, source, page), markdown[at:])])


def _link(match: re.Match[str], source: str, page: str) -> str:
    text, target = match.groups()
    path, _, anchor = target.partition("#")
    if ":" in path or not path:
        return match.group()
    place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (REPOSITORY / place).exists():
        return match.group()
    goal = PAGES.get(place) or (place.removeprefix("docs/") if place.startswith("docs/") else None)
    if goal is None:
        return text if text.startswith("`") else f"{text} (`{place}`)"
    relative = os.path.relpath(goal, posixpath.dirname(page) or ".")
    return f"[{text}]({relative}{'#' + anchor if anchor else ''})"
