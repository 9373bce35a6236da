"""Log files of a stopped broker, changed on its disk."""

from __future__ import annotations

from pathlib import Path


def cut_off(folder: Path, end: int) -> int:
    """Remove all batches that begin at offset `end` or later from the partition's log in `folder`. Return the new end
    of the log. This imitates an unclean leader election. The broker rebuilds the log's other files."""
    segments = sorted(folder.glob("*.log"), key=lambda path: int(path.stem))
    chosen = max((s for s in segments if int(s.stem) <= end), key=lambda path: int(path.stem))
    for later in segments[segments.index(chosen) + 1 :]:
        later.unlink()
    content, at, new_end = chosen.read_bytes(), 0, int(chosen.stem)
    while at < len(content) and (base := int.from_bytes(content[at : at + 8], "big")) < end:
        # Of a batch: base offset, length of what follows, and at byte 23 the last offset's difference from the base.
        new_end = base + int.from_bytes(content[at + 23 : at + 27], "big") + 1
        at += 12 + int.from_bytes(content[at + 8 : at + 12], "big")
    chosen.write_bytes(content[:at])
    for beside in (*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")):
        beside.unlink()
    return new_end
