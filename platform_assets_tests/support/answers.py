"""Fake answers of Spark and a broker about hand-made tables. With these answers, audit reports need neither Spark nor a
broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.engines.choice import choose_engine
from platform_assets.engines.connector import measure
from platform_assets.errors import SparkUnreachableError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.evidence import gathering
from platform_assets.kafka.evidence.gathering import Evidence
from platform_assets.kafka.evidence.partition import OffsetListing, PartitionEvidence
from platform_assets.lake import rows
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Digest, Measured, digest_of, offsets_digest
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets_tests.support import tables


def given(patch: pytest.MonkeyPatch) -> None:
    """Make the checks of this process use these answers."""
    patch.setattr(measure, "_read", _read)
    patch.setattr(gathering, "gather_evidence", _dense)
    patch.setattr(Cluster, "topic_config", lambda cluster, topic: {"cleanup.policy": "delete"})


def unanswered(root: Path, topic: str, **changes: Any) -> Evaluation:
    """Return the evaluation that a check of `topic` uses when neither Spark nor a broker is available."""
    return Evaluation(
        tables.declaration(topic),
        Ledger(Lake.at(root)),
        Orchestration(),
        settings=nothing_answers,
        cluster=nothing_answers,
        engine=choose_engine(Lake.at(root), nothing_answers, nothing_answers),
        **changes,
    )


def nothing_answers() -> NoReturn:
    """Raise the error of an unavailable service."""
    raise SparkUnreachableError("sc://nowhere", "connection refused")


def _read(spark: object, lake: Lake, table: TableRef, keys: list[str], version: int) -> dict[str, Measured]:
    """Read the offsets from the files. As in `samples`, content digests are derived from the digests of the offsets."""
    found = {key: digest_of(rows.offsets_of(lake.table(table), key, version)) for key in keys}
    return {key: Measured(digest, Digest(digest.rows, digest.total + 1)) for key, digest in found.items()}


def _dense(settings: object, topic: str, topic_id: str, ranges: TopicRanges, **more: Any) -> Evidence:
    """Return evidence that every offset has a committed record, also in the damaged windows."""
    return Evidence(topic, topic_id, False, {p: _full(p, r) for p, r in ranges.items()})


def _full(partition: int, r: OffsetRange) -> PartitionEvidence:
    listing = OffsetListing((r,), 1, r.size, r.end)
    digest = offsets_digest(partition, np.arange(r.start, r.end, dtype=np.int64))
    return PartitionEvidence(r, r.end, records=listing, digest=digest)
