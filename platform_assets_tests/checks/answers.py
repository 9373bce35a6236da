"""What Spark and a broker would answer of the tables made by hand, so that reports of audits can be had without either."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from platform_assets.checks import proving
from platform_assets.checks.evaluation import Evaluation
from platform_assets.kafka import evidence
from platform_assets.kafka.accounts import OffsetAccount, OffsetListing
from platform_assets.kafka.evidence import Evidence
from platform_assets.lake import rows
from platform_assets.lake.raw import Measured
from platform_assets.offsets import Digest, OffsetRange, TopicRanges, offsets_digest


def given(patch: pytest.MonkeyPatch) -> None:
    """Have the checks of this process answered."""
    patch.setattr(proving, "_measure", _measured)
    patch.setattr(evidence, "account", _dense)


def _measured(e: Evaluation, key: str, version: int) -> Measured:
    """The files as they are; `samples` has content digests follow from those of the offsets."""
    found = rows.read_window(e.table, key, version).offsets
    return Measured(found, Digest(found.rows, found.total + 1))


def _dense(settings: object, topic: str, topic_id: str, ranges: TopicRanges, **more: Any) -> Evidence:
    """The topic holds a committed record at each offset, which is so in the windows that were damaged."""
    return Evidence(topic, topic_id, False, {p: _full(p, r) for p, r in ranges.items()})


def _full(partition: int, r: OffsetRange) -> OffsetAccount:
    listing = OffsetListing((r,), 1, r.size, r.end)
    digest = offsets_digest(partition, np.arange(r.start, r.end, dtype=np.int64))
    return OffsetAccount(r, r.end, records=listing, digest=digest)
