"""Sharing of the session's services between processes. In these tests, each open file stands for a process, because the
locks belong to open files."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from platform_assets_tests.support.streams import freeze
from platform_assets_tests.support.turns import turn, until_the_last_leaves
from testbed.loads import wait_until


def free(folder: Path, kind: int, lock: str = "services") -> bool:
    with (folder / lock).open("w") as held:
        try:
            fcntl.flock(held, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_tests_use_the_services_side_by_side(tmp_path: Path) -> None:
    with turn(tmp_path, alone=False):
        assert free(tmp_path, fcntl.LOCK_SH)
        assert not free(tmp_path, fcntl.LOCK_EX)
    assert free(tmp_path, fcntl.LOCK_EX)


def test_one_that_disturbs_them_has_them_alone(tmp_path: Path) -> None:
    with turn(tmp_path, alone=True):
        assert not free(tmp_path, fcntl.LOCK_SH)
    assert free(tmp_path, fcntl.LOCK_EX)


def test_who_waits_for_a_turn_alone_is_not_overtaken(tmp_path: Path) -> None:
    def disturb() -> None:
        with turn(tmp_path, alone=True):
            pass

    waiting = threading.Thread(target=disturb)
    with turn(tmp_path, alone=False):
        waiting.start()
        wait_until("the gate is kept", lambda: not free(tmp_path, fcntl.LOCK_EX, "gate"))
    waiting.join(60)
    assert not waiting.is_alive()


def test_services_end_with_the_last_process_that_uses_them(tmp_path: Path) -> None:
    ended: list[str] = []
    with until_the_last_leaves(tmp_path, lambda: ended.append("last")):
        with until_the_last_leaves(tmp_path, lambda: ended.append("first")):
            pass
        assert ended == []
    assert ended == ["last"]


def test_services_end_where_a_test_session_breaks_off(tmp_path: Path) -> None:
    ended: list[str] = []
    with pytest.raises(KeyboardInterrupt), until_the_last_leaves(tmp_path, lambda: ended.append("last")):
        raise KeyboardInterrupt
    assert ended == ["last"]


def test_a_test_that_freezes_the_broker_without_saying_so_fails() -> None:
    with pytest.raises(RuntimeError, match="freezing the broker disturbs other tests"):
        freeze(None)  # type: ignore[arg-type]
