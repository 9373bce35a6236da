"""Records that together contain everything that records can contain."""

from __future__ import annotations

from testbed.loads import Record

EVERY_KIND = [
    Record(b"plain", b"key"),
    Record(b"no key", None),
    Record(b"empty key", b""),
    Record(None, b"tombstone"),
    Record(b"", b"empty value"),
    Record(None, None),
    Record(b"", b""),
    Record(bytes(range(256)), bytes(range(255, -1, -1))),
    Record(b"headers", headers=(("a", b"1"), ("b", None), ("a", b"2"), ("a", b""), ("", b"no name"), ("ü€", b"\xff"))),
    Record(b"one header", headers=(("only", None),)),
    Record(b"old", timestamp=1),
    Record(b"dated", timestamp=1_772_323_200_123),
    Record(b"other partition", b"key", partition=1),
]
