"""A topic that is no longer declared: Dagster's records of the topic, and their removal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from platform_assets.model.tables import TableRef
from platform_assets.orchestration.names import table_key, topic_key

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")


def test_assets_of_a_removed_topic_are_in_the_catalogue_until_they_are_wiped(tmp_path: Path) -> None:
    """The table and the ledger do not belong to Dagster, and stay."""
    home, lake = tmp_path / "dagster", tmp_path / "lake"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    (lake / "raw" / "orders").mkdir(parents=True)
    keys = [topic_key("orders"), table_key(TableRef.raw("orders"))]
    other = table_key(TableRef.raw("payments"))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for key in (*keys, other):
            instance.report_runless_asset_event(dg.AssetMaterialization(key, partition="2026-01-01-00:00"))
        assert set(instance.all_asset_keys()) == {*keys, other}

    for key in keys:
        command = [sys.executable, "-m", "dagster", "asset", "wipe", "--noprompt", json.dumps(list(key.path))]
        environ = {**os.environ, "DAGSTER_HOME": str(home)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert list(instance.all_asset_keys()) == [other]
    assert (lake / "raw" / "orders").is_dir()
