"""The folder that each load has to itself: `<window>/<load id>`, below the table's."""

from __future__ import annotations

from platform_assets.lake.location import Folder


def load_folder(window: str, load_id: str) -> str:
    """Where a load of a window puts its files, relative to the table's folder. Spark cannot read paths with a colon."""
    return f"{_window_folder(window)}/{load_id}"


def begun_loads(table: Folder, window: str) -> frozenset[str]:
    """The folders of all loads of a window that wrote files, whatever became of them."""
    return frozenset(load_folder(window, load_id) for load_id in table.folders(_window_folder(window)))


def _window_folder(window: str) -> str:
    return window.replace(":", "-")
