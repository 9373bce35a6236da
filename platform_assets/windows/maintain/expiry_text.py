"""Retention by age in words: for the command, the job's log and `status`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from platform_assets.windows.maintain.expiry_reasons import (
    BLOCKED,
    DAMAGED,
    DAMAGED_DEAD,
    DAMAGED_DECODED,
    DECIDED,
    ERASING,
    OPEN,
    OPEN_DERIVED,
    PARKED,
    RETURNED,
    UNDECODED,
    UNKNOWN,
)
from platform_assets.windows.maintain.last_expiry import LastExpiry
from platform_assets.windows.maintain.upkeep_text import counted

_DECODE_AGAIN: Final = (
    "Decode it again with `platform-assets load decoded/{topic} {key}`; if the YAML no longer has `decode:`, move the tables "
    "decoded/{topic} and dead_letters/{topic} away"
)
_REMEDIES: Final = {
    DAMAGED: "Repair it with `platform-assets load raw/{topic} {key}`",
    DAMAGED_DECODED: _DECODE_AGAIN,
    DAMAGED_DEAD: _DECODE_AGAIN,
    OPEN_DERIVED: _DECODE_AGAIN,
    RETURNED: "Delete the rows of this window from the topic's tables with the program that brought them back, such as Spark",
    OPEN: "Load it again with `platform-assets load raw/{topic} {key}`, and see the check every_offset_accounted_for",
    UNKNOWN: 'Accept the loss with `platform-assets accept-loss raw/{topic} {key} --reason "…"`, then run '
    "`platform-assets audit raw/{topic}`",
    UNDECODED: "Decode it with `platform-assets load decoded/{topic} {key}`",
    ERASING: "Complete the erasure with `platform-assets erase raw/{topic}`",
    BLOCKED: "Run `platform-assets audit raw/{topic}` and, if the topic is decoded, `platform-assets audit decoded/{topic}`, "
    "and load the windows whose files they name as lost, for example with `platform-assets load decoded/{topic} {key}`. If "
    "they name none, rewrite the files of these tables, for example with OPTIMIZE",
    PARKED: "Once it can be decoded, run `platform-assets unpark decoded/{topic} {key}`, then `platform-assets load "
    "decoded/{topic} {key}`",
}


def text(done: LastExpiry) -> str:
    """Return what a run has removed, or what will be."""
    if not done.is_due:
        since, at = datetime.fromisoformat(done.since), datetime.fromisoformat(done.at)
        if done.aged is not None and datetime.fromisoformat(done.aged) < since <= at:
            return (
                f"keep {done.keep}: removes nothing until the topic has a window boundary of {_minute(done.since)} UTC or "
                f"later{_aged_text(done)}"
            )
        older = f"; {_waiting(done, ',')} are older and will go then" if done.waiting else ""
        return f"keep {done.keep}: removes nothing before {_minute(done.since)} UTC{older}{_aged_text(done)}"
    removed = (
        f"removed {_some(done.windows, done.first, done.last, done.rows)}" if done.windows else "removed no window"
    )
    left = f"; {_waiting(done, ',')} are left for later runs" if done.waiting else ""
    return f"keep {done.keep}: {removed}{left}{_aged_text(done)}"


def plan_text(done: LastExpiry) -> str:
    """Return what a run would remove."""
    if not done.is_due:
        return text(done)
    would = f"would remove {_waiting(done)}" if done.waiting else "would remove no window"
    return f"keep {done.keep}: {would}{_aged_text(done)}"


def _waiting(done: LastExpiry, end: str = "") -> str:
    """Return the windows that a later run will remove. If `done` has their keys, the text has these, and ends with `end`."""
    has_keys = not done.windows and done.first is not None
    first, last = (done.first, done.last) if has_keys else (None, None)
    return _some(done.waiting, first, last, done.waiting_rows) + (end if has_keys else "")


def _some(windows: int, first: str | None, last: str | None, rows: int) -> str:
    span = "" if first is None else f" {first}," if first == last else f" from {first} to {last},"
    return f"{counted(windows, 'window')}{span} with {counted(rows, 'row')}"


def _aged_text(done: LastExpiry) -> str:
    """Return a text if windows age more slowly than the clock."""
    if done.aged is None or datetime.fromisoformat(done.at) - datetime.fromisoformat(done.aged) < timedelta(days=1):
        return ""
    return f"; windows age only up to the topic's newest window boundary, {_minute(done.aged)} UTC"


def _minute(moment: str) -> str:
    return moment[:16].replace("T", " ")


def problems(topic: str, held: Mapping[str, str], more: Mapping[str, int]) -> Iterator[str]:
    """Yield which windows are past `keep` and stay, why, and what to do; `more` are the numbers of windows that are not in
    `held`, by reason. Windows that stay because an operator has decided so are left out."""
    return _texts(topic, held, more, set(held.values()) - DECIDED)


def warnings(topic: str, held: Mapping[str, str], more: Mapping[str, int]) -> Iterator[str]:
    """Yield texts like those of `problems`, for windows that stay because an operator has decided so."""
    return _texts(topic, held, more, DECIDED.intersection(held.values()))


def _texts(topic: str, held: Mapping[str, str], more: Mapping[str, int], reasons: Collection[str]) -> Iterator[str]:
    for reason in sorted(reasons):
        keys = sorted(key for key, why in held.items() if why == reason)
        others = len(keys[3:]) + more.get(reason, 0)
        some = ", ".join(keys[:3]) + (f" and {others:,} more" if others else "")
        are, were, it = ("are", "were", "them") if len(keys) + others > 1 else ("is", "was", "it")
        remedy = _REMEDIES[reason].format(topic=topic, key=keys[0])
        yield (
            f"{some} of topic {topic} {are} past keep and {were} not removed: {reason}. {remedy}; the next upkeep then "
            f"removes {it}."
        )
