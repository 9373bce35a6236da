"""A day of hostile strings and secrets: no secret leaks, and no untrusted content is active anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from platform_assets_tests.soak import canary
from testbed import browser


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(browser.executable(os.environ) is None, reason=f"no Chromium: {browser.REMEDY}")
def test_a_day_leaves_no_secret_and_no_live_text(tmp_path: Path) -> None:
    found = canary.run(tmp_path)
    print(canary.HEADER, found.line(), sep="\n")
    assert found.anomalies == ()
