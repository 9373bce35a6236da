"""The process that runs cases. `running` starts and watches it."""

from __future__ import annotations

import faulthandler
import json
import mmap
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Final

from platform_assets_tests.fuzzing.target import case_rng

PROGRESS: Final = "progress"
FINDINGS: Final = "findings"
STACKS: Final = "stacks"
_LAYOUT: Final = struct.Struct("qqqdd")
_TEXT: Final = 6_000


class Progress:
    """Progress of the process. It is in shared memory, so an update costs almost nothing."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self._memory = mmap.mmap(self._file.fileno(), _LAYOUT.size)

    @classmethod
    def create(cls, path: Path, first: int) -> Progress:
        """Create the progress, with `first` as the next case."""
        path.write_bytes(_LAYOUT.pack(first - 1, first, 1, 0.0, 0.0))
        return cls(path)

    def begin(self, number: int) -> None:
        """Record that the case with this number has begun."""
        struct.pack_into("qqq", self._memory, 0, number, number, 0)

    def end(self, number: int) -> None:
        """Record that the case has ended."""
        _LAYOUT.pack_into(self._memory, 0, number, number + 1, 1, time.process_time() + _of_children(), _peak_mb())

    @property
    def number(self) -> int:
        """Number of the case that began last."""
        return int(_LAYOUT.unpack_from(self._memory)[0])

    @property
    def done(self) -> int:
        """One more than the number of the case that ended last."""
        return int(_LAYOUT.unpack_from(self._memory)[1])

    @property
    def at_rest(self) -> bool:
        """Return True if no case is running."""
        return bool(_LAYOUT.unpack_from(self._memory)[2])

    @property
    def cpu(self) -> float:
        """Processor time used, in seconds."""
        return float(_LAYOUT.unpack_from(self._memory)[3])

    @property
    def peak_mb(self) -> float:
        """Peak memory in megabytes."""
        return float(_LAYOUT.unpack_from(self._memory)[4])

    def close(self) -> None:
        """Close the shared memory."""
        self._memory.close()
        self._file.close()


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def signature(error: BaseException) -> str:
    """Return the name of an error: its class, and the innermost position in this project's code in its traceback."""
    place = "nowhere of ours"
    for frame in traceback.extract_tb(error.__traceback__):
        if "platform_assets/" in frame.filename:
            place = f"{frame.filename.partition('platform_assets/')[2]}:{frame.lineno}"
    text = str(error).partition(":")[0][:80] if type(error).__name__ in ("Wrong", "AssertionError") else ""
    return f"{type(error).__name__} at {place}" + (f", {text!a}" if text else "")


def main(name: str, seed: int, first: int, seconds: float, folder: Path, last: int | None) -> None:
    """Run cases until the time is over, or run only `last`; record any exception that a case raises."""
    from platform_assets_tests.fuzzing.targets import target_of

    stacks, progress = (folder / STACKS).open("w"), Progress(folder / PROGRESS)
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    target, until = target_of(name), time.monotonic() + seconds
    with target.open(folder / "work") as case, (folder / FINDINGS).open("a") as findings:
        # Integer overflow in numpy is never intended.
        warnings.simplefilter("error", RuntimeWarning)
        limit = _size() + (target.megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number, peak = first, _peak_mb()
        while number == first or (time.monotonic() < until and last is None):
            progress.begin(number)
            try:
                case(case_rng(name, seed, number))
                if _peak_mb() - peak > target.megabytes / 2:
                    raise MemoryError(f"{_peak_mb() - peak:,.0f} MB more than before")
            except BaseException as error:  # noqa: BLE001 - each is a finding
                text = "".join(traceback.format_exception(error))
                found = {
                    "number": number,
                    "key": signature(error),
                    "text": text[: _TEXT // 2] + "\n…\n" + text[-_TEXT // 2 :],
                }
                findings.write(json.dumps(found) + "\n")
                findings.flush()
            peak = _peak_mb()
            progress.end(number)
            number += 1


def _size() -> int:
    """Return the size of this process's address space in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main(
        sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]),
        int(sys.argv[6]) if sys.argv[6] else None,
    )  # fmt: skip
