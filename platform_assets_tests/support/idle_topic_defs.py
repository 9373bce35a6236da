"""Code location for the browser tests of idle topics, in the lake `LAKE_ROOT`."""

from __future__ import annotations

from typing import Final

import dagster as dg

from platform_assets_tests.support import report_defs

SOUND, DAMAGED, UNSAID = "orders", "refunds", "visits"
"""Three topics: an undamaged topic; a topic with a damaged receipt and file; and an undamaged topic with a window that
is reported without its checks."""
TOPICS: Final = (SOUND, DAMAGED, UNSAID)


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions of the three topics."""
    return report_defs.of_topics(TOPICS, TOPICS)
