"""Untrusted text in terminals, Markdown, SVG and JSON: the text is shown literally, and no program acts on it."""

from __future__ import annotations

import json
from random import Random
from xml.dom import minidom

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from platform_assets.model.untrusted import code, document, html, line, lines, markdown, without_marks

IMAGE = "![chart](/graphql?query=mutation%20{launchRun})"
PIECES = (
    *(
        IMAGE,
        "[a](b)",
        "[a]: /b",
        "![a]",
        "[a]",
        "[^1]",
        "<img src=x>",
        "<http://a.b>",
        "http://a.b/c",
        "www.a.b",
        "a@b.c",
    ),
    *(
        "`",
        "``",
        "```",
        "*",
        "**",
        "_",
        "~~",
        "~~~",
        "# ",
        "> ",
        "- ",
        "1. ",
        "1) ",
        "---",
        "===",
        "|",
        "\\",
        "&lt;",
        "&#33;",
    ),
    *("!", "[", "]", "(", ")", " ", "    ", "word", "0, 5)", "\n", "\r\n", "\t", "\u2028", "\x1b[2J", "\u202e"),
)


def parsed(text: str) -> list[Token]:
    """Return the tokens of `text`, including tokens inside blocks, as GitHub's Markdown parser returns them."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [*tokens, *(child for token in tokens for child in token.children or ())]


def shown(text: str) -> str:
    """Return the visible part of `text` without spaces."""
    return "".join("".join(t.content.split()) for t in parsed(text) if t.type in ("text", "code_inline"))


def assert_inert(text: str) -> None:
    """Check that `text` contains only plain text and code spans, and nothing that is turned into a link automatically."""
    found = parsed(text)
    assert {t.type for t in found} <= {
        "paragraph_open",
        "paragraph_close",
        "inline",
        "text",
        "text_special",
        "code_inline",
    }
    for token in found:
        if token.type == "text":
            assert not any(mark in token.content.lower() for mark in ("://", "www.", "@")), token.content


@pytest.mark.parametrize(
    "text", [*PIECES, f"wrong_type at {IMAGE}", f"1 at `$.a` {IMAGE}", f"` {IMAGE} ``", f"[a]: {IMAGE}"]
)
def test_markdown_shows_hostile_text_as_it_is(text: str) -> None:
    assert_inert(markdown(text))
    assert "".join(line(text).split()).replace("`", "") == shown(markdown(text)).replace("`", "")


def test_markdown_of_any_mixture_is_inert(rng: Random) -> None:
    for _ in range(1_000):
        text = "".join(rng.choices(PIECES, k=rng.randint(1, 12)))
        made = markdown(text)
        assert_inert(made)
        assert_inert(f"{made} after")
        assert_inert(code(text) or "x")
        assert not set(line(text)) & set("\x1b\n\r\t\u2028\u202e")


def test_marks_taken_away_and_given_again_are_the_same_marks(rng: Random) -> None:
    """A description that is reported repeatedly must not grow."""
    pieces = (*PIECES, "```*http://x", "` ", " `", "  ", "\\`", "`` ` ``", "` a `")
    for text in ("```*http://x", "` a@b.c\t", "` `", "` a `", "`` ` ``", "\\`a`"):
        assert markdown(without_marks(markdown(text))) == markdown(text)
    for _ in range(5_000):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 8)))
        made = markdown(text)
        assert markdown(without_marks(made)) == made, repr(text)
        reported = markdown(without_marks(text))  # text that was stored without escaping
        assert markdown(without_marks(reported)) == reported, repr(text)


def test_markdown_keeps_code_and_names_readable() -> None:
    text = "run `platform-assets load raw/my_topic` for offsets [0, 5), then go on"
    assert markdown(text) == text
    assert without_marks(markdown(r"run `grep 'a\.b'` *now*")) == r"run `grep 'a\.b'` *now*"
    assert without_marks(markdown("a *b* [c](d) <e>")) == "a *b* [c](d) <e>"


def test_markdown_is_linear_in_long_text() -> None:
    """Each of these texts would take minutes if the work grew with the square of the length."""
    for piece in ("`a", "a", "www", "[", "`" * 3 + "a", "\\"):
        assert markdown(piece * 50_000)


def test_line_shows_what_a_terminal_would_act_on() -> None:
    assert line("a\x1b]0;title\x07b\x9b2J\r\n\u202ec\u2028\u200d\x7f é 名 😀") == (
        r"a\x1b]0;title\x07b\x9b2J\r\n\u202ec\u2028\u200d\x7f é 名 😀"
    )
    assert lines("one\ntwo\x1b") == "one\ntwo\\x1b"


def test_html_is_text_in_svg() -> None:
    attribute, text = html("\"'><script>"), html("<b>&x\x1b")
    drawing = f"<svg a='{attribute}'>{text}</svg>"
    found = minidom.parseString(drawing).documentElement
    assert found is not None
    assert found.getAttribute("a") == "\"'><script>"
    assert found.firstChild.toxml() == "&lt;b&gt;&amp;x\\x1b"  # type: ignore[union-attr]


def test_json_is_equal_and_no_terminal_acts_on_it() -> None:
    value = {"place\x9b": ["\x1b[2J", "\u202e\u2028\x7f", "é 😀", "\U000e0001"]}
    text = document(value)
    assert json.loads(text) == value
    assert all(c == "\n" or c.isprintable() for c in text)
    assert "é 😀" in text
