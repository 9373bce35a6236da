"""The code location of the browser tests of idle topics, whose lake is `LAKE_ROOT`."""

from __future__ import annotations

from typing import Final

import dagster as dg

from platform_assets_tests.support import report_defs

SOUND, DAMAGED, UNSAID = "orders", "refunds", "visits"
"""In order; with a receipt and a file that are not; and in order, of which a window is reported without its checks."""
TOPICS: Final = (SOUND, DAMAGED, UNSAID)


@dg.definitions
def defs() -> dg.Definitions:
    """The three topics."""
    return report_defs.of_topics(TOPICS, TOPICS)
