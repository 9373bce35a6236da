"""Folding converges: whatever the order and the number of loads and folds, a state has the rows that a plain dictionary
gives. `make soak SCENARIO=states` runs more of these histories."""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pytest

from platform_assets.engines.folding.fold import FoldOrder, fold
from platform_assets.model.state import StateDeclaration
from platform_assets_tests.support.state_histories import CHANGES, DEAD, LIVE, MemorySide, history
from platform_assets_tests.support.variants import long_after


@pytest.mark.parametrize("histories", long_after(1, [60, 180]))
def test_random_histories_end_in_the_state_of_a_dictionary(histories: int) -> None:
    base = os.environ.get("STATE_SEED", str(random.randrange(1 << 30)))
    print(f"STATE_SEED={base}")
    rebuilds = 0
    for number in range(histories):
        made = history(f"{base}/{number}")
        made.run()
        made.check()
        rebuilds += made.rebuilds
    assert rebuilds > 0, "no history had to rebuild the state, so rebuilding was not tested"


def test_a_truncate_may_have_a_time_after_the_year_9999() -> None:
    far = pa.array([1_700_000_000_000_000_000], pa.timestamp("us", "UTC"))
    made = [
        dict.fromkeys(CHANGES.names)
        | {
            "kafka_partition": 0,
            "kafka_offset": offset,
            "generation": 1,
            "window": "w",
            "id": id,
            "deleted": id is None,
        }
        for offset, id in enumerate((1, None, 2))
    ]
    rows = pa.Table.from_pylist(made, CHANGES).set_column(
        CHANGES.get_field_index("kafka_timestamp"), CHANGES.field("kafka_timestamp"), pa.concat_arrays([far] * 3)
    )
    live, dead = MemorySide(LIVE, LIVE.empty_table()), MemorySide(DEAD, DEAD.empty_table())
    state = StateDeclaration(("id",), deletes="debezium")
    fold(FoldOrder(state, live, dead, ["w"], lambda: iter(rows.to_batches()), lambda: iter(()), 1))
    assert (live.taken()["id"].to_pylist(), dead.taken()["id"].to_pylist()) == ([2], [None])
