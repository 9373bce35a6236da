"""A topic whose lake is in an object store."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from platform_assets.lake.leftovers import FOREVER
from platform_assets.lake.location import Folder
from testbed.loads import TopicLake


@dataclass
class StoreLake(TopicLake):
    """A topic on a real broker. The lake of the topic is at `address`; the folder `root` stays empty."""

    @property
    def folder(self) -> Folder:
        """Folder of the raw table."""
        return self.lake.table(self.declaration.raw_table)

    def data_files(self) -> list[str]:
        """All data files below the raw table's folder."""
        return [name for name in self.folder.written_before(FOREVER, "") if not name.startswith("_delta_log/")]

    def named_files(self) -> set[str]:
        """Data files that the raw table's newest version lists."""
        paths = pa.table(self.folder.delta().get_add_actions(flatten=True))["path"].to_pylist()
        return {unquote(path) for path in paths}

    def unnamed_files(self) -> list[str]:
        """Data files that the raw table's newest version does not list."""
        return sorted(set(self.data_files()) - self.named_files())
