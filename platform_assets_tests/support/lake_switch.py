"""Switch that puts all lakes of a test session into an object store: `PLATFORM_TEST_LAKE=s3`. The store keeps objects
as files. A test's folder is among these files, so a test can change files of its lake without using the store.
`Lake.at` and `Folder.at` convert a path in that folder to the store's address, so the platform always uses the store.
Separate processes get the address (`TopicLake.address`)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from platform_assets.lake import object_files
from platform_assets.lake.location import Folder, Lake
from platform_assets.services.home import Home
from platform_assets_tests.support.parts import LAKE
from testbed.homes import home_at
from testbed.object_store import ObjectStore, object_store


@contextmanager
def lakes_in(store: ObjectStore) -> Iterator[None]:
    """Within the block, convert paths below the store's folder to the store's addresses, and use the store's
    environment for clients of the store."""
    lake_at, folder_at = Lake.at, Folder.at

    def address(path: str | Path) -> str:
        return store.address_of(Path(path)) or str(path)

    def lake(_: type[Lake], root: str | Path) -> Lake:
        return lake_at(address(root))

    def folder(_: type[Folder], path: str | Path) -> Folder:
        return folder_at(address(path))

    with pytest.MonkeyPatch.context() as patched:
        for name, value in store.environment().items():
            patched.setenv(name, value)
        patched.setattr(Lake, "at", classmethod(lake))
        patched.setattr(Folder, "at", classmethod(folder))
        object_files._bucket.cache_clear()
        yield


@pytest.fixture(scope="session", autouse=True)
def session_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The store that contains all lakes of the session, or None if the lakes are in folders."""
    if LAKE.chosen() != "s3":
        yield None
        return
    root = tmp_path_factory.mktemp("session-store")
    with object_store(home_at(root / "home"), root, secrets.token_hex(16)) as store, lakes_in(store):
        yield store


@pytest.fixture
def tmp_path(tmp_path: Path, session_store: ObjectStore | None) -> Path:
    """Replacement for pytest's `tmp_path`, below the store's folder if lakes are in a store."""
    if session_store is None:
        return tmp_path
    folder = session_store.bucket / tmp_path.name
    folder.mkdir()
    return folder


SPARK: Final = {
    # s3proxy has no ETag for a file that a test has written directly.
    "spark.hadoop.fs.s3a.change.detection.version.required": "false",
}
"""Settings for a Spark server that reads lakes whose files are changed by tests."""


def in_store(home: Home, store: ObjectStore | None) -> Home:
    """Return the home of services that read and write the session's lakes."""
    if store is not None:
        return Home(home.root, home.jars, store.root("any"), home.dagster)
    return home
