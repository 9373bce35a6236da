"""Each load's own folder: `window=<window>/<load id>`, below the table's folder.

Delta's protocol allows any path, and has the partition in the log; but readers such as polars take it from the path, in Hive's
form.
"""

from __future__ import annotations

from platform_assets.lake.location import Folder


def load_folder(window: str, load_id: str) -> str:
    """Return the folder of a load's files, relative to the table's folder."""
    return f"{window_folder(window)}/{load_id}"


def begun_loads(table: Folder, window: str) -> frozenset[str]:
    """Return the folders of all loads of a window that wrote files, whatever their outcome."""
    return frozenset(load_folder(window, load_id) for load_id in table.folders(window_folder(window)))


def window_folders(window: str) -> tuple[str, ...]:
    """Return all folders that may hold files of a window from any writer: the one above, and other encodings of a colon."""
    return window_folder(window), f"window={window}", f"window={window.replace(':', '%253A')}"


def window_folder(window: str) -> str:
    """Return the common prefix of the folders of a window's loads. A colon is encoded like Spark does, which cannot read one."""
    return f"window={window.replace(':', '%3A')}"
