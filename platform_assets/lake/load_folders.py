"""The folder that each load has to itself: `window=<window>/<load id>`, below the table's.

Delta's protocol leaves paths open, and names the partition in the log; readers such as polars take it from the path all the
same, in the form that Hive gave it.
"""

from __future__ import annotations

from platform_assets.lake.location import Folder


def load_folder(window: str, load_id: str) -> str:
    """Where a load of a window puts its files, relative to the table's folder."""
    return f"{window_folder(window)}/{load_id}"


def begun_loads(table: Folder, window: str) -> frozenset[str]:
    """The folders of all loads of a window that wrote files, whatever became of them."""
    return frozenset(load_folder(window, load_id) for load_id in table.folders(window_folder(window)))


def window_folders(window: str) -> tuple[str, ...]:
    """All folders that may hold files of a window, whoever wrote them: the one above, and as others encode a colon."""
    return window_folder(window), f"window={window}", f"window={window.replace(':', '%253A')}"


def window_folder(window: str) -> str:
    """What the folders of a window's loads have in common. A colon is written as Spark writes it, which cannot read one."""
    return f"window={window.replace(':', '%3A')}"
