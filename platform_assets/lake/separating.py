"""Separating windows of a flat table from the files that they share, before many of these windows are replaced one by
one.

Otherwise each replacement would copy all other windows in the shared file again. The commit declares that it changes no
data.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from platform_assets.errors import FilesLostError
from platform_assets.lake import flat, holdings, merging, row_copies
from platform_assets.lake.field_ids import ids_of
from platform_assets.lake.location import Folder
from platform_assets.lake.merging import Group
from platform_assets.lake.row_copies import Measure
from platform_assets.model.logs import logger

_log = logger(__name__)


def separate(folder: Folder, windows: Collection[str], measure: Measure) -> int:
    """If several of `windows` share a file, put the rows of each of them into separate files; return the number of
    files that were divided.

    A file is kept if it cannot be read, or if another commit has removed it in the meantime: the code that replaces a
    window can handle both cases. Raises whatever `merging.commit` raises.
    """
    handle, divided = folder.delta(), 0
    if len(windows) < 2 or not holdings.is_flat(handle):
        return 0
    since = handle.version()
    with folder.reading():
        files = pa.table(handle.get_add_actions(flatten=True))
        ids = ids_of(pa.schema(handle.schema().to_arrow()))
    found = holdings.by_window(folder, files, flat=True, among=windows)
    held = holdings.windows_by_path(found)
    shared = {f.path: f for f, is_shared in holdings.files_in(found) if is_shared and flat.is_removable(f.path)}
    for path, file in shared.items():
        if len(held[path]) < 2:
            continue
        try:
            new = row_copies.separated(folder, file, windows, measure, ids, since)
        except FilesLostError as e:
            _log.info("windows in %s of %s are not separated: %s", path, folder.name, e)
            continue
        span = holdings.span_of(folder, file)
        if merging.commit(folder, folder.delta(), Group((file,), span), new, since) is None:
            row_copies.discard(folder, new)
        else:
            divided += 1
    return divided


def divide(folder: Folder, paths: Collection[str], windows: Collection[str], measure: Measure) -> int:
    """Divide each of the shared files `paths`, in the form of the log, into one file with the rows of `windows` and one with the
    others; return the number of files divided.

    Files that the newest version does not have are left out. A file that cannot be read, or that another commit has
    removed meanwhile, is kept. Raises what `merging.commit` raises.
    """
    handle, divided = folder.delta(), 0
    since = handle.version()
    with folder.reading():
        files = pa.table(handle.get_add_actions(flatten=True))
        ids = ids_of(pa.schema(handle.schema().to_arrow()))
    for file in holdings.files_named(files, paths):
        try:
            new = row_copies.separated(folder, file, windows, measure, ids, since, together=True)
        except FilesLostError as e:
            _log.info("windows in %s of %s are not separated: %s", file.path, folder.name, e)
            continue
        if merging.commit(folder, folder.delta(), Group((file,), holdings.span_of(folder, file)), new, since) is None:
            row_copies.discard(folder, new)
        else:
            divided += 1
    return divided
