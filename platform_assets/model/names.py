"""Names derived from a topic's name, for uses that allow fewer characters or shorter names, or that ignore case. No
I/O. If the topic's name is valid for the use, it stays unchanged. In any other case, digits from the topic's hash are
added, so that no two topics share a name."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from platform_assets.errors import TopicNameError

LONGEST_TOPIC: Final = 249
"""Maximum number of characters in the name of a topic."""
_LEGAL = re.compile(rf"[a-zA-Z0-9._-]{{1,{LONGEST_TOPIC}}}")


def is_topic(name: str) -> bool:
    """Return True if Kafka allows the name for a topic."""
    return _LEGAL.fullmatch(name) is not None and name not in {".", ".."}


def checked_topic(name: str) -> str:
    """Return `name` if Kafka allows it. Raise TopicNameError if Kafka does not.

    The rule comes from Kafka's `org.apache.kafka.common.internals.Topic`: 1 to 249 characters from `[a-zA-Z0-9._-]`,
    and neither "." nor "..". Such a name needs no escaping in a path.
    """
    if not is_topic(name):
        raise TopicNameError(name)
    return name


_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_FILE: Final = re.compile(r"[a-z0-9._-]+", re.ASCII)
_RESERVED: Final = "_together"
"""Suffix of the Dagster names that belong to a topic group."""
_KINDS_IN_FRONT: Final = ("decoded-", "dead_letters-", "changes-", "state-", "derived-")

LONGEST_FILE: Final = 255
"""Maximum number of bytes in the name of a file or folder on the usual file systems."""
_LONGEST_STEM: Final = 200
"""Maximum length of the stem of a file's name. The limit leaves space for prefixes and suffixes, including those of
temporary names."""
_LONGEST_IN_CATALOGUE: Final = 128
_DIGITS: Final = 6
_MORE_DIGITS: Final = 16


def distinct(stem: str, topic: str, mark: str = "_", digits: int = _MORE_DIGITS, longest: int | None = None) -> str:
    """Return `stem`, followed by digits from the hash of `topic`. If `longest` is set, the stem is truncated so that
    the result has at most `longest` characters. If `mark` is a character that topic names cannot contain, the result is
    never the name of a topic."""
    end = f"{mark}{sha256(topic.encode()).hexdigest()[:digits]}"
    return (stem if longest is None else stem[: longest - len(end)]) + end


def identifier(topic: str) -> str:
    """Derive a name that consists of letters, digits and underscores.

    `a.b` and `a_b` get different names, and no name equals the name of a topic group.
    """
    if _IDENTIFIER.fullmatch(topic) and not topic.endswith(_RESERVED):
        return topic
    return distinct(re.sub(r"[^A-Za-z0-9_]", "_", topic), topic, digits=_DIGITS)


def catalogue_name(topic: str) -> str:
    """Derive a name for a catalog that treats `Orders` and `orders` as the same name, and allows at most 128
    characters."""
    name = identifier(topic)
    if name == name.lower() and len(name) <= _LONGEST_IN_CATALOGUE:
        return name
    return distinct(name.lower(), topic, longest=_LONGEST_IN_CATALOGUE)


def file_name(kind: str, topic: str, ending: str) -> str:
    """Return the file name for one table of `topic`. `kind` is the kind of table; the names for raw tables omit it.

    No two tables share a file name, even if the file system ignores case. The name is short enough that temporary names
    can be derived from it.
    """
    fits = _FILE.fullmatch(topic) and len(topic) <= _LONGEST_STEM
    front = "" if kind == "raw" else f"{kind}-"
    if not fits or (kind == "raw" and topic.startswith(_KINDS_IN_FRONT)):
        topic = distinct(topic.lower(), topic, "!", longest=_LONGEST_STEM)
    return f"{front}{topic}{ending}"


def ledger_name(kind: str, topic: str) -> str:
    """Return a table's name in the ledger, such as `raw/orders`. The name is shortened if the topic's name is too long
    for a folder."""
    folder = f"table={kind}%2F{topic}"
    return f"{kind}/{topic if len(folder) <= LONGEST_FILE else distinct(topic, topic, '!', 32, _LONGEST_STEM)}"
