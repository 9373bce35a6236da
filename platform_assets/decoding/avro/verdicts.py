"""What the exact path says of values at which the kernel stopped, as far as it can be had from where it stopped."""

from __future__ import annotations

import numpy as np

from platform_assets.decoding.avro import exact
from platform_assets.decoding.avro.fast import TOO_LARGE, Block
from platform_assets.decoding.avro.program import Program
from platform_assets.decoding.decoder import DeadLetter
from platform_assets.decoding.pieces import Marks, Pieces
from platform_assets.decoding.reading import Unfit


def verdicts(program: Program, block: Block, values: Pieces, max_bytes: int) -> tuple[list[DeadLetter], Marks]:
    """Dead letters, in ascending order of rows, and the values that have to be read from their beginning.

    The kernel reads the parts of a value in the exact path's order and stops at the first that it cannot read, so the exact path
    would come to the same part at the same byte: its verdict on that part alone is its verdict on the value. Where it can read
    the part (a branch that the kernel does not follow, a decimal of many bytes), the value is left to it as a whole.
    """
    dead: list[DeadLetter] = []
    unsettled = np.zeros(len(values), np.bool_)
    content = values.data.data
    starts, sizes = values.starts[block.rows].tolist(), values.sizes[block.rows].tolist()
    stops = zip(block.rows.tolist(), block.steps.tolist(), block.places.tolist(), starts, sizes, strict=True)
    for row, step, place, start, size in stops:
        if step == TOO_LARGE:
            unfit: Unfit | None = exact.too_large(size, max_bytes)
        else:
            unfit = exact.fault_at(program.parts[step], bytes(content[start : start + size]), place)
        if unfit is None:
            unsettled[row] = True
        else:
            dead.append(DeadLetter(row, unfit.reason, unfit.place, unfit.detail))
    return dead, unsettled
