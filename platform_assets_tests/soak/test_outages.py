"""A service or the disk is unavailable for a while, with a live producer. Once the service or disk is back, everything
is loaded without intervention."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from platform_assets_tests.soak import outages
from platform_assets_tests.soak.disk import small_disk
from platform_assets_tests.soak.outages import OUTAGES, OutageName


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OUTAGES)
def test_an_outage_needs_nobody(name: OutageName, tmp_path: Path) -> None:
    if name == "disk" and os.geteuid() != 0:
        pytest.skip("only root can mount the small disk to be filled")
    found = outages.run(name, 1.5, tmp_path)
    assert found.anomalies == ()
    # A user who looked during the outage would have seen it.
    assert 1 in {seen.answer.code for seen in found.observed[1:-1]}


def test_a_disk_is_full_and_then_is_not(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        if disk is None:
            pytest.skip("only root can mount a disk")
        file = disk.path / "file"
        with disk.full(), pytest.raises(OSError, match="No space left"):
            file.write_bytes(b"1234" * 1024)
        file.write_bytes(b"1234" * 1024)
