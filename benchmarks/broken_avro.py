"""Avro with one broken record in 20, compared with intact records. For each kind of fault, the scenario measures the
cost for the decoder, on one thread.

The scenario uses no service. It measures only the decoder's processor time. Values are decoded block by block, as in
Spark's tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from benchmarks.avro_flights import BROKEN_EVERY, FAULTS, NESTED_FAULTS, NESTED_SCHEMA, SCHEMA, Fault, broken, whole
from benchmarks.rounds import alternate, middle, ratio
from benchmarks.scenario import Bench, Goal, Measured, at_least
from platform_assets.decoding.formats import decoder_of
from platform_assets.model.decoding import FormatSpec

BLOCK_ROWS: Final = 20_000
_SHAPES: Final[Mapping[str, tuple[Mapping[str, Any], Mapping[str, Fault]]]] = {
    "20 flat columns": (SCHEMA, FAULTS),
    "with a list of records": (NESTED_SCHEMA, NESTED_FAULTS),
}


def run(bench: Bench) -> Measured:
    """Measure the processor seconds for all records."""
    records, rounds = bench.pick(200_000, 60_000), bench.pick(7, 5)
    contenders: dict[str, Callable[[], object]] = {}
    for shape, (schema, faults) in _SHAPES.items():
        values = whole(records, schema)
        contenders[f"{shape}: nothing broken"] = _decoding(schema, pa.array(values, pa.binary()), 0)
        for name, fault in faults.items():
            contenders[f"{shape}: {name}"] = _decoding(schema, broken(values, schema, fault), records // BROKEN_EVERY)
    seconds = alternate(contenders, rounds, bench.report, clock=time.process_time)
    goals: list[Goal] = []
    for shape, (_, faults) in _SHAPES.items():
        clean = seconds[f"{shape}: nothing broken"]
        names = [f"{shape}: {name}" for name in faults]
        goals += [
            at_least(f"{name}, speed relative to unbroken records", 0.5, ratio(clean, seconds[name])) for name in names
        ]
    rates = {name: round(records / middle(s)[0]) for name, s in seconds.items()}
    setting = {"records": records, "one broken in": BROKEN_EVERY, "rows a block": BLOCK_ROWS}
    return Measured(
        "broken-avro", seconds, goals, "s of processor time", setting=setting, more={"records per second": rates}
    )


def _decoding(schema: Mapping[str, Any], values: pa.BinaryArray, dead: int) -> Callable[[], None]:
    decoder = decoder_of(FormatSpec("avro", {"schema": schema}))

    def decode() -> None:
        blocks = range(0, len(values), BLOCK_ROWS)
        found = sum(len(decoder.decode(values.slice(at, BLOCK_ROWS)).dead) for at in blocks)
        if found != dead:
            raise RuntimeError(f"{found:,} dead letters for {dead:,} broken records: the measurement is invalid")

    return decode
