"""Limit on the number of rules that a JSON Schema can apply to one part of a value. Without a limit, a few lines of
references can multiply the rules.

A validator resolves every reference each time. Thirty definitions that each refer twice to the next definition would
therefore cost a billion steps for each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urljoin

from platform_assets.decoding.avro.types import BadSchema

NOWHERE: Final = "json-schema:///"
"""Base address for schemas that do not set an address."""
MOST: Final = 10_000
"""Maximum number of rules for one part of a value, with references expanded."""
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_SAME_PART: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
_ONE_OF_THEM: Final = ("properties", "prefixItems")
"""Keywords that contain several rules. At most one of these rules applies to a part of a value."""
_EACH: Final = (
    "patternProperties", "additionalProperties", "items", "additionalItems", "contains", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip


def check(documents: Mapping[str, Any]) -> None:
    """Raise BadSchema if one of these schemas applies too many rules. `documents` maps addresses to schemas. A schema
    that contains itself is counted once."""
    index, bases = _indexed(documents)
    counts: dict[int, int] = {}
    begun: set[int] = set()
    waiting = [(each, False) for each in documents.values() if isinstance(each, dict)]
    while waiting:
        node, done = waiting.pop()
        if done:
            counts[id(node)] = 1 + _counted(node, index, bases, counts)
            if counts[id(node)] > MOST:
                raise BadSchema("$", f"its references make it apply more than {MOST:,} rules to one part of a value")
        elif id(node) not in begun:
            begun.add(id(node))
            waiting.append((node, True))
            names = (*_REFERENCES, *_SAME_PART, *_ONE_OF_THEM, *_EACH)
            waiting += [(part, False) for name in names for part in _parts(node, name, index, bases)]


def _counted(
    node: dict[str, Any], index: Mapping[str, Any], bases: Mapping[int, str], counts: Mapping[int, int]
) -> int:
    def of(name: str) -> list[int]:
        return [counts.get(id(part), 1) for part in _parts(node, name, index, bases)]

    all_apply = sum(count for name in (*_REFERENCES, *_SAME_PART, *_EACH) for count in of(name))
    return all_apply + max((count for name in _ONE_OF_THEM for count in of(name)), default=0)


def _parts(
    node: dict[str, Any], name: str, index: Mapping[str, Any], bases: Mapping[int, str]
) -> Iterator[dict[str, Any]]:
    """Yield the schemas that a keyword of `node` applies."""
    found = node.get(name)
    if name in _REFERENCES:
        target = _led_to(found, bases.get(id(node), ""), index) if isinstance(found, str) else None
        listed: list[Any] = [target]
    elif isinstance(found, dict) and name in ("properties", "patternProperties", "dependentSchemas", "dependencies"):
        listed = [*found.values()]
    else:
        listed = found if isinstance(found, list) else [found]
    yield from (each for each in listed if isinstance(each, dict))


def _indexed(documents: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, str]]:
    """Return two mappings. The first maps each address to its schema. The second maps the identity of each schema to
    the base address of the schema's references."""
    index: dict[str, Any] = dict(documents)
    bases: dict[int, str] = {}
    waiting = [(each, address) for address, each in documents.items()]
    while waiting:
        node, base = waiting.pop()
        if isinstance(node, dict):
            if isinstance(node.get("$id"), str):
                base = _joined(base, node["$id"])
                index.setdefault(base.partition("#")[0], node)
            bases[id(node)] = base
            for anchor in (node[name] for name in _ANCHORS if isinstance(node.get(name), str)):
                index.setdefault(f"{base.partition('#')[0]}#{anchor}", node)
            waiting += [(each, base) for each in node.values()]
        elif isinstance(node, list):
            waiting += [(each, base) for each in node]
    return index, bases


def _led_to(reference: str, base: str, index: Mapping[str, Any]) -> Any:
    """Return the target of a reference, or None if the target does not exist. The validator reports a missing
    target."""
    address = _joined(base, reference)
    if address in index:
        return index[address]
    url, _, fragment = address.partition("#")
    found = index.get(url)
    for part in unquote(fragment).split("/")[1:] if fragment else ():
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(found):
            found = found[int(name[:9])]
        else:
            return None
    return found


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    if base.startswith(NOWHERE) and ":" not in reference.partition("/")[0]:
        return NOWHERE + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference
