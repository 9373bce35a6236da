"""Asking a registry for schemas by id, over the API of Confluent's that others have too.

urllib3 rather than confluent-kafka's own client: that one reads answers of any size, and brings four packages more for one request.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import urllib3
from urllib3.exceptions import HTTPError

from platform_assets.decoding.registry.schemas import AVRO, BadReferences, Registered, UnknownId
from platform_assets.decoding.registry.settings import RegistrySettings
from platform_assets.errors import RegistryRefusedError, RegistryUnreachableError

MOST_BYTES: Final = 4 << 20
"""Of one answer."""
MOST_REFERENCES: Final = 100
"""Of one schema, with those of its references."""
ANSWER_SECONDS: Final = 20.0
"""For one answer as a whole, however it trickles."""
TRIES: Final = 5
UNKNOWN_SCHEMA: Final = 40403
_FIRST_PAUSE: Final = 0.2
_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a request is tried, and the seconds that one answer may take."""

    tries: int
    seconds: float


PATIENT: Final = Patience(TRIES, ANSWER_SECONDS)
HURRIED: Final = Patience(1, 2.0)
"""For what is known already and only confirmed: a registry that is down delays a task by no more."""


class _Again(Exception):
    """What went wrong may be over soon."""


class RegistryClient:
    """One registry, asked at one address: no redirect is followed, and nothing that a schema names but by the registry's own API."""

    def __init__(
        self,
        settings: RegistrySettings,
        pause: Callable[[float], None] = time.sleep,
        patience: Patience = PATIENT,
    ) -> None:
        self._settings, self._pause, self._patience = settings, pause, patience
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, retries=False)

    def __repr__(self) -> str:
        return f"RegistryClient({self._settings.url!r})"

    def close(self) -> None:
        """Close its connection."""
        self._pool.clear()

    def schema(self, number: int | str) -> Registered:
        """The schema of an id, or of a GUID in its canonical text.

        Raises UnknownId where the registry says that it has none; BadReferences where it refers to others without end;
        RegistryUnreachableError (retryable), after some tries, where no
        answer came; RegistryRefusedError where one came that is none of a registry's.
        """
        path = f"/schemas/ids/{number}" if isinstance(number, int) else f"/schemas/guids/{uuid.UUID(number)}"
        found = self._asked(path, number)
        references: dict[str, str] = {}
        self._refer(found, references, [0], number)
        return Registered(
            _text(found, "schemaType", AVRO, self._settings), _text(found, "schema", None, self._settings), references
        )

    def _refer(self, found: dict[str, Any], references: dict[str, str], asked: list[int], number: int | str) -> None:
        """Add what `found` refers to, its own references first."""
        listed = found.get("references") or []
        if not isinstance(listed, list):
            raise self._refused("its references are no list")
        for each in listed:
            name, subject, version = (
                (each.get(part) for part in ("name", "subject", "version")) if isinstance(each, dict) else [None] * 3
            )
            if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int) or version < 1:
                raise self._refused("a reference has no name, subject and version")
            if name in references:
                continue
            asked[0] += 1
            if asked[0] > MOST_REFERENCES:
                raise BadReferences(f"it refers to more than {MOST_REFERENCES} others, or in a circle")
            other = self._asked(f"/subjects/{quote(subject, safe='')}/versions/{version}", None)
            self._refer(other, references, asked, number)
            references[name] = _text(other, "schema", None, self._settings)

    def _asked(self, path: str, number: int | str | None) -> dict[str, Any]:
        tries = self._patience.tries
        for attempt in range(tries):
            try:
                return self._once(path, number)
            except _Again as error:
                cause = str(error)
            if attempt < tries - 1:
                self._pause(_FIRST_PAUSE * 2**attempt * random.uniform(0.75, 1.25))
        raise RegistryUnreachableError(self._settings.url, cause)

    def _once(self, path: str, number: int | str | None) -> dict[str, Any]:
        try:
            answer = self._pool.request(
                "GET",
                self._settings.url + path,
                headers=self._headers(),
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=urllib3.Timeout(connect=min(5.0, self._patience.seconds), read=self._patience.seconds),
            )
            try:
                status, content = answer.status, self._content(answer)
            finally:
                answer.close()
        except (HTTPError, OSError) as error:
            raise _Again(type(error).__name__) from None  # its text may hold headers
        if status in _TRANSIENT:
            raise _Again(f"HTTP {status}")
        document = _document(content)
        if status == 404 and number is not None and document.get("error_code") == UNKNOWN_SCHEMA:
            raise UnknownId(number)
        if 300 <= status < 400:
            raise self._refused(f"it answers by a redirect (HTTP {status}), and none is followed")
        if status != 200:
            code = document.get("error_code")
            raise self._refused(f"it answers HTTP {status}" + (f", error {code}" if isinstance(code, int) else ""))
        return document

    def _content(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        found = bytearray()
        seconds = self._patience.seconds
        deadline = time.monotonic() + seconds
        while piece := answer.read1(_PIECE, decode_content=True):
            found += piece
            if len(found) > MOST_BYTES:
                raise self._refused(f"an answer has more than {MOST_BYTES} bytes")
            if time.monotonic() > deadline:
                raise _Again(f"no whole answer within {seconds:g} s")
        return bytes(found)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", "Accept-Encoding": "identity"}
        own = self._settings
        if own.token is not None:
            headers["Authorization"] = f"Bearer {own.token}"
        elif own.user is not None:
            headers |= urllib3.make_headers(basic_auth=f"{own.user}:{own.password}")
        return headers

    def _refused(self, what: str) -> RegistryRefusedError:
        return RegistryRefusedError(self._settings.url, what)


def _document(content: bytes) -> dict[str, Any]:
    """The object of an answer; an empty one where it is something else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(found: dict[str, Any], name: str, default: str | None, settings: RegistrySettings) -> str:
    text = found.get(name, default)
    if not isinstance(text, str):
        raise RegistryRefusedError(settings.url, f"it answers without {name!r}")
    return text
