"""If Spark's workers cannot run the columnar engine, the connector engine loads instead, and the log states the reason."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from platform_assets.engines.choice import AutoEngine, choose_engine
from platform_assets.engines.protocol import NO_ROWS, Order, Records, StagedFiles
from platform_assets.engines.shared.reports import UnsupportedError
from platform_assets.engines.shared.session import connect, end
from platform_assets.errors import PlatformError
from platform_assets.lake.location import Lake
from platform_assets.model.digest import Measured
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.services import platform, spark_server
from platform_assets.services.platform import UpOptions
from platform_assets.services.spark_server import SparkSettings
from platform_assets.windows.load.catching_up import load_many
from testbed.homes import home_at, service_environment
from testbed.loads import numbered, records

if TYPE_CHECKING:
    from pathlib import Path

    from platform_assets_tests.conftest import LakeMaker


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.broker
def test_workers_without_python_or_without_the_package_leave_loads_to_the_connector(
    lake: LakeMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lk = lake()
    keys = [lk.window_of(numbered(3, stem=f"{n}-")) for n in range(5)]
    home = home_at(tmp_path / "spark")
    home.prepare()
    # The command that the server runs as Python: first nothing, later an interpreter without our packages.
    python = tmp_path / "python"
    monkeypatch.setattr(spark_server, "sys", SimpleNamespace(executable=str(python)))
    record = platform.start_service(
        "spark", home, UpOptions(spark=SparkSettings(heap="1g")), environ=service_environment()
    )
    monkeypatch.undo()
    session = connect(spark_server.remote(home, record.address))
    try:
        root = Lake.at(lk.root)
        alone = choose_engine(root, lambda: lk.settings, lambda: session, "columnar")
        with pytest.raises(UnsupportedError, match="Spark's workers have no Python that can run the platform's code"):
            lk.loader(engine=alone).load(keys[0])
        with caplog.at_level(logging.WARNING):
            auto = choose_engine(root, lambda: lk.settings, lambda: session, "auto")
            found = dict(load_many(lk.loader(engine=auto), keys[:3]))
        assert [getattr(o, "outcome", o) for o in found.values()] == ["loaded"] * 3
        assert (
            f"loading raw/{lk.topic} with Spark's connector, starting with window {keys[0]}: Spark's workers have no"
            in caplog.text
        )
        hiding = tmp_path / "hiding" / "platform_assets"
        hiding.mkdir(parents=True)
        (hiding / "__init__.py").write_text("raise ImportError('no package of this name')")
        python.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{hiding.parent}:$PYTHONPATH" "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        with caplog.at_level(logging.WARNING):
            auto = choose_engine(root, lambda: lk.settings, lambda: session, "auto")
            found = dict(load_many(lk.loader(engine=auto), keys[3:]))
        assert [getattr(o, "outcome", o) for o in found.values()] == ["loaded"] * 2
        assert "Spark's workers cannot import the platform's code (no package of this name)" in caplog.text
        assert {r.engine for r in lk.ledger.receipts(lk.declaration.raw_table).values()} == {"connector"}
        assert records(lk.rows()) == records(lk.committed())
        assert not lk.orphans()
    finally:
        end(session)
        platform.down(home)


class Writing:
    """An engine that writes nothing and does not support some tables."""

    def __init__(self, name: str, unsupported: frozenset[TableRef] = frozenset()) -> None:
        self.name, self.unsupported = name, unsupported
        self.asked: list[str] = []

    def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> StagedFiles:
        raise NotImplementedError

    def write_many(
        self, orders: Sequence[Order], records_per_file: int
    ) -> Generator[StagedFiles | PlatformError, None, None]:
        for order in orders:
            self.asked.append(order.table.topic)
            yield (
                UnsupportedError("old")
                if order.table in self.unsupported
                else StagedFiles(order.load_id, (), NO_ROWS, self.name)
            )

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        raise NotImplementedError


def engines_of(topics: str, unsupported: str) -> tuple[list[str | None], AutoEngine]:
    """Load one window of each of `topics`. The columnar engine does not support the topics in `unsupported`. Return the
    name of the engine that wrote each window."""
    records = Records("t", "A" * 22, "2026-01-01-00:00", TopicRanges({0: OffsetRange(0, 1)}))
    orders = [Order(records, f"load-{n}", TableRef.raw(t)) for n, t in enumerate(topics)]
    auto = AutoEngine(Writing("columnar", frozenset(map(TableRef.raw, unsupported))), Writing("connector"))
    found = list(auto.write_many(orders, 100))
    assert [w.folder for w in found if isinstance(w, StagedFiles)] == [order.load_id for order in orders]
    return [w.engine for w in found if isinstance(w, StagedFiles)], auto


def test_of_several_topics_an_unsupported_one_leaves_the_others_to_the_columnar_engine() -> None:
    names, auto = engines_of("abcbd", "b")
    assert names == ["columnar", "connector", "columnar", "connector", "columnar"]
    assert auto.name == "columnar"
    # A refusal for a second topic shows that the cause is not the topic.
    names, auto = engines_of("abcde", "bd")
    assert names == ["columnar", "connector", "columnar", "connector", "connector"]
    assert auto.name == "connector"
    # With a single topic, the first refusal is enough.
    names, auto = engines_of("bbb", "b")
    assert names == ["connector"] * 3
    assert auto.name == "connector"
