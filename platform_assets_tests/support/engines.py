"""Engines used by load tests. If the engines could behave differently, tests use both. Otherwise, `make test` uses one
engine, and `make test-all` also uses the other."""

from __future__ import annotations

from typing import Final

import pytest

from platform_assets.model.declaration import ENGINES

ONE_ENGINE: Final = ("columnar", pytest.param("connector", marks=pytest.mark.long))
"""Parameters of the fixture `engine_name`. They do not include `auto`, which would hide the failure of one engine."""

both_engines: Final = pytest.mark.parametrize("engine_name", ENGINES)
