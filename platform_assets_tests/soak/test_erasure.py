"""One key is erased from a very large number of windows. The test checks that the key is gone from every file of the
lake, and measures the cost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from platform_assets.ledger.entries import ERASED
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved

WINDOWS, RECORDS = int(os.environ.get("ERASURE_WINDOWS", "1000")), 100
"""Number of windows, and number of records in each window. In each window, one record has the key to erase. In every
eighth window, that record becomes a dead letter if the window is decoded."""
DECODED_EACH = 4
"""One out of every `DECODED_EACH` windows is decoded."""
WHO, NEEDLE = b"customer-4711", b"zebra-in-pyjamas"


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_key_is_erased_from_a_thousand_windows(tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path)
    windows = topic.seal(
        [
            {
                p: [
                    (WHO, b"\xff" * (n % 8 == 0) + NEEDLE)
                    if (p, r) == (n % 2, n % 50)
                    else (b"key-%d" % r, b"value-%d-%d-%d" % (n, p, r))
                    for r in range(RECORDS // 2)
                ]
                for p in range(2)
            }
            for n in range(WINDOWS)
        ]
    )
    began = time.monotonic()
    topic.load_many(windows)
    for window in windows[::DECODED_EACH]:
        topic.decoder().decode(window.key)
    print(f"\nmade {WINDOWS:,} windows in {time.monotonic() - began:.0f} s; {_size(tmp_path)}", flush=True)
    assert len(found_in(tmp_path, NEEDLE)) >= WINDOWS
    erasure = topic.erasure

    began = time.monotonic()
    selected = erasure.of_keys([WHO])
    found = time.monotonic() - began
    erasure.record(selected, AUTHOR)
    done = erasure.run(AUTHOR)
    print(f"found in {found:.1f} s, erased in {time.monotonic() - began:.1f} s: {done.to_fields()}; {_size(tmp_path)}")

    assert done.windows == WINDOWS
    for needle in (WHO, NEEDLE):
        assert found_in(tmp_path, needle) == []
    assert topic.values() == [r.value for r in topic.records if r.key != WHO]
    assert all(receipt.holes == {ERASED: 1} for receipt in topic.receipts().values())
    proved(topic)


def _size(root: Path) -> str:
    files = [p for p in root.rglob("*") if p.is_file()]
    return f"{len(files):,} files with {sum(p.stat().st_size for p in files):,} bytes"
