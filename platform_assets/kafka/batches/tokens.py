"""Tokens for OAUTHBEARER. Each token is requested from the token endpoint with the client's id and secret, and reused
for most of its lifetime."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Final

import urllib3
from kafka.net.sasl.oauth import AbstractTokenProvider
from urllib3.exceptions import HTTPError

from platform_assets.errors import BrokerRefusedError
from platform_assets.kafka.settings import ClientSettings
from platform_assets.secret_files import basic_login

_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 10.0
"""Time limit for a complete answer, even if it arrives slowly."""
_MOST_BYTES: Final = 1 << 20
_PIECE: Final = 1 << 16
_SHARE_OF_LIFE: Final = 0.8
_LONGEST_SECONDS: Final = 3600.0
_UNKNOWN_LIFE_SECONDS: Final = 60.0
_ENDLESS_SECONDS: Final = 1e9
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
_REFUSALS: Final = range(400, 500)
_BUSY: Final = (408, 429)
"""The HTTP status codes Request Timeout and Too Many Requests, after which another try may succeed."""

_Key = tuple[str, str, str, str]
_kept: dict[_Key, tuple[str, float]] = {}
_lock = threading.Lock()


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """The tokens of one client. All connections of the process share them."""

    def __init__(self, settings: ClientSettings) -> None:
        """`settings` must use OAUTHBEARER and include the token endpoint."""
        super().__init__()
        given = settings.options
        self._key: _Key = (
            given["sasl.oauthbearer.token.endpoint.url"],
            given["sasl.oauthbearer.client.id"],
            given["sasl.oauthbearer.client.secret"],
            given.get("sasl.oauthbearer.scope", ""),
        )
        self._extensions = settings.extensions()

    def token(self) -> str:
        """Return a token that is still valid for a while. Raises BrokerRefusedError if the endpoint refuses the client
        or returns no token, and OSError if it is unreachable.
        """
        with _lock:
            found = _kept.get(self._key)
            if found is None or found[1] <= time.monotonic():
                token, seconds = _asked(*self._key)
                found = _kept[self._key] = (token, time.monotonic() + min(seconds * _SHARE_OF_LIFE, _LONGEST_SECONDS))
            return found[0]

    def extensions(self) -> dict[str, str]:
        """Extensions to send to brokers together with the token."""
        return self._extensions


def _asked(url: str, client: str, secret: str, scope: str) -> tuple[str, float]:
    """Request a new token; return the token and its validity in seconds."""
    doing = "requesting a token from the endpoint at KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL"
    fields = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
    headers = {**basic_login(client, secret), "Accept": "application/json"}
    try:
        with urllib3.PoolManager(num_pools=1, retries=False, timeout=urllib3.Timeout(_SECONDS)) as pool:
            answer = pool.request(
                "POST",
                url,
                fields=fields,
                encode_multipart=False,
                headers=headers,
                redirect=False,
                preload_content=False,
            )
            content = _content(answer)
    except (HTTPError, OSError) as error:
        raise ConnectionError(f"{doing} failed ({type(error).__name__})") from None  # its text may contain headers
    if answer.status in _REFUSALS and answer.status not in _BUSY:
        raise BrokerRefusedError(
            doing,
            f"the token endpoint answered with HTTP {answer.status}: check "
            "KAFKA_SASL_OAUTHBEARER_CLIENT_ID, _CLIENT_SECRET and _SCOPE",
        )
    if answer.status != 200:
        raise ConnectionError(f"{doing} failed (HTTP {answer.status})")
    try:
        document = json.loads(content) if len(content) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        document = None
    found = document if isinstance(document, dict) else {}
    token, seconds = found.get("access_token"), found.get("expires_in")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise BrokerRefusedError(doing, "the token endpoint's answer contains no access token: check the address")
    # NaN is in no range, and true is not a number of seconds.
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < _ENDLESS_SECONDS:
        return token, float(seconds)
    return token, _UNKNOWN_LIFE_SECONDS


def _content(answer: urllib3.BaseHTTPResponse) -> bytes:
    """Return the content of the answer. If the content is too long, it is truncated, but to more bytes than the limit,
    so the caller can notice.

    Raises OSError if the answer takes too long.
    """
    found = bytearray()
    deadline = time.monotonic() + _ANSWER_SECONDS
    while len(found) <= _MOST_BYTES and (piece := answer.read1(_PIECE, decode_content=False)):
        found += piece
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(found)
