"""The store's credentials: they are in the environments of processes, and in no place that anyone reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from platform_assets.model.declaration import ENGINES
from platform_assets.services.process import family
from platform_assets_tests.object_store.conftest import SECRET, StoreSpark
from platform_assets_tests.support.spark_ui import fetched, pages
from testbed.loads import numbered, wait_until
from testbed.object_store import KEY_ID

if TYPE_CHECKING:
    from platform_assets_tests.object_store.conftest import StoreLakeMaker
    from testbed.object_store import ObjectStore

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.cluster]


def files(*folders: Path) -> dict[str, str]:
    """Return the contents of all files below the folders, as text."""
    found = (path for folder in folders for path in folder.rglob("*"))
    return {str(path): path.read_bytes().decode(errors="replace") for path in found if path.is_file()}


def test_spark_shows_neither_key_nor_secret_of_the_store(
    store_lake: StoreLakeMaker, store: ObjectStore, store_spark: StoreSpark
) -> None:
    """Spark's driver copies the key and the secret from its environment into its Hadoop configuration, which Spark's UI
    lists."""
    for engine in ENGINES:
        lk = store_lake(engine=engine)
        assert lk.load(lk.window_of(numbered(20))).receipt.rows == 20
    lk.spark().read.format("delta").load(lk.folder.spark_path).count()
    wait_until("the statements are shown", lambda: (fetched(f"{store_spark.ui}/connect/") or "").count("CLOSED") >= 2)

    shown = dict(pages(store_spark.ui))
    environment = "".join(text for where, text in shown.items() if "environment" in where)
    assert "fs.s3a.access.key" in environment, "the keys are there"
    assert "*********(redacted)" in environment
    # The server's files (options, logs, event logs) and the lake's (table logs, receipts, statistics) are searched too.
    shown |= files(store_spark.home.root, store.bucket)
    assert any("events" in where for where in shown)
    processes = [psutil.Process(), *family(store_spark.process)]
    assert len(processes) > 2, "workers are among them"
    shown |= {f"arguments of {process.pid}": " ".join(process.cmdline()) for process in processes}
    assert [where for where, text in shown.items() if SECRET in text or KEY_ID in text] == []
