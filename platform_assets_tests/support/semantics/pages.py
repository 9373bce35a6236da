"""README.md and docs/SEMANTICS.md, rendered from the recorded result of each leg."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from platform_assets.model.offsets import ranges_of
from platform_assets.services.home import CHECKOUT

README: Final = CHECKOUT / "README.md"
DOCUMENT: Final = CHECKOUT / "docs" / "SEMANTICS.md"
SEED: Final = 4
"""Seed of the recorded run."""
RECORDED: Final = Path(__file__).with_name("recorded.json")
BEGIN, END = "<!-- semantics:begin -->", "<!-- semantics:end -->"

LegName = Literal["producer", "copy", "lake"]
LEGS: Final[tuple[LegName, ...]] = get_args(LegName)
_ROUTES: Final[Mapping[LegName, str]] = {
    "producer": "producer → Kafka",
    "copy": "Kafka → Kafka",
    "lake": "Kafka → lake",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        how: the program or configuration.
        faults: the number of faults that it met.
        records: the number of records that had to arrive.
        arrived: the number of records, or rows, at the destination.
        lost: the number of records that are missing at the destination.
        doubled: the number of records that are at the destination more than once.
        disordered: the number of records that are after a later record, or None if this leg does not compare order.
    """

    how: str
    faults: int
    records: int
    arrived: int
    lost: int
    doubled: int
    disordered: int | None = None


@dataclass(frozen=True, slots=True)
class Leg:
    """The result of one leg: its lines of the table, a sentence for the README, and its section of the document."""

    rows: tuple[Row, ...]
    remark: str
    text: str


def _of(legs: Mapping[LegName, Leg]) -> list[LegName]:
    return [name for name in LEGS if name in legs]


def spans(places: Iterable[tuple[int, int]]) -> str:
    """Return `(partition, offset)` pairs as text, with consecutive offsets as half-open ranges."""
    found: dict[int, list[int]] = {}
    for partition, offset in sorted(places):
        found.setdefault(partition, []).append(offset)
    return "; ".join(f"partition {p} {', '.join(map(str, ranges_of(each)))}" for p, each in found.items())


def table(legs: Mapping[LegName, Leg]) -> str:
    """Return the table of all legs, in Markdown."""
    lines = [
        "| leg | how | faults | records | arrived | lost | more than once | out of order |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in _of(legs):
        for r in legs[name].rows:
            order = "–" if r.disordered is None else f"{r.disordered:,}"
            lines.append(
                f"| {_ROUTES[name]} | {r.how} | {r.faults} | {r.records:,} | {r.arrived:,} | {r.lost:,} | {r.doubled:,} "
                f"| {order} |"
            )
    return "\n".join(lines)


def section(legs: Mapping[LegName, Leg]) -> str:
    """Return the README's section: a short table, and the remarks of the legs."""
    lines = ["| leg | how | records | lost | more than once | out of order |", "|---|---|--:|--:|--:|--:|"]
    for name in _of(legs):
        for number, r in enumerate(legs[name].rows):
            route = _ROUTES[name] if number == 0 else ""
            order = "–" if r.disordered is None else f"{r.disordered:,}"
            lines.append(f"| {route} | {r.how} | {r.records:,} | {r.lost:,} | {r.doubled:,} | {order} |")
    remarks = " ".join(legs[name].remark for name in _of(legs) if legs[name].remark)
    return "\n".join([*lines, "", *textwrap.wrap(remarks, 118)])


def document(legs: Mapping[LegName, Leg], seed: int) -> str:
    """Return the document, in Markdown."""
    return (
        "\n".join(
            [
                "# Delivery semantics, demonstrated",
                "",
                f"`make semantics` runs three legs (seed {seed}), and writes this page and the README's table: a producer writes",
                "to Kafka, a program copies records from topic to topic, and a loader copies them from a topic to a table. Each",
                "program meets the faults that its section lists, and a program that crashes is started again until it succeeds,",
                "as an orchestrator would do. The page shows what this run observed, and the configuration and faults that caused",
                "it.",
                "",
                table(legs),
                "",
                *(f"{legs[name].text}\n" for name in _of(legs)),
            ]
        ).rstrip()
        + "\n"
    )


def with_section(readme: str, text: str) -> str:
    """Return `readme` with `text` between its two markers. Raises ValueError if there are no markers."""
    if not re.search(f"{BEGIN}.*{END}", readme, re.DOTALL):
        raise ValueError(f"the README has no section between {BEGIN} and {END}")
    before, rest = readme.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}"


def recorded() -> dict[LegName, Leg]:
    """Return the recorded result of each leg."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {
        name: Leg(tuple(Row(**row) for row in leg["rows"]), leg["remark"], "\n".join(leg["text"]))
        for name, leg in found.items()
    }


def record(legs: Mapping[LegName, Leg], seed: int) -> None:
    """Record the results, and write the README's section and the document."""
    stored = {name: {**asdict(legs[name]), "text": legs[name].text.split("\n")} for name in _of(legs)}
    RECORDED.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    DOCUMENT.write_text(document(legs, seed), encoding="utf-8")
    README.write_text(with_section(README.read_text(encoding="utf-8"), section(legs)), encoding="utf-8")
