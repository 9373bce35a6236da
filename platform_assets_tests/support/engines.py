"""Which engines a test of loads runs with: both where an engine could differ, else one, and the other in `make test-all`."""

from __future__ import annotations

from typing import Final

import pytest

from platform_assets.model.declaration import ENGINES

ONE_ENGINE: Final = ("columnar", pytest.param("connector", marks=pytest.mark.long))
"""For the fixture `engine_name`. Not `auto`, which would hide that one of them cannot."""

both_engines: Final = pytest.mark.parametrize("engine_name", ENGINES)
