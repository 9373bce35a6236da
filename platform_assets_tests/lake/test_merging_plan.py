"""The upkeep plan: which files are merged together, and which stay unchanged."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pyarrow as pa

from platform_assets.lake.merging import Group, plan

KEYS = [f"2026-01-{day:02}-00:00" for day in range(1, 29)]
TARGET = 1_000


def found(files: Mapping[str, tuple[int, list[int]]]) -> pa.Table:
    """Return the table of file actions: `files` has the size and the window numbers of each path."""
    rows = [
        {
            "path": path,
            "size_bytes": size,
            "num_records": 1,
            "window": KEYS[number],
            "min.window": KEYS[min(held)],
            "max.window": KEYS[max(held)],
        }
        for path, (size, held) in files.items()
        for number in held
    ]
    return pa.Table.from_pylist(rows)


def paths(groups: list[Group]) -> list[list[str]]:
    return [[file.path for file in group.files] for group in groups]


def test_files_are_merged_up_to_the_target_in_order_of_their_windows() -> None:
    files = {f"window=f{n:02}": (300, [n]) for n in range(9)}
    groups = plan(found(dict(reversed(files.items()))), KEYS, TARGET)
    assert [len(group) for group in paths(groups)] == [4, 4]
    assert [path for group in paths(groups) for path in group] == list(files)[:8]
    assert all(group.is_in_order for group in groups)


def test_large_files_and_windows_without_receipts_stay() -> None:
    files = {"a": (100, [0]), "large": (500, [1]), "b": (100, [2]), "unproved": (100, [3]), "c": (100, [4])}
    assert paths(plan(found(files), [k for k in KEYS if k != KEYS[3]], TARGET)) == [["a", "b", "c"]]


def test_a_window_is_merged_with_all_of_its_files_or_not_at_all() -> None:
    """This also holds for files that are linked by windows: "a", "b" and "large" share windows, directly or through
    another file."""
    files = {"a": (100, [0, 1]), "b": (100, [1, 2]), "large": (700, [2]), "c": (100, [5]), "d": (100, [6, 5])}
    assert paths(plan(found(files), KEYS, TARGET)) == [["c", "d"]]


def test_a_large_file_waits_until_there_is_enough_to_merge_with_it() -> None:
    """If the large file did not wait, each run would rewrite all of its rows to add a few new ones."""
    files = {"old": (400, [0]), "a": (50, [1]), "b": (50, [2])}
    assert paths(plan(found(files), KEYS, TARGET)) == [["a", "b"]]
    assert paths(plan(found({**files, "c": (100, [3])}), KEYS, TARGET)) == [["old", "a", "b", "c"]]


def test_a_growing_table_writes_each_row_a_few_times(rng: random.Random) -> None:
    """Upkeep runs after each of 600 windows. Without the rule, each row would be written about 50 times on average."""
    sizes: dict[str, tuple[int, list[int]]] = {}
    written = total = 0
    target = 100_000
    for number in range(600):
        size = rng.randrange(500, 1_500)
        sizes[f"window={number}"] = (size, [number])
        total += size
        rows = [
            {"path": p, "size_bytes": s, "num_records": 1, "window": f"{h[0]:05}-{h[-1]:05}"}
            for p, (s, h) in sizes.items()
        ]
        table = pa.Table.from_pylist(rows)
        for group in plan(table, table["window"].to_pylist(), target):
            written += group.bytes
            held = sorted(n for file in group.files for n in sizes.pop(file.path)[1])
            sizes[f"windows/{held[0]}_{held[-1]}"] = (group.bytes, held)
    assert written < 9 * total
    assert len(sizes) < 40


def test_files_of_others_or_with_overlapping_windows_are_not_in_order() -> None:
    names = ("window=a", "window=b")
    (apart,) = plan(found({names[0]: (1, [0]), names[1]: (1, [1])}), KEYS, TARGET)
    (same,) = plan(found({names[0]: (1, [0]), names[1]: (1, [0])}), KEYS, TARGET)
    (overlap,) = plan(found({names[0]: (1, [0, 2]), names[1]: (1, [1])}), KEYS, TARGET)
    (others,) = plan(found({names[0]: (1, [0]), "part-0": (1, [1])}), KEYS, TARGET)
    assert [group.is_in_order for group in (apart, same, overlap, others)] == [True, True, False, False]
