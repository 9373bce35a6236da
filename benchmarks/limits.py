"""Comparison of a load with the machine's limits. For each limit, as many bytes as the load's values have are copied in
memory, written to disk, or sent over loopback. Each limit is measured with two threads, or with two pairs of processes,
on the folder and device that the load uses."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.bulk import COLUMNAR, EVIDENCE, PARTITIONS, VALUE_BYTES, Bulk
from benchmarks.rounds import alternate, middle
from benchmarks.scenario import Bench, Measured
from platform_assets.engines.shared.session import connect
from platform_assets.services.ports import LOOPBACK

COPY: Final = "the same bytes copied in memory"
DISK: Final = "the same bytes written to files, and to the disk"
SENT: Final = "the same bytes sent over loopback"
AT_ONCE: Final = 2
_BLOCK: Final = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of the machine for a given number of bytes. The bytes are written to the disk that contains `folder`."""

    folder: Path
    size: int
    source: npt.NDArray[np.uint8]
    target: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, folder: Path, size: int) -> Limits:
        """Prepare at most `size` bytes, in whole blocks for each thread. Both arrays have been written to once, so
        their memory is allocated."""
        size -= size % (AT_ONCE * _BLOCK)
        block = np.frombuffer(os.urandom(_BLOCK), np.uint8)
        source = np.tile(block, size // _BLOCK)
        return cls(folder, size, source, np.zeros_like(source))

    def copy(self) -> None:
        """Copy everything from one array to the other, block by block."""
        self._in_parts(self._copied)

    def write(self) -> None:
        """Write everything to two new files, and sync the files to the disk."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._in_parts(self._written)

    def send(self) -> None:
        """Send everything from two other processes to two threads in this process."""
        self._in_parts(self._received)

    def _in_parts(self, work: Callable[[int, int], None]) -> None:
        part = self.size // AT_ONCE
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(work, n * part, (n + 1) * part) for n in range(AT_ONCE)]:
                done.result()

    def _copied(self, begin: int, end: int) -> None:
        for at in range(begin, end, _BLOCK):
            self.target[at : at + _BLOCK] = self.source[at : at + _BLOCK]

    def _written(self, begin: int, end: int) -> None:
        path = self.folder / f"limit-{begin}"
        with path.open("wb", buffering=0) as file:
            for at in range(begin, end, _BLOCK):
                file.write(self.source[at : at + _BLOCK].data)
            os.fsync(file.fileno())
        path.unlink()

    def _received(self, begin: int, end: int) -> None:
        with socket.create_server((LOOPBACK, 0)) as server:
            sender = multiprocessing.get_context("fork").Process(
                target=_send, args=(server.getsockname()[1], end - begin)
            )
            sender.start()
            connection, _ = server.accept()
            with connection:
                left, into = end - begin, memoryview(bytearray(_BLOCK))
                while left:
                    got = connection.recv_into(into)
                    if not got:
                        raise RuntimeError(f"{left:,} bytes did not arrive")
                    left -= got
            sender.join()


def _send(port: int, size: int) -> None:
    block = os.urandom(_BLOCK)
    with socket.create_connection((LOOPBACK, port)) as connection:
        for _ in range(size // _BLOCK):
            connection.sendall(block)


def run(bench: Bench) -> Measured:
    """Measure the seconds that the bytes of the values in one window take."""
    records, rounds = bench.pick(3_000_000, 300_000), bench.pick(5, 3)
    bench.report(f"producing {records:,} records")
    bulk = Bulk.produced(bench.bootstrap, connect(bench.remote), bench.root / "bulk", records)
    limits = Limits.of(bench.root / "limits", records * VALUE_BYTES)
    contenders: dict[str, Callable[[], object]] = {
        COLUMNAR: lambda: bulk.load("columnar"),
        EVIDENCE: bulk.evidence,
        COPY: limits.copy,
        DISK: limits.write,
        SENT: limits.send,
    }
    seconds = alternate(contenders, rounds, bench.report, bulk.clear)
    megabytes = {name: round(limits.size / 1e6 / middle(s)[0]) for name, s in seconds.items()}
    shares = {name: round(megabytes[COLUMNAR] / megabytes[name], 3) for name in (EVIDENCE, COPY, DISK, SENT)}
    setting = {"records": records, "bytes a record": VALUE_BYTES, "partitions": PARTITIONS, "threads": AT_ONCE}
    more = {"MB of values a second": megabytes, "share that a load reaches": shares}
    return Measured("limits", seconds, setting=setting, more=more)
