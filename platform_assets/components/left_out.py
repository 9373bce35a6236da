"""Find the declared topics that cannot be defined together with the other topics, so that the other topics can be
defined. No I/O."""

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
    """A topic declared at `place`. `found` is true if a pattern found the topic, and false if it is declared by name."""

    declaration: TopicDeclaration
    place: str
    found: bool


def left_out(candidates: Sequence[Candidate], *, case_sensitive: bool = True) -> dict[int, str]:
    """For each topic that cannot be defined, return the reason, keyed by the topic's index. If two topics exclude each
    other and a pattern found one of them, that topic is left out.

    `case_sensitive` is true if the lake distinguishes `Orders` from `orders`. If a topic is declared by name twice,
    this function does not report it.
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
