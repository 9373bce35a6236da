"""Filter for requests to the Dagster UI. The filter accepts requests from the UI's own pages and from programs, but not
from other pages in the same browser.

Dagster executes a mutation that arrives by GET or as a form, from any Origin and for any Host. A page on another site,
or a page whose host name was rebound to this machine's address, could therefore start runs. `Guard` is an ASGI
application that wraps Dagster's application and answers such requests itself.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus

from platform_assets.services.errors import ConfigurationError

HOSTS_VARIABLE: Final = "PLATFORM_UI_HOSTS"
"""Variable that lists the names by which browsers reach the UI, in addition to loopback names:
`ui.example.com,ui.example.com:8443`."""

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
CONTENT_TYPES: Final = ("application/json", "application/graphql")
"""Content types that a page from another origin cannot send without a preflight request. Dagster rejects every such
preflight request."""

POLICY: Final = (
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; frame-ancestors 'self'; object-src 'none'"
)
"""Content security policy that is added to Dagster's own policy: a page may not fetch from other sites or send data to
them, and other sites may not frame the page."""

_ENTRY: Final = re.compile(
    r"(?P<name>[a-z0-9](?:[a-z0-9._-]{0,252}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?"
)
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULT_PORT: Final = {"http://": ":80", "https://": ":443"}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_STATIC: Final = re.compile(r"/(?:_next|vendor)/.+|/favicon[a-z-]*\.[a-z]+|/(?:manifest\.json|robots\.txt)")
_SHOWN_LENGTH: Final = 100

Headers = Iterable[tuple[bytes, bytes]]
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Hosts and origins whose requests are accepted.

    Attributes:
        names: host names that the `Host` header may contain, in lower case and without a port. The port in the header
            does not matter.
        origins: `host` or `host:port` of pages that may send requests although the `Host` header differs, for example
            because a proxy changes it.
    """

    names: frozenset[str]
    origins: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> AllowedHosts:
        """Read `PLATFORM_UI_HOSTS`. Loopback names are always allowed.

        Raises:
            ConfigurationError: an entry is neither `host` nor `host:port`.
        """
        entries = [entry.strip().lower() for entry in text.split(",") if entry.strip()]
        matches = [(entry, _ENTRY.fullmatch(entry)) for entry in entries]
        for entry, match in matches:
            if match is None:
                raise ConfigurationError(
                    f"{HOSTS_VARIABLE}: {_shown(entry)} is not `host` or `host:port`; URLs and wildcards are not "
                    "supported. List the hosts as they appear in the browser's address bar, separated by commas."
                )
        return cls(LOOPBACK_NAMES | {match["name"] for _, match in matches if match}, frozenset(entries))


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response to a refused request."""

    status: int
    text: str


def refusal(method: str, path: str, headers: Headers, allowed: AllowedHosts) -> Refusal | None:
    """Return the refusal of a request, or None if the request is allowed.

    Args:
        method: the HTTP method; `WEBSOCKET` for a websocket.
        path: the decoded path, without the query.
        headers: the headers in ASGI's form, with names in lower case.
        allowed: the hosts and origins to accept.
    """
    if _CONTROL.search(path):
        # Starlette's routes end in `$`, which also matches before a line feed.
        return Refusal(400, "Refused: the address contains a control character. Remove that character.")
    found: dict[bytes, list[str]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value.decode("latin-1").strip())
    hosts = found.get(b"host", [])
    host = hosts[0].lower() if len(hosts) == 1 else ""
    match = _ENTRY.fullmatch(host)
    if match is None or match["name"] not in allowed.names:
        return Refusal(
            403,
            f"Refused: the header Host contains {_shown(', '.join(hosts))}, not a known name of the UI. The request may come "
            f"from a page of another site (DNS rebinding). If this is a name of the UI, add the name to {HOSTS_VARIABLE} "
            "and restart the web server.",
        )
    if method in _READING:
        return _refused_read(method, path, found)
    for origin in found.get(b"origin", []):
        if not _is_own(origin, host, allowed):
            return Refusal(
                403,
                f"Refused: a page of {_shown(origin)} sent this request to {host}, but only pages of the UI may do so. If a "
                f"proxy serves the UI at that origin, add its `host` or `host:port` to {HOSTS_VARIABLE} and restart the "
                "web server.",
            )
    if any(site not in ("same-origin", "none") for site in found.get(b"sec-fetch-site", [])):
        return Refusal(
            403,
            "Refused: a page of another site sent this request (header Sec-Fetch-Site). Only pages of the UI may send requests.",
        )
    if method == "WEBSOCKET":
        return None
    types = [value.split(";")[0].strip().lower() for value in found.get(b"content-type", [])]
    if len(types) != 1 or types[0] not in CONTENT_TYPES:
        return Refusal(
            415,
            f"Refused: the Content-Type is {_shown(', '.join(types))}. Most types are refused, as other sites can send them. "
            "Send Content-Type: application/json.",
        )
    return None


@dataclass(frozen=True, slots=True)
class Guard:
    """An ASGI application that passes on the requests that `refusal` allows, and adds `POLICY` to the responses.

    Attributes:
        application: Dagster's application.
        allowed: the hosts and origins to accept.
    """

    application: Application
    allowed: AllowedHosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or websocket, in the way that ASGI calls it."""
        if scope["type"] not in ("http", "websocket"):
            await self.application(scope, receive, send)
            return
        method = str(scope["method"]) if scope["type"] == "http" else "WEBSOCKET"
        refused = refusal(method, scope["path"], scope["headers"], self.allowed)
        if refused is not None:
            await _refuse(refused, scope, receive, send)
            return
        if method in _READING:
            scope = {**scope, "query_string": _without_query(scope["query_string"])}
        if method == "GET" and _is_graphql(scope["path"]):
            # If this header contains text/html, Dagster answers with its page instead of executing the query in the
            # address.
            headers = [(name, value) for name, value in scope["headers"] if name != b"accept"]
            scope = {**scope, "headers": [*headers, (b"accept", b"text/html")]}

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(b"content-security-policy", POLICY.encode()), (b"x-content-type-options", b"nosniff")]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        await self.application(scope, receive, sent)


def _refused_read(method: str, path: str, found: dict[bytes, list[str]]) -> Refusal | None:
    foreign = any(site not in ("same-origin", "none") for site in found.get(b"sec-fetch-site", []))
    if foreign and found.get(b"sec-fetch-mode") != ["navigate"] and not _STATIC.fullmatch(path):
        return Refusal(
            403,
            "Refused: another site tried to load this address (headers Sec-Fetch-Site, Sec-Fetch-Mode). Other sites may only link "
            "to the UI. Open the address directly.",
        )
    accepted = found.get(b"accept", [])
    if method == "GET" and _is_graphql(path) and not any("text/html" in value for value in accepted):
        return Refusal(
            405,
            "Refused: a GraphQL query in an address is not executed, because any page can link to it. Send the query "
            "by POST as application/json.",
        )
    return None


def _is_graphql(path: str) -> bool:
    """Return True if Dagster executes GraphQL at this path, which can have a path prefix."""
    return path.rstrip("/").rsplit("/", 1)[-1] == "graphql"


def _without_query(query_string: bytes) -> bytes:
    """Return the query string without its GraphQL parameter, whatever the path. Only scripts in pages read GraphQL from
    there."""
    parts = query_string.split(b"&")
    return b"&".join(part for part in parts if unquote_plus(part.partition(b"=")[0].decode("latin-1")) != "query")


def _is_own(origin: str, host: str, allowed: AllowedHosts) -> bool:
    """Return True if an Origin belongs to the UI, that is, if it is the requested address or a configured address."""
    for scheme, port in _DEFAULT_PORT.items():
        if origin.lower().startswith(scheme):
            place = origin.lower().removeprefix(scheme).removesuffix(port)
            return place == host.removesuffix(port) or place in allowed.origins
    return False


async def _refuse(refused: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        # Before the websocket is accepted, this becomes status 403.
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    body = f"{refused.text}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        *([(b"allow", b"POST")] if refused.status == 405 else []),
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _shown(text: str) -> str:
    """Return untrusted text, shortened and in ASCII, without anything that a terminal or a page would interpret."""
    return ascii(text[:_SHOWN_LENGTH]) if text else "nothing"
