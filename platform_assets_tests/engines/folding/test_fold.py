"""Folding converges: whatever the order and the number of loads and folds, a state has the rows that a plain dictionary
gives. `make soak SCENARIO=states` runs more of these histories."""

from __future__ import annotations

import os
import random

from platform_assets_tests.support.state_histories import history

HISTORIES = 250


def test_random_histories_end_in_the_state_of_a_dictionary() -> None:
    base = os.environ.get("STATE_SEED", str(random.randrange(1 << 30)))
    print(f"STATE_SEED={base}")
    rebuilds = 0
    for number in range(HISTORIES):
        made = history(f"{base}/{number}")
        made.run()
        made.check()
        rebuilds += made.rebuilds
    assert rebuilds > 0, "no history had to rebuild the state, so rebuilding was not tested"
