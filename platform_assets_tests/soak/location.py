"""The platform's own code location, in processes that fail where orders say so: `points` has which."""

from __future__ import annotations

import os

from platform_assets.definitions import defs
from platform_assets_tests.soak.points import Orders, install

__all__ = ["defs"]

install(Orders.below(os.environ["PLATFORM_HOME"]))
