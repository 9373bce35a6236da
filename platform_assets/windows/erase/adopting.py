"""Applying the rules by key of one topic to another, to which its records were copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from platform_assets.errors import ConfigurationError, FilesLostError
from platform_assets.lake import load_log
from platform_assets.ledger import decisions, erasure_rules
from platform_assets.ledger.decisions import Author, Decision
from platform_assets.model.offsets import merge_named
from platform_assets.windows.erase import erased_keys, searching
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets.windows.erase.erasure_ranges import triples
from platform_assets.windows.erase.outcome import Selected
from platform_assets.windows.erase.searching import Unread

if TYPE_CHECKING:
    from platform_assets.windows.erase.erasure import Erasure


def adopt(erasure: Erasure, other: str, author: Author, unread: Unread) -> int:
    """Apply the rules by key of topic `other` to the topic of `erasure` too. Return the number of new rules.

    If records that match are already loaded, their offsets are recorded, so that `Erasure.run` removes them. Files of
    expired windows that cannot be read are added to `unread`. Raises ConfigurationError if there are no such rules.
    """
    ledger, topic, table = erasure.ledger, erasure.topic, erasure.declaration.raw_table
    theirs = erasure_rules.of(ledger, other).keys
    if not theirs:
        raise ConfigurationError(
            f"topic {other!r} has no erasure with stored keys in this lake, so nothing was changed. Check "
            "the name. If the keys were not stored, run `platform-assets erase` with each key"
        )
    known = {(rule.salt, rule.digests) for rule in erasure_rules.of(ledger, topic).keys}
    new = [rule for rule in theirs if (rule.salt, rule.digests) not in known]
    for rule in new:
        details = {
            "topic_id": "",
            "generation": erasure_rules.ADOPTED,
            "offsets": {},
            "adopted_from": other,
            erasure_rules.KEYS: rule.adopted_fields(),
            **erasure.naming_replays(),
        }
        now = ledger.lake.root.time()
        decisions.record(ledger.lake, Decision(topic, "erase", (), author.name, author.reason, details, now))
    erased_keys.fence_loads(WindowEraser(erasure.declaration, ledger, erasure.run_id))
    folder = ledger.lake.table(table)
    if not load_log.exists(folder):
        return len(new)
    rules, windows = erasure_rules.of(ledger, topic), {w.key: w for w in ledger.windows(topic)}
    newest, expired = searching.files_of(ledger, table)
    hits: dict[str, list[list[int]]] = {}
    for path, held in {**newest, **expired}.items():
        named = [windows[key] for key in held if key in windows]
        try:
            found = [(window, erased_keys.find(rules, folder, [path], window)) for window in named]
        except FilesLostError:
            if path in newest:
                raise
            unread.files[path] = held
        else:
            for window, ranges in found:
                if ranges:
                    hits.setdefault(window.key, []).extend(triples(ranges))
    # One decision, however many files there are: each later load reads all of them.
    selected = [Selected(windows[key], merge_named(parts), True) for key, parts in sorted(hits.items())]
    erasure.record(selected, author)
    return len(new)
