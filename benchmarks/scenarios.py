"""All scenarios by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks import (
    aging,
    backlog,
    broken_avro,
    bulk,
    code_location,
    curves,
    decoding,
    decoding_avro,
    decoding_memory,
    file_formats,
    growth,
    limits,
    load_profile,
    many_topics,
    many_windows,
    memory,
    pages,
    reading,
    rebuilding,
    scaling,
    small_window,
    streams,
    ticks,
    topic_kinds,
    whole_window,
)
from benchmarks.scenario import Bench, Measured

SCENARIOS: Mapping[str, Callable[[Bench], Measured]] = {
    "bulk": bulk.run,
    "limits": limits.run,
    "load-profile": load_profile.run,
    "topic-kinds": topic_kinds.run,
    "decoding": decoding.run,
    "decoding-avro": decoding_avro.run,
    "broken-avro": broken_avro.run,
    "code-location": code_location.run,
    "many-windows": many_windows.run,
    "reading": reading.run,
    "aging": aging.run,
    "ticks": ticks.run,
    "many-topics": many_topics.run,
    "thousand-topics": many_topics.run_thousand,
    "pages": pages.run,
    "small-window": small_window.run,
    "whole-window": whole_window.run,
    "curves": curves.run,
    "growth": growth.run,
    "file-formats": file_formats.run,
    "memory": memory.run,
    "decoding-memory": decoding_memory.run,
    "backlog": backlog.run,
    "rebuilding": rebuilding.run,
    "streams": streams.run,
    "scaling": scaling.run,
}
