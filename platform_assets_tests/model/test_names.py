"""Names derived from a topic's name: ordinary topic names are unchanged, and two topics never share a derived name."""

from __future__ import annotations

import itertools
import random
import string
from pathlib import Path
from typing import Final

import pytest

from platform_assets.model.names import LONGEST_FILE, catalogue_name, file_name, identifier, ledger_name
from platform_assets.model.tables import KINDS, RESERVED_KINDS, TableRef

ODD: Final = (
    *("orders", "Orders", "ORDERS", "shop-orders", "shop.orders", "shop_orders", "shop_Orders", "shop--orders"),
    *("decoded-orders", "dead_letters-orders", "state-orders", "raw-orders", "orders_decoded", "orders_together"),
    *("raw__orders", "orders_load", "orders_earlier", "a.b-c", "a-b.c", "a_b_c", "2024_orders", "-", "_", "..."),
    *("x" * 249, "x" * 248 + "y", "X" * 249, "x." * 124 + "x", "x-" * 124 + "x", "y" * 243, "y" * 244, "z" * 200),
)


def test_ordinary_names_stay_as_they_are() -> None:
    assert (identifier("orders"), catalogue_name("orders"), ledger_name("raw", "orders")) == (
        "orders",
        "orders",
        "raw/orders",
    )
    assert identifier("Orders") == "Orders"
    assert identifier("shop.orders") == catalogue_name("shop.orders") == "shop_orders_7458f4"
    assert file_name("raw", "shop.orders", ".json") == "shop.orders.json"
    assert file_name("decoded", "orders", ".json") == "decoded-orders.json"
    assert ledger_name("dead_letters", "Shop.orders-2") == "dead_letters/Shop.orders-2"


def test_no_two_topics_share_a_name_anywhere(rng: random.Random) -> None:
    letters = "abAB019._-"
    random_ones = {"".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(3_000)} - {".", ".."}
    long_ones = {"".join(rng.choices(string.ascii_letters + "._-", k=rng.randint(190, 249))) for _ in range(300)}
    topics = sorted({*ODD, *random_ones, *long_ones})
    assert len({identifier(t) for t in topics}) == len(topics)
    assert len({catalogue_name(t).lower() for t in topics}) == len(topics)
    tables = list(itertools.product((*KINDS, *RESERVED_KINDS), topics))
    assert len({file_name(kind, t, ".json").lower() for kind, t in tables}) == len(tables)
    assert len({ledger_name(kind, t) for kind, t in tables}) == len(tables)


@pytest.mark.parametrize("topic", ODD)
def test_every_name_is_short_enough_for_its_place(topic: str) -> None:
    assert len(catalogue_name(topic)) <= 128
    for kind in KINDS:
        # A temporary file next to it has a dot and the numbers of process and thread in its name.
        assert len(f".{file_name(kind, topic, '.json')}.4194304.140737488355327") <= LONGEST_FILE
        folder = f"table={ledger_name(kind, topic)}".replace("/", "%2F").replace("!", "%21")
        assert len(folder) <= LONGEST_FILE
        assert TableRef.of_ledger(ledger_name(kind, topic), topic) == TableRef(kind, topic)


def test_the_names_of_the_documentation_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    for topic in ("shop.orders", "Orders"):
        assert f"`{catalogue_name(topic)}`" in page
