"""The services of `make test-cluster`: they listen only on this machine, and only their owner can read their files."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from platform_assets_tests.support import exposure
from platform_assets_tests.support.exposure import Exposure
from testbed import postgres


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder outside pytest's own folder that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="exposure-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_what_is_open_to_others_is_found(folder: Path) -> None:
    for name, mode in (("closed", 0o700), ("open", 0o755), ("entered", 0o711)):
        (folder / name).mkdir()
        (folder / name / "file").touch(mode=0o644)
        (folder / name / "private").touch(mode=0o600)
        (folder / name).chmod(mode)
    with socket.create_server(("0.0.0.0", 0)) as server, socket.create_server(("127.0.0.1", 0)):
        found = exposure.exposure("this", [psutil.Process()], folder)
        assert found.beyond == [f"0.0.0.0:{server.getsockname()[1]}"]
    assert len(found.listens) >= 2
    assert found.readable == {folder / "open", folder / "open" / "file", folder / "entered" / "file"}
    assert not found.is_private


@pytest.mark.cluster
@pytest.mark.parametrize("start", [exposure.of_the_object_store, exposure.of_postgres, exposure.of_the_spark_cluster])
def test_a_service_of_the_cluster_tests_is_private(
    start: Callable[[Path], Exposure | list[Exposure]], folder: Path
) -> None:
    if start is exposure.of_postgres and postgres.programs() is None:
        pytest.skip(postgres.HOW)
    found = start(folder)
    for each in found if isinstance(found, list) else [found]:
        assert each.listens, each
        assert each.is_private, each.line()


@pytest.mark.cluster
def test_three_secured_brokers_are_private(folder: Path) -> None:
    found = exposure.of_the_platform(folder, ("kafka",), three=True)
    assert len(found) == 3
    for each in found:
        assert each.listens, each
        assert each.is_private, each.line()
