"""Names derived from a topic's name, for places that allow fewer characters or shorter names, or ignore case. Pure. A
name that is valid there stays unchanged. Any other name gets digits of the topic's hash, so that two topics do not
share it.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from platform_assets.errors import TopicNameError

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic(name: str) -> bool:
    """Return True if Kafka allows the name for a topic."""
    return _LEGAL.fullmatch(name) is not None and name not in {".", ".."}


def checked_topic(name: str) -> str:
    """Return `name` if Kafka allows it, else raise TopicNameError.

    The rule is that of Kafka's `org.apache.kafka.common.internals.Topic`: 1 to 249 of `[a-zA-Z0-9._-]`, and neither
    "." nor "..". Such a name needs no escaping in a path.
    """
    if not is_topic(name):
        raise TopicNameError(name)
    return name


_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_FILE: Final = re.compile(r"[a-z0-9._-]+", re.ASCII)
_RESERVED: Final = "_together"
"""Suffix of Dagster names that belong to a group of topics."""
_KINDS_IN_FRONT: Final = ("decoded-", "dead_letters-", "state-")

LONGEST_FILE: Final = 255
"""Maximum bytes of a file's or folder's name on the usual file systems."""
_LONGEST_STEM: Final = 200
"""Maximum length of a file's stem, which leaves room for prefixes and suffixes, also of temporary names."""
_LONGEST_IN_CATALOGUE: Final = 128
_DIGITS: Final = 6
_MORE_DIGITS: Final = 16


def distinct(stem: str, topic: str, mark: str = "_", digits: int = _MORE_DIGITS, longest: int | None = None) -> str:
    """Return `stem` with digits of the hash of `topic`, with the stem cut so that the result has at most `longest`
    characters. With a `mark` that topic names cannot contain, the result is never a topic's name.
    """
    end = f"{mark}{sha256(topic.encode()).hexdigest()[:digits]}"
    return (stem if longest is None else stem[: longest - len(end)]) + end


def identifier(topic: str) -> str:
    """Return a name of letters, digits and underscores:

    `a.b` and `a_b` get different ones, and none is a topic group's name.
    """
    if _IDENTIFIER.fullmatch(topic) and not topic.endswith(_RESERVED):
        return topic
    return distinct(re.sub(r"[^A-Za-z0-9_]", "_", topic), topic, digits=_DIGITS)


def catalogue_name(topic: str) -> str:
    """Return a name for a catalog that treats `Orders` and `orders` as one name, and allows at most 128 characters."""
    name = identifier(topic)
    if name == name.lower() and len(name) <= _LONGEST_IN_CATALOGUE:
        return name
    return distinct(name.lower(), topic, longest=_LONGEST_IN_CATALOGUE)


def file_name(kind: str, topic: str, ending: str) -> str:
    """Return the name of a file about the table of `topic` with this kind; names for raw tables omit the kind.

    No two tables share a name, even if the file system ignores case, and there is room for a temporary name next to
    it.
    """
    fits = _FILE.fullmatch(topic) and len(topic) <= _LONGEST_STEM
    front = "" if kind == "raw" else f"{kind}-"
    if not fits or (kind == "raw" and topic.startswith(_KINDS_IN_FRONT)):
        topic = distinct(topic.lower(), topic, "!", longest=_LONGEST_STEM)
    return f"{front}{topic}{ending}"


def ledger_name(kind: str, topic: str) -> str:
    """Return a table's name in the ledger, such as `raw/orders`; shorter for a topic whose name is too long for a
    folder.
    """
    folder = f"table={kind}%2F{topic}"
    return f"{kind}/{topic if len(folder) <= LONGEST_FILE else distinct(topic, topic, '!', 32, _LONGEST_STEM)}"
