"""A token endpoint of OpenID Connect on loopback. It returns signed tokens for a client's id and secret, and publishes
its public key."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from platform_assets.services.ports import LOOPBACK

CLIENT = "loader"


@dataclass
class TokenEndpoint:
    """A running endpoint. `asked` contains the scope and the client id of each token request."""

    url: str = ""
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    seconds: int = 300
    asked: list[tuple[str, str]] = field(default_factory=list)
    answer: tuple[int, bytes] | None = None
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048), repr=False)

    @property
    def keys_url(self) -> str:
        """URL of the endpoint's public key."""
        return self.url.removesuffix("/token") + "/keys"

    def variables(self) -> dict[str, str]:
        """Client settings for a login with tokens of this endpoint."""
        return {
            "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "KAFKA_SASL_MECHANISM": "OAUTHBEARER",
            "KAFKA_SASL_OAUTHBEARER_CLIENT_ID": CLIENT,
            "KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET": self.secret,
            "KAFKA_SASL_OAUTHBEARER_SCOPE": "kafka",
            "KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": self.url,
        }

    def keys(self) -> dict[str, Any]:
        """The endpoint's public key as a key set (RFC 7517)."""
        numbers = self.key.public_key().public_numbers()
        public = {name: _base64(getattr(numbers, name).to_bytes(256, "big").lstrip(b"\0")) for name in ("n", "e")}
        return {"keys": [{"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", **public}]}

    def token(self) -> str:
        """Return a new token."""
        now = int(time.time())
        parts = (
            {"alg": "RS256", "typ": "JWT", "kid": "1"},
            {"sub": CLIENT, "iss": self.url, "iat": now, "exp": now + self.seconds, "scope": "kafka"},
        )
        signed = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_base64(self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


@contextmanager
def token_endpoint() -> Iterator[TokenEndpoint]:
    """Run an endpoint within the block."""
    made = TokenEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, json.dumps(made.keys()).encode())

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            client, _, secret = login.partition(":")
            made.asked.append((form.get("scope", [""])[0], client))
            if made.answer is not None:
                self._answer(*made.answer)
            elif form["grant_type"] != ["client_credentials"] or (client, secret) != (CLIENT, made.secret):
                self._answer(401, b'{"error": "invalid_client"}')
            else:
                content = {"access_token": made.token(), "token_type": "Bearer", "expires_in": made.seconds}
                self._answer(200, json.dumps(content).encode())

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Do not log requests."""

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        made.url = f"http://{LOOPBACK}:{server.server_port}/token"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
