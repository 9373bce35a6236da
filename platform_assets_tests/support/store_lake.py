"""A topic with its lake in an object store."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from platform_assets.lake.commits import FOREVER
from platform_assets.lake.location import Folder, Lake
from testbed.loads import TopicLake


@dataclass
class StoreLake(TopicLake):
    """A topic on a real broker whose lake is at `address`; nothing is in the folder `root`."""

    address: str = ""

    @property
    def lake(self) -> Lake:
        """Where all of it is."""
        return Lake.at(self.address)

    @property
    def folder(self) -> Folder:
        """Where the raw table is."""
        return self.lake.table(self.declaration.raw_table)

    def unnamed_files(self) -> list[str]:
        """Data files below the raw table's folder that its newest version does not name."""
        paths = pa.table(self.folder.delta().get_add_actions(flatten=True))["path"].to_pylist()
        there = {name for name in self.folder.written_before(FOREVER, "") if not name.startswith("_delta_log/")}
        return sorted(there - {unquote(path) for path in paths})
