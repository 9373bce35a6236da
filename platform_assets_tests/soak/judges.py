"""Search for leaked secrets and hostile strings: in bytes, in text that people display, in processes, in rows, and in
stored Markdown."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import psutil
from markdown_it import MarkdownIt

from platform_assets.services.process import MARK_VARIABLE
from platform_assets_tests.soak.hostile import FORGED, MARK

_KEPT: Final = "\n\t"
_MARKDOWN: Final = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
# A renderer may follow any address; whether the address is untrusted is decided here.
_MARKDOWN.validateLink = lambda url: True  # type: ignore[method-assign]
_LIVE: Final = frozenset({"image", "link_open", "html_inline", "html_block"})
_AROUND: Final = 60
_TEXT_SUFFIXES: Final = frozenset({".log", ".err", ".out", ".json", ".yaml", ".txt", ".svg", ".env"})
_ROTATED: Final = re.compile(r"\.log\.\d+$")
_SEGMENT: Final = re.compile(r"\d{20}\.log")
"""Pattern for the names of segment files in a broker's data folder."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, and the kinds of processes that are allowed to have the secret in their environment."""

    name: str
    value: str
    entitled: frozenset[str]

    def forms(self) -> Iterator[bytes]:
        """Yield the plain, base64 and hex forms of the value."""
        plain = self.value.encode()
        yield plain
        yield base64.b64encode(plain).rstrip(b"=")
        yield plain.hex().encode()


def secrets_in(content: bytes, secrets: Iterable[Secret]) -> list[str]:
    """Return the names of those secrets that the bytes contain in any form."""
    return [secret.name for secret in secrets if any(form in content for form in secret.forms())]


def acts_in(text: str) -> str | None:
    """Describe the first part of the text on which a terminal would act, or which forges a log line. Return None if
    there is no such part."""
    for at, c in enumerate(text):
        if c not in _KEPT and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp"):
            return f"{c.encode('unicode_escape').decode()} in {text[max(0, at - _AROUND) : at + _AROUND]!r}"
    if (found := re.search(rf"^\s*{re.escape(FORGED)}", text, re.MULTILINE)) is not None:
        return f"a forged line {text[max(0, found.start() - _AROUND) : found.end()]!r}"
    return None


def is_text(path: Path) -> bool:
    """Return True if people would display the file as text."""
    if _SEGMENT.fullmatch(path.name):
        return False
    return path.suffix in _TEXT_SUFFIXES or bool(_ROTATED.search(path.name))


@dataclass
class Looked:
    """The amount of data that a search covered, and its findings."""

    files: int = 0
    size: int = 0
    found: tuple[str, ...] = ()


def files(root: Path, secrets: Sequence[Secret], private: Sequence[Path], inputs: Path | None = None) -> Looked:
    """Search each file below `root`. There must be no secrets outside the `private` folders. Except in `inputs`, there
    must be no text on which a terminal would act."""
    looked, found = Looked(), []
    for path in sorted(root.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # a service has just replaced the file
            continue
        looked.files += 1
        looked.size += len(content)
        shown = str(path.relative_to(root)).encode("unicode_escape").decode()
        if path.parent not in private:
            found += [f"{shown} holds {name}" for name in secrets_in(content, secrets)]
        elif path.stat().st_mode & 0o077:
            found.append(f"{shown} can be read by other users")
        is_input = inputs is not None and inputs in path.parents
        if is_text(path) and not is_input and (acts := acts_in(content.decode("utf-8", "surrogateescape"))) is not None:
            found.append(f"{shown} holds {acts}")
    looked.found = tuple(found)
    return looked


def tables(lake: Path, secrets: Sequence[Secret]) -> Looked:
    """Search each cell of each Delta table below `lake`. `files` counts rows, and `size` is the number of bytes in
    their cells."""
    from deltalake import DeltaTable

    looked, found = Looked(), []
    for log in sorted(lake.rglob("_delta_log")):
        table = DeltaTable(log.parent).to_pyarrow_dataset().to_table()
        for name in table.column_names:
            for row, cell in enumerate(table.column(name).to_pylist()):
                content = cell if isinstance(cell, bytes) else str(cell).encode(errors="surrogateescape")
                looked.size += len(content)
                if held := secrets_in(content, secrets):
                    found.append(f"{log.parent.relative_to(lake)}, row {row}, column {name} holds {held}")
        looked.files += table.num_rows
    looked.found = tuple(found)
    return looked


def processes(services: Mapping[str, str], secrets: Sequence[Secret]) -> Looked:
    """Search the arguments and environments of all processes. `services` maps the marks of processes to the names of
    services.

    A process without such a mark must not have any secrets. `files` counts processes.
    """
    looked, found = Looked(), []
    for process in psutil.process_iter():
        try:
            arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            variables = Path(f"/proc/{process.pid}/environ").read_bytes()
        except (OSError, psutil.Error):
            continue
        looked.files += 1
        looked.size += len(arguments) + len(variables)
        mark = re.search(rb"(?:^|\0)" + MARK_VARIABLE.encode() + rb"=(\w+)", variables)
        service = services.get(mark[1].decode(), "") if mark else ""
        who = f"process {process.pid} ({service or 'no service'})"
        found += [f"the arguments of {who} hold {name}" for name in secrets_in(arguments, secrets)]
        unentitled = [secret for secret in secrets if service not in secret.entitled]
        found += [f"the environment of {who} holds {name}" for name in secrets_in(variables, unentitled)]
    looked.found = tuple(found)
    return looked


def rows(url: str, secrets: Sequence[Secret]) -> Looked:
    """Search each row of each table in a PostgreSQL database, read with plain SQL. `files` counts rows.

    Events are also parsed as JSON. The Markdown and the descriptions in them must not contain active elements.
    """
    import sqlalchemy

    looked, found = Looked(), []
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        for name in sqlalchemy.inspect(connection).get_table_names():
            quoted = engine.dialect.identifier_preparer.quote(name)
            for (text,) in connection.execute(sqlalchemy.text(f"SELECT to_jsonb(t)::text FROM {quoted} t")):
                looked.files += 1
                looked.size += len(text)
                found += [f"a row of {name} holds {held}" for held in secrets_in(text.encode(), secrets)]
                found += [f"a row of {name} has {each}" for each in live_markdown(json.loads(text))]
    engine.dispose()
    looked.found = tuple(dict.fromkeys(found))
    return looked


def live_markdown(value: Any) -> Iterator[str]:
    """Yield untrusted active elements in Markdown and descriptions anywhere in `value`. Strings that contain JSON are
    searched too."""
    if isinstance(value, dict):
        for name, each in value.items():
            # The UI does not request this description; the message contains it as text as well.
            if value.get("__class__") == "UserFailureData" and name == "description":
                continue
            if name in ("md_str", "description") and isinstance(each, str):
                yield from (f"live Markdown in {name}: {token}" for token in live(each))
            yield from live_markdown(each)
    elif isinstance(value, list):
        for each in value:
            yield from live_markdown(each)
    elif isinstance(value, str) and value[:1] in ("{", "["):
        try:
            yield from live_markdown(json.loads(value))
        except ValueError:  # text that begins with a bracket but is not JSON
            return


def live(text: str) -> Iterator[str]:
    """Yield the images, links and HTML in a Markdown text that come from a hostile string, or whose address contains
    the marker."""
    for token in _MARKDOWN.parse(text):
        for each in (token, *(token.children or ())):
            address = str(each.attrs.get("src") or each.attrs.get("href") or "")
            picture = _picture(address)
            if picture is not None:
                yield from (f"{tag} in a picture" for tag in _in_a_picture(picture))
            elif each.type in _LIVE and (MARK in address or MARK in each.content or each.type.startswith("html")):
                yield f"{each.type} {address or each.content!r:.200}"


def _picture(address: str) -> bytes | None:
    """Return the SVG that is embedded in the address of a picture; None for any other address."""
    kind, comma, content = address.partition(",")
    if not comma or not kind.startswith("data:image/svg+xml"):
        return None
    return base64.b64decode(content) if kind.endswith(";base64") else unquote_to_bytes(content)


def _in_a_picture(picture: bytes) -> list[str]:
    text = picture.decode()
    tags = re.findall(r"<(script|a|image|foreignObject|iframe)\b", text)
    return [*tags, *re.findall(r"<[^>]*\b(on\w+)=", text)]
