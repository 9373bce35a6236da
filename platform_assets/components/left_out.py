"""Find declared topics that cannot be defined next to the others, so that the others can. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration.names import all_names

_WAY_OUT: Final = (
    "Leave out one of the two topics (with `exclude` if a `pattern` found it), or declare that topic in a separate "
    "project"
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A topic declared at `place`: by a pattern if `found` is true, otherwise by name."""

    declaration: TopicDeclaration
    place: str
    found: bool


def left_out(candidates: Sequence[Candidate], *, case_sensitive: bool = True) -> dict[int, str]:
    """Return the indexes of topics that cannot be defined, and why. If two topics exclude each other, the topic found
    by a pattern is left out.

    `case_sensitive` is true if the lake distinguishes `Orders` from `orders`. A topic that is listed by name twice is
    not handled here.
    """
    first: dict[str, Candidate] = {}
    taken: dict[str, Candidate] = {}
    refused: dict[int, str] = {}
    for number, each in sorted(enumerate(candidates), key=lambda item: item[1].found):
        topic = each.declaration.topic
        other = first.setdefault(topic, each)
        if other is not each:
            if each.found:
                refused[number] = f"topic {topic!r} is declared already, at {other.place}: add it to `exclude` here"
            continue
        names = set(all_names(each.declaration))
        if not case_sensitive:
            names.add(f"lake folder {topic.lower()}")
        if clash := min(names & taken.keys(), default=None):
            kept = taken[clash]
            refused[number] = (
                f"topic {topic!r} cannot be defined next to topic {kept.declaration.topic!r}, declared at "
                f"{kept.place}: both would use the {clash}. {_WAY_OUT}"
            )
            continue
        taken |= dict.fromkeys(names, each)
    return refused
