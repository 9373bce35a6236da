"""A client that reads schemas by id from a registry, and registers schemas, using Confluent's API, which other registries support too.

The client uses urllib3. The client in confluent-kafka reads responses of any size, and needs four more packages for one
request.
"""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

import urllib3
from urllib3.exceptions import HTTPError

from platform_assets.decoding.registry.cache import AVRO, LARGEST_ID, BadReferences, Registered, UnknownId
from platform_assets.decoding.registry.settings import URL_VARIABLE, RegistrySettings
from platform_assets.decoding.registry.wire import Key, long_id
from platform_assets.errors import (
    ConfigurationError,
    RegistryRefusedError,
    RegistryUnreachableError,
    SchemaNotRegisteredError,
)
from platform_assets.secret_files import basic_login

MOST_BYTES: Final = 4 << 20
"""Maximum number of bytes in one response."""
MOST_REFERENCES: Final = 100
"""Maximum number of references in one schema, including indirect references."""
ANSWER_SECONDS: Final = 20.0
"""Time limit in seconds for one complete response. The limit applies even if the response arrives slowly."""
TRIES: Final = 5
UNKNOWN_SCHEMA: Final = 40403
UNKNOWN_SUBJECT_VERSION: Final = (40401, 40402, UNKNOWN_SCHEMA)
"""Error codes with which a registry reports that it does not have a subject, a version of the subject, or the schema of
that version."""
_FIRST_PAUSE: Final = 0.2
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_MOST_SAID: Final = 300
"""Number of characters of a registry's message that an error shows."""
_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_PIECE: Final = 1 << 16
_CONFLUENT: Final = re.compile(r"/apis/ccompat/v[0-9]+$")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """Number of attempts for a request, and the time limit in seconds for one response."""

    tries: int
    seconds: float


PATIENT: Final = Patience(TRIES, ANSWER_SECONDS)
HURRIED: Final = Patience(1, 2.0)
"""Limits for a request that confirms a known schema. They limit the time for which an unavailable registry delays a
task."""


class _Again(Exception):
    """Raised for a failure that might be temporary."""


class RegistryClient:
    """A client for one registry at one address. It follows no redirects, and resolves references only through the
    registry's API."""

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
        """Close the connection."""
        self._pool.clear()

    def schema(self, number: Key, kind: str = AVRO) -> Registered:
        """Return the schema that `number` identifies: an id, a GUID in canonical text, or an Apicurio id. For an
        Apicurio id, `kind` is the kind of schema.

        Raises UnknownId if the registry does not have the schema; BadReferences if the schema's references never end,
        or if the registry lacks one of the references; RegistryUnreachableError (retryable) if no response came after
        several attempts; RegistryRefusedError if a response does not come from a registry.
        """
        named = long_id(number)
        if named is not None:
            return self._of_apicurio(*named, number, kind)
        path = f"/schemas/ids/{number}" if isinstance(number, int) else f"/schemas/guids/{uuid.UUID(number)}"
        found = self._asked(path, number)
        references: dict[str, str] = {}
        self._refer(found, references, [0], number)
        return Registered(
            _text(found, "schemaType", AVRO, self._settings), _text(found, "schema", None, self._settings), references
        )

    def id_of(self, subject: str, schema: Registered, *, register: bool) -> int:
        """Return the id of a schema in a subject; with `register`, register the schema if the subject does not have it.
        The caller must confirm that the id belongs to the schema.

        Raises SchemaNotRegisteredError if the subject does not have the schema, or the registry does not accept it;
        RegistryUnreachableError (retryable) and RegistryRefusedError as `schema` does.
        """
        try:
            path = f"/subjects/{_in_path(subject, subject)}" + ("/versions" if register else "")
        except BadReferences as error:
            raise ConfigurationError(f"subject {subject!r} cannot be used: it would lead to another path") from error
        body = {"schema": schema.text, **({} if schema.kind == AVRO else {"schemaType": schema.kind})}
        found = self._tried(lambda: self._id_once(path, json.dumps(body).encode(), subject))
        if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= LARGEST_ID:
            raise self._refused("its answer has no schema id")
        return found

    def _id_once(self, path: str, body: bytes, subject: str) -> Any:
        status, content = self._request(self._settings.url + path, body)
        document = _document(content)
        if status == 404 and document.get("error_code") in UNKNOWN_SUBJECT_VERSION:
            raise SchemaNotRegisteredError(self._settings.url, subject, "the subject does not have this schema")
        if status in (409, 422):
            said = document.get("message")
            cause = said[:_MOST_SAID] if isinstance(said, str) else f"HTTP {status}"
            kind = "it is not compatible with the subject's schemas" if status == 409 else "it is not valid"
            raise SchemaNotRegisteredError(self._settings.url, subject, f"{kind} ({cause})")
        if status != 200:
            raise self._refused(f"it answered with HTTP {status}")
        return document.get("id")

    def _of_apicurio(self, of: str, number: int, key: Key, kind: str) -> Registered:
        """Query Apicurio's own API. In Apicurio's Confluent-compatible API, a setting of the registry decides if an id
        is a content id or a global id."""
        base, replaced = _CONFLUENT.subn("/apis/registry/v3", self._settings.url)
        if not replaced:
            raise ConfigurationError(
                f"{URL_VARIABLE} is {self._settings.url}, but `id: apicurio` uses Apicurio's own API, which the "
                "platform looks for next to /apis/ccompat/v7: use an address that contains this path"
            )
        place = f"{base}/ids/{of}s/{number}"
        text = self._tried(lambda: self._content_of(place, key))
        references: dict[str, str] = {}
        self._refer_apicurio(base, place, references, [0])
        return Registered(kind, text, references)

    def _refer_apicurio(self, base: str, place: str, references: dict[str, str], asked: list[int]) -> None:
        """Add the references of the content at `place`, in dependency order."""
        found = self._tried(lambda: self._content_of(f"{place.removesuffix('/content')}/references", None))
        try:
            listed = json.loads(found)
            pairs = [(each["name"], [each[part] for part in ("groupId", "artifactId", "version")]) for each in listed]
        except (ValueError, RecursionError, TypeError, KeyError) as error:
            raise self._refused("a reference lacks a name, a group, an artifact or a version") from error
        for name, (group, artifact, version) in pairs:
            if not isinstance(name, str) or name in references:
                continue
            asked[0] += 1
            if asked[0] > MOST_REFERENCES:
                raise BadReferences(f"it refers to more than {MOST_REFERENCES} others, or its references form a cycle")
            names = [_in_path(str(part), name) for part in (group or "default", artifact, version)]
            other = f"{base}/groups/{names[0]}/artifacts/{names[1]}/versions/{names[2]}/content"
            text = self._tried(partial(self._content_of, other, None))
            self._refer_apicurio(base, other, references, asked)
            references[name] = text

    def _content_of(self, address: str, key: Key | None) -> str:
        status, content = self._request(address)
        if status == 404 and key is not None and _document(content).get("status") == 404:
            raise UnknownId(key)
        if status == 404 and address.endswith("/content") and _document(content).get("status") == 404:
            raise BadReferences(
                f"it refers to {address.removeprefix(self._settings.url)[-200:]}, which the registry does not have"
            )
        if status != 200:
            raise self._refused(f"it answered with HTTP {status} at {address.removeprefix(self._settings.url)[:200]}")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise self._refused("a schema is not UTF-8") from error

    def _refer(self, found: dict[str, Any], references: dict[str, str], asked: list[int], number: int | str) -> None:
        """Add the references of `found`, in dependency order."""
        listed = found.get("references") or []
        if not isinstance(listed, list):
            raise self._refused("the references in its answer are not a list")
        for each in listed:
            name, subject, version = (
                (each.get(part) for part in ("name", "subject", "version")) if isinstance(each, dict) else [None] * 3
            )
            if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int) or version < 1:
                raise self._refused("a reference lacks a name, a subject or a version")
            if name in references:
                continue
            asked[0] += 1
            if asked[0] > MOST_REFERENCES:
                raise BadReferences(f"it refers to more than {MOST_REFERENCES} others, or its references form a cycle")
            other = self._asked(f"/subjects/{_in_path(subject, name)}/versions/{version}", None)
            self._refer(other, references, asked, number)
            references[name] = _text(other, "schema", None, self._settings)

    def _asked(self, path: str, number: int | str | None) -> dict[str, Any]:
        return self._tried(lambda: self._once(path, number))

    def _tried(self, ask: Callable[[], T]) -> T:
        tries = self._patience.tries
        for attempt in range(tries):
            try:
                return ask()
            except _Again as error:
                cause = str(error)
            if attempt < tries - 1:
                self._pause(_FIRST_PAUSE * 2**attempt * random.uniform(0.75, 1.25))
        raise RegistryUnreachableError(self._settings.url, cause)

    def _once(self, path: str, number: int | str | None) -> dict[str, Any]:
        status, content = self._request(self._settings.url + path)
        document = _document(content)
        if status == 404 and number is not None and document.get("error_code") == UNKNOWN_SCHEMA:
            raise UnknownId(number)
        if status == 404 and number is None and document.get("error_code") in UNKNOWN_SUBJECT_VERSION:
            raise BadReferences(f"it refers to {path[:200]}, which the registry does not have")
        if 300 <= status < 400:
            raise self._refused(f"it answers with a redirect (HTTP {status}), which is not followed")
        if status != 200:
            code = document.get("error_code")
            raise self._refused(
                f"it answered with HTTP {status}" + (f", error {code}" if isinstance(code, int) else "")
            )
        return document

    def _request(self, address: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send one request, with a `body` as POST. Return the status and the body. Raises _Again and
        RegistryRefusedError."""
        try:
            answer = self._pool.request(
                "GET" if body is None else "POST",
                address,
                body=body,
                headers=self._headers() | ({} if body is None else {"Content-Type": _JSON}),
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
            raise _Again(type(error).__name__) from None  # its text may contain headers
        except ValueError:
            status, content = (
                0,
                b"",
            )  # its text contains the header, and so would the context of an error raised here
        if not status:
            raise self._refused(
                "the request cannot be sent, because its credentials or its path have characters that HTTP does "
                "not allow"
            )
        if status in _TRANSIENT:
            raise _Again(f"HTTP {status}")
        return status, content

    def _content(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        found = bytearray()
        seconds = self._patience.seconds
        deadline = time.monotonic() + seconds
        while piece := answer.read1(_PIECE, decode_content=True):
            found += piece
            if len(found) > MOST_BYTES:
                raise self._refused(f"an answer has more than {MOST_BYTES} bytes")
            if time.monotonic() > deadline:
                raise _Again(f"no complete answer within {seconds:g} s")
        return bytes(found)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", "Accept-Encoding": "identity"}
        own = self._settings
        if own.token is not None:
            headers["Authorization"] = f"Bearer {own.token}"
        elif own.user is not None:
            headers |= basic_login(own.user, own.password or "")
        return headers

    def _refused(self, what: str) -> RegistryRefusedError:
        return RegistryRefusedError(self._settings.url, what)


def _in_path(part: str, name: str) -> str:
    """Encode `part`, which belongs to the reference `name`, as one path segment. Raises BadReferences if the segment
    would lead to another path."""
    if part in ("", ".", ".."):
        raise BadReferences(
            f"its reference {name[:60]!r} contains {part!r}, which would lead to another path of the registry"
        )
    try:
        return quote(part, safe="")
    except UnicodeEncodeError:
        raise BadReferences(f"its reference {name[:60]!r} has a name that is not UTF-8") from None


def _document(content: bytes) -> dict[str, Any]:
    """Return the JSON object in a response, or an empty object for anything else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(found: dict[str, Any], name: str, default: str | None, settings: RegistrySettings) -> str:
    text = found.get(name, default)
    if not isinstance(text, str):
        raise RegistryRefusedError(settings.url, f"its answer lacks {name!r}")
    return text
