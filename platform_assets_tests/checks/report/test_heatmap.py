"""The heatmap as data and as a picture."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import get_args
from xml.etree import ElementTree

import pytest

from platform_assets.checks.findings import FindingKind
from platform_assets.checks.report.heatmap import (
    COLOURS,
    COLUMNS,
    ROWS,
    TEXT,
    Heatmap,
    State,
    data_uri,
    heatmap_of,
    picture,
    state_of,
)
from platform_assets.cli.audit_table import STYLES
from platform_assets.kafka.evidence.partition import OFFSET_KINDS
from platform_assets.lake.holdings import WindowFiles
from platform_assets.ledger.entries import EXPIRED, Hole
from platform_assets_tests.support.tables import facts, finding, key

C, F, W = State.COMPLETE, State.FAILING, State.WAITING


def cells(heatmap: Heatmap) -> list[list[State | None]]:
    return [list(row.cells) for row in heatmap.rows]


def test_a_column_a_window_and_a_row_a_partition() -> None:
    heatmap = heatmap_of(facts(4, 2, waiting=[3]), [finding("rows missing", 1, 1, (15, 17))])

    assert cells(heatmap) == [[C, C, C, W], [C, F, C, W]]
    assert [row.label for row in heatmap.rows] == ["p0", "p1"]
    assert (heatmap.first, heatmap.last, heatmap.windows, heatmap.windows_per_column) == (key(0), key(3), 4, 1)
    assert heatmap.counts == {F: 1, W: 1, C: 2}
    assert list(heatmap.counts) == [F, W, C]


def test_finding_without_a_partition_concerns_all_that_have_offsets() -> None:
    assert cells(heatmap_of(facts(2, 3), [finding("ledger behind", 0, None)])) == [[F, C], [F, C], [F, C]]


def test_gravest_of_several_findings_is_shown() -> None:
    found = [finding("rows missing", 0), finding("could not tell", 0, None), finding("window not asked for", 0)]

    assert cells(heatmap_of(facts(1), found)) == [[F]]
    assert cells(heatmap_of(facts(1), found[1:])) == [[State.UNDECIDED]]


def test_every_kind_but_two_fails_those_of_tomorrow_too() -> None:
    states = {kind: state_of(kind) for kind in get_args(FindingKind)}

    assert {k: s for k, s in states.items() if s is not F} == {
        "window not asked for": State.UNASKED,
        "window parked": State.UNASKED,
        "could not tell": State.UNDECIDED,
    }
    assert state_of("eaten by a dog") is F  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("holes", "state"),
    [
        ({"commit markers": 1}, State.MARKERS),
        ({"commit markers": 1, "abort markers": 1, "aborted records": 2}, State.ABORTED),
        ({"commit markers": 1, "compacted away": 1}, State.COMPACTED),
        ({"below log start": 1, "aborted records": 1}, State.UNDECIDED),
        ({"accepted loss": 1, "aborted records": 1}, State.ACCEPTED),
        ({"erased": 1, "compacted away": 1}, State.ERASED),
        ({"erased": 1, "accepted loss": 1}, State.ACCEPTED),
        ({"erased": 1, "commit markers": 1, "expired": 3}, State.EXPIRED),
        ({"kind of tomorrow": 1}, State.FAILING),
        (None, State.OPEN),
    ],
)
def test_holes_are_shown_by_their_gravest_kind(holes: dict[str, int] | None, state: State) -> None:
    heatmap = heatmap_of(facts(2, 2, holes={(1, 0): holes}))

    assert cells(heatmap) == [[C, state], [C, C]]


def test_every_explained_kind_of_hole_has_a_state() -> None:
    for kind in {*OFFSET_KINDS, *get_args(Hole), EXPIRED} - {"records", "unexplained"}:
        heatmap = heatmap_of(facts(1, holes={(0, 0): {kind.replace("_", " "): 1}}))
        assert heatmap.rows[0].cells[0] not in (F, C), kind


def test_windows_nobody_asked_for_differ_from_waiting_ones() -> None:
    assert cells(heatmap_of(facts(3, unasked=[1], waiting=[2]))) == [[C, State.UNASKED, W]]


def test_rows_without_a_receipt_differ_from_windows_not_loaded() -> None:
    files = {key(n): WindowFiles((key(n),), 100, 10, "") for n in (0, 1)}
    found = replace(facts(4, waiting=[1, 3], unasked=[0, 2]), files=files)

    # A sealed window that has files but no receipt is being loaded.
    assert cells(heatmap_of(found)) == [[State.UNRECORDED, W, State.UNASKED, W]]


def test_window_that_was_never_sealed_has_a_column_of_its_own() -> None:
    heatmap = heatmap_of(facts(2, 2), [finding("unknown window", 5, 7, (1, 2))])

    assert heatmap.last == key(5)
    assert cells(heatmap) == [[C, C, None], [C, C, None], [None, None, F]]


def test_fault_without_a_window_has_no_column() -> None:
    heatmap = heatmap_of(facts(1), [finding("files lost", 0, None), finding("files lost", 0)])

    assert heatmap.windows == 1


def test_many_windows_share_columns_and_the_gravest_shows() -> None:
    windows = COLUMNS * 3 - 1
    heatmap = heatmap_of(facts(windows, 1, waiting=[windows - 1]), [finding("rows missing", 100)])

    assert heatmap.windows_per_column == 3
    assert len(heatmap.rows[0].cells) == COLUMNS
    # The first column combines the remaining windows, so that the newest column is complete.
    assert [n for n, c in enumerate(heatmap.rows[0].cells) if c is F] == [(100 + 1) // 3]
    assert heatmap.rows[0].cells[-1] is W
    assert heatmap.counts == {F: 1, W: 1, C: windows - 2}


def test_no_window_is_lost_by_sharing() -> None:
    for windows in (1, COLUMNS, COLUMNS + 1, 2 * COLUMNS, 2 * COLUMNS + 1, 1000):
        for number in (0, windows // 2, windows - 1):
            heatmap = heatmap_of(facts(windows), [finding("rows missing", number)])
            assert len(heatmap.rows[0].cells) <= COLUMNS
            assert heatmap.rows[0].cells.count(F) == 1
            assert sum(heatmap.counts.values()) == windows


def test_many_partitions_share_the_last_row_the_gravest_ones_excepted() -> None:
    heatmap = heatmap_of(facts(2, 100), [finding("rows missing", 0, 77), finding("could not tell", 1, 99)])

    assert len(heatmap.rows) == ROWS
    assert [r.label for r in heatmap.rows] == ["p0", "p1", "p2", "p3", "p4", "p77", "p99", "93 more"]
    assert heatmap.rows[5].cells == (F, C)
    assert heatmap.partitions == 100


def test_nothing_sealed_is_said() -> None:
    heatmap = heatmap_of(facts(0))

    assert heatmap.sentence == "raw/orders: no window has been sealed yet"
    assert heatmap.lines() == []
    assert "no window has been sealed yet" in picture(heatmap)


def test_lines_tell_every_state_by_a_letter_of_its_own() -> None:
    assert len({s.letter for s in State}) == len({s.label for s in State}) == len(State)
    heatmap = heatmap_of(facts(3, 11, waiting=[2]), [finding("rows missing", 0, 10)], rows=20)
    assert heatmap.lines()[0] == " p0 ██·"
    assert heatmap.lines()[10] == "p10 X█·"


def test_picture_is_well_formed_and_has_a_mark_above_what_fails() -> None:
    sound, torn = heatmap_of(facts(40, 4)), heatmap_of(facts(40, 4), [finding("rows missing", 7, 2)])

    for heatmap in (sound, torn):
        svg = ElementTree.fromstring(picture(heatmap))
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert "✕" not in picture(sound)
    assert picture(torn).count("✕") == 2  # one in the cell, one in the legend
    assert "1 FAILING" in picture(torn)
    assert data_uri(torn).startswith("data:image/svg+xml;base64,")


def test_every_state_has_a_colour_on_a_page_and_a_style_on_a_terminal() -> None:
    assert set(COLOURS) == set(STYLES) == set(State)


def test_picture_escapes_names() -> None:
    heatmap = heatmap_of(facts(1), [finding("unknown window", 0)])
    hostile = Heatmap(heatmap.table, heatmap.rows, 1, 1, 1, "<script>&", "<script>&", heatmap.counts)

    assert "<script" not in picture(hostile)
    ElementTree.fromstring(picture(hostile))


def test_picture_stays_small_and_low_whatever_it_shows(rng: random.Random) -> None:
    kinds = [{"commit markers": 1}, {"aborted records": 1}, {"compacted away": 1}, {"below log start": 1}, None, {}]
    holes = {(w, p): rng.choice(kinds) for w in range(300) for p in range(12)}
    heatmap = heatmap_of(facts(300, 12, holes=holes), [finding("files lost", n, None) for n in range(0, 300, 7)])

    assert len(data_uri(heatmap)) < 20_000
    assert len(data_uri(heatmap_of(facts(300, 12)))) < 2_000
    height = int(ElementTree.fromstring(picture(heatmap)).attrib["height"])
    # The UI shows 260 pixels of a description, which includes a headline and a remedy of up to two lines each.
    assert height <= 160


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(share * p for share, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio as defined by WCAG, which requires 3 to 1 for graphics and bold letters, and 4.5 to 1
    for small text."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#030614"], ids=["light", "dark"])
def test_picture_can_be_read_on_either_page(page: str) -> None:
    assert {s.name: contrast(colour, page) for s, colour in COLOURS.items() if contrast(colour, page) < 3} == {}
    assert contrast(TEXT, page) > 4.3
    # Letters in cells are white in both color schemes.
    assert min(contrast(colour, "#ffffff") for colour in COLOURS.values()) > 3
