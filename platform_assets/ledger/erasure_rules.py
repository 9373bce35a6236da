"""Erasures as rules: the decisions on a topic, applied to any window, even to a window that was sealed after the
decisions.

A decision lists offsets of a generation. A decision by key also has salted digests of the keys. The offsets apply to
every window of the same log, whatever the window's edges are. The digests also apply to later logs with the topic's
name, in which the same records have other offsets.
"""

from __future__ import annotations

import hashlib
import json
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow.compute as pc

from platform_assets.lake.location import Lake
from platform_assets.ledger import decisions, known_files
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.entries import ERASED, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange, common, merge, merge_named, subtract
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import edge_of


def erased_of(
    ledger: Ledger, topic: str, keys: Sequence[str] | None = None
) -> dict[str, dict[int, tuple[OffsetRange, ...]]]:
    """Return the offsets of erased records, by window and partition, in ascending order: for all windows, or for the
    windows in `keys`.

    Offsets count as erased as soon as the decision is recorded, even if the rows still exist. Windows without such
    offsets are omitted.
    """
    among = None if keys is None else [edge_of(key) for key in keys]
    columns = ["window", "kind", "partition", "start", "end", "holes"]
    found = known_files.of_commits(ledger.lake).rows(TableRef.raw(topic).ledger_name, columns, among=among)
    named: dict[str, list[tuple[int, int, int]]] = {}
    for row in found.filter(pc.equal(found["kind"], "acceptance")).to_pylist():
        if ERASED in json.loads(row["holes"]):
            named.setdefault(row["window"], []).append((row["partition"], row["start"], row["end"]))
    return {window: merge_named(parts) for window, parts in named.items()}


def has_erasures(ledger: Ledger, topic: str) -> bool:
    """Return True if an erasure of the topic was ever requested or completed. It may also have removed rows without a raw row,
    which `erased_of` does not list."""
    return bool(decisions.decisions(ledger.lake, topic, ("erase", "erased"))) or bool(erased_of(ledger, topic))


ADOPTED: Final = 0
"""Generation of a rule by key that was made for another topic: all windows of this topic then count as belonging to a
later log."""
KEYS: Final = "keys"
"""Key in the details of an erasure by key. It has `salt`, `digests`, and `until`, which has the ends of the sealed
offsets at that time, by partition."""
_DIGEST_BYTES: Final = 16

Ranges = Mapping[int, tuple[OffsetRange, ...]]


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Rule that erases records with one of these keys: in `generation`, the records before the offsets `until`; in
    earlier generations, all such records; in later generations, the records that were sent before `decided_at`."""

    generation: int
    until: Mapping[int, int]
    salt: bytes
    digests: frozenset[bytes]
    decided_at: datetime
    reason: str

    def adopted_fields(self) -> dict[str, Any]:
        """Return the rule in the form that the details of a decision on another topic use."""
        digests = sorted(found.hex() for found in self.digests)
        made = self.decided_at.isoformat()
        return {"salt": self.salt.hex(), "digests": digests, "until": {}, "decided_at": made}


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for one topic: erased offsets by generation, merged; rules by key; and the generations whose offsets a
    later generation continues."""

    offsets: Mapping[int, Ranges]
    keys: tuple[KeyRule, ...]
    continues: Mapping[int, int]

    def same_log(self, generation: int) -> tuple[int, ...]:
        """Return the generations whose offsets stand for the same records as the offsets of `generation`, including
        `generation` itself."""
        found = [generation]
        while found[-1] in self.continues:
            found.append(self.continues[found[-1]])
        return tuple(found)

    def erased_in(self, window: SealedWindow) -> dict[int, tuple[OffsetRange, ...]]:
        """Return the offsets in a window that decisions list."""
        found: dict[int, tuple[OffsetRange, ...]] = {}
        for generation in self.same_log(window.generation):
            for partition, parts in self.offsets.get(generation, {}).items():
                inside = window.ranges.by_partition.get(partition)
                if inside is None:
                    continue
                first = bisect_right(parts, inside.start, key=lambda r: r.end)
                after = bisect_left(parts, inside.end, key=lambda r: r.start)
                if named := common(parts[first:after], [inside]):
                    found[partition] = merge((*found.get(partition, ()), *named))
        return found

    def keys_for(self, window: SealedWindow) -> tuple[KeyRule, ...]:
        """Return the rules by key that may apply to records of a window."""
        return tuple(rule for rule in self.keys if self._may_concern(rule, window))

    def _may_concern(self, rule: KeyRule, window: SealedWindow) -> bool:
        if rule.generation in self.same_log(window.generation):
            return any(r.size and r.start < rule.until.get(p, 0) for p, r in window.ranges.items())
        return any(r.size for _, r in window.ranges.items())


_NONE: Final = Rules({}, (), {})
_known: dict[tuple[Lake, str], tuple[tuple[int | None, int], Rules]] = {}
_lock = threading.Lock()


def of(ledger: Ledger, topic: str) -> Rules:
    """Return the rules for a topic. The call is cheap if nothing was decided since the last call."""
    with _lock:
        known = _known.get((ledger.lake, topic))
    newest = ledger.newest_cut(topic)
    version = decisions.version(ledger.lake, known[0][0] if known else None)
    state = (version, 1 if newest is None else newest.generation)
    if known is not None and known[0] == state:
        return known[1]
    found = _NONE if version is None else _read(ledger, topic)
    with _lock:
        _known[ledger.lake, topic] = (state, found)
    return found


def forget() -> None:
    """Discard everything that was read, because the ledger was restored."""
    with _lock:
        _known.clear()


def _read(ledger: Ledger, topic: str) -> Rules:
    named, keys, continues = dict[int, list[list[int]]](), list[KeyRule](), dict[int, int]()
    for decision in decisions.decisions(ledger.lake, topic, ("erase", "cluster")):
        details = decision.details
        if decision.kind == "cluster":
            if is_in_force(decision, ledger):
                continues[details["to"]["generation"]] = details["from"]["generation"]
            continue
        of_log = named.setdefault(details["generation"], [])
        for triples in details["offsets"].values():
            of_log += triples
        if KEYS in details:
            keys.append(_key_rule(decision))
    return Rules({number: merge_named(parts) for number, parts in named.items()}, tuple(keys), continues)


def _key_rule(decision: Decision) -> KeyRule:
    fields = decision.details[KEYS]
    decided_at = datetime.fromisoformat(fields["decided_at"]) if "decided_at" in fields else decision.decided_at
    if decided_at is None:
        raise AssertionError("unreachable: it was read from the ledger")
    return KeyRule(
        decision.details["generation"],
        {int(p): end for p, end in fields["until"].items()},
        bytes.fromhex(fields["salt"]),
        frozenset(bytes.fromhex(text) for text in fields["digests"]),
        decided_at,
        decision.reason,
    )


def is_in_force(decision: Decision, ledger: Ledger) -> bool:
    """Return True if the cut that a decision on a log refers to is recorded, and not another cut with the same
    generation number."""
    edge, to = edge_of(decision.details["edge"]), decision.details["to"]
    offsets = {int(p): offset for p, offset in to["offsets"].items()}
    return any(
        (cut.generation, cut.topic_id, dict(cut.cut.offsets)) == (to["generation"], to["topic_id"], offsets)
        for cut in ledger.cuts(decision.topic, edge, edge)
    )


def apply(ledger: Ledger, windows: Sequence[SealedWindow]) -> None:
    """Record in the ledger of loads what the rules erase in windows of one topic, before these windows are read."""
    if not windows:
        return
    rules = of(ledger, windows[0].topic)
    named = {w.key: ranges for w in windows if (ranges := rules.erased_in(w))}
    if not named:
        return
    known = erased_of(ledger, windows[0].topic, list(named))
    lacking = [(w, without(named[w.key], known.get(w.key, {}))) for w in windows if w.key in named]
    ledger.record_acceptances([(w, left) for w, left in lacking if left], "named by an erasure decision", ERASED)


def without(ranges: Ranges, known: Ranges) -> dict[int, tuple[OffsetRange, ...]]:
    """Return `ranges` without the offsets in `known`."""
    left = {p: subtract(parts, known.get(p, ())) for p, parts in ranges.items()}
    return {p: parts for p, parts in left.items() if parts}


def digest(key: bytes, salt: bytes) -> bytes:
    """Return the digest of a key for storage in a decision. Anyone with access to the lake can test a guessed key
    against it, but cannot read the key."""
    return hashlib.blake2b(key, key=salt, digest_size=_DIGEST_BYTES).digest()


def fields_of_keys(keys: Sequence[bytes], salt: bytes, until: Mapping[int, int]) -> dict[str, Any]:
    """Return the details for a decision about keys."""
    digests = sorted(digest(key, salt).hex() for key in set(keys))
    return {"salt": salt.hex(), "digests": digests, "until": {str(p): end for p, end in sorted(until.items())}}
