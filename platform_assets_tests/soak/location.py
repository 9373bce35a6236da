"""The platform's own code location, for processes that fail when a test orders them to; see `points`."""

from __future__ import annotations

import os

from platform_assets.definitions import defs
from platform_assets_tests.soak.points import Orders, install

__all__ = ["defs"]

install(Orders.below(os.environ["PLATFORM_HOME"]))
