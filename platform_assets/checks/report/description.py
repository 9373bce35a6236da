"""The top of a check's page: the headline, the heatmap, and what to do. No I/O.

The description is Markdown, because Dagster's UI renders a description immediately, but other Markdown only after a
click. The UI shows about 260 pixels of the description.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from platform_assets.checks.findings import CheckResult
from platform_assets.checks.report.heatmap import Heatmap, data_uri
from platform_assets.checks.report.worst import WorstWindow, remedies, shortened
from platform_assets.model.untrusted import line, markdown, without_marks

_TO_DO: Final = "What to do:"
_LONGEST: Final = 280
_PICTURE: Final = re.compile(r"!\[[^\]]*\]\(data:image/svg\+xml;base64,[A-Za-z0-9+/=]*\)")
_NOT_IN_WORDS: Final = re.compile(r"[^\w .,:;/%-]")


def describe(check_result: CheckResult, heatmap: Heatmap, worst: Sequence[WorstWindow]) -> str:
    """Return `check_result` as short Markdown. `worst` has the findings, the most severe first."""
    headline = f"**{markdown(check_result.headline)}**"
    if worst:
        first = worst[0].findings[0]
        finding = f"Window {first.window}: {first.detail}" if check_result.undecided else first.sentence()
        headline += " " + markdown(shortened(finding, _LONGEST))
    parts = [headline, f"![{_alternative(heatmap)}]({data_uri(heatmap)})"]
    todo = remedies(worst)
    if todo:
        left = len(todo) - 1
        more = f" For {left} more {'remedy' if left == 1 else 'remedies'}, see `remedy` below." if left else ""
        parts.append(f"**{_TO_DO}** {markdown(str(todo[0]))}{more}")
    return "\n\n".join(parts)


def plain(description: str) -> str:
    """Return a description as one line without the picture, for terminals."""
    text = " ".join(_PICTURE.sub("", description).split()).replace("**", "")
    return line(without_marks(text))


def _alternative(heatmap: Heatmap) -> str:
    return _NOT_IN_WORDS.sub("", line(heatmap.sentence))
