"""Engines used by load tests: both if they could differ. Otherwise `make test` uses one, and `make test-all` the other
too."""

from __future__ import annotations

from typing import Final

import pytest

from platform_assets.model.declaration import ENGINES

ONE_ENGINE: Final = ("columnar", pytest.param("connector", marks=pytest.mark.long))
"""Parameters of the fixture `engine_name`. They do not include `auto`, which would hide the failure of one engine."""

both_engines: Final = pytest.mark.parametrize("engine_name", ENGINES)
