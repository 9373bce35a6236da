"""Code that decoder tests share: a comparison of the two paths, and values of every kind."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from platform_assets.decoding.decoder import Decoded, Decoder

EXAMPLES = int(os.environ.get("PLATFORM_TEST_EXAMPLES", "50"))
"""Number of random examples of a property: other ones in each run. `make test-all` tries 200."""

UNTIMED = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
"""Settings without time limits, which are meaningless on a busy machine."""

BROKEN = [
    b"\x80",
    b"a\xc3",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xc0\xaf",
    b"12345678\xff",
    b"\xe2\x82",
    b"\xf0\x9f\x92",
]
"""Byte strings that are not UTF-8, each for a different reason."""

any_bytes = st.binary(max_size=40) | st.text(max_size=40).map(str.encode) | st.sampled_from(BROKEN)


def decoded(decoder: Decoder, values: Sequence[bytes | None]) -> Decoded:
    """Decode the values with the fast path, and check that both paths agree and give one row for each value. Pickling
    the decoder, or decoding a block that is a slice of a longer block, must not change the result."""
    block = pa.array(values, pa.binary())
    fast, exact = decoder.decode(block), decoder.decode_exactly(block)
    assert_same(fast, exact)
    padded = pa.array([b"left out", None, *values, b"left out too"], pa.binary()).slice(2, len(values))
    assert_same(pickle.loads(pickle.dumps(decoder)).decode(padded), fast)
    assert fast.columns.schema == decoder.fields
    assert fast.columns.num_rows == len(fast.rescued) == len(values)
    dead = fast.dead["row"].to_pylist()
    assert dead == sorted(set(dead))
    rows = fast.columns.to_pylist()
    for row, value in enumerate(values):
        if value is None or row in dead:
            assert set(rows[row].values()) == {None}
            assert value is not None or row not in dead
        else:
            assert not any(rows[row][field.name] is None for field in decoder.fields if not field.nullable)
    return fast


def assert_same(one: Decoded, other: Decoded) -> None:
    """Check that both paths agree on each row, null and dead letter."""
    for batch in (one, other):
        batch.columns.validate(full=True)
        batch.dead.validate(full=True)
    # As text, since NaN differs from itself.
    assert repr(one.columns.to_pylist()) == repr(other.columns.to_pylist())
    assert one.rescued.to_pylist() == other.rescued.to_pylist()
    assert one.dead.to_pylist() == other.dead.to_pylist()
