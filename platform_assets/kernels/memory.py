"""Single machine instructions on byte arrays, for kernels. numba's own indexing works byte by byte.

These functions do not check bounds. The kernels that call them do.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(context: Any, target: Any, target_at: Any, source: Any, source_at: Any, size: Any) -> Any:
    """Copy `source[source_at:source_at + size]` to `target[target_at:]`. The two ranges must not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        into = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        out_of = _address(context, builder, signature.args[2], arguments[2], arguments[3])
        cgutils.raw_memcpy(builder, into, out_of, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load64(context: Any, source: Any, at: Any) -> Any:
    """Return the 8 bytes that start at `at` as an unsigned little-endian number, at any alignment."""
    return types.uint64(source, types.int64), _loading(64)


@intrinsic  # type: ignore[untyped-decorator]
def load32(context: Any, source: Any, at: Any) -> Any:
    """Return the 4 bytes that start at `at` as an unsigned little-endian number, at any alignment."""
    return types.uint32(source, types.int64), _loading(32)


@intrinsic  # type: ignore[untyped-decorator]
def load8(context: Any, source: Any, at: Any) -> Any:
    """Return the byte at `at`, which must not be negative. Unlike numba's own indexing, this function does not check
    that."""
    return types.uint8(source, types.int64), _loading(8)


@intrinsic  # type: ignore[untyped-decorator]
def trailing_zeros(context: Any, word: Any) -> Any:
    """Return the number of trailing zero bits of `word`, an unsigned 64-bit number other than 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


def _loading(bits: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        value = builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()))
        value.align = 1
        return value

    return generate


def _address(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])
