"""Address and credentials of the registry. They come only from the environment of the process that queries the
registry."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn
from urllib.parse import urlsplit

from platform_assets.errors import ConfigurationError
from platform_assets.model import cleartext
from platform_assets.secret_files import secret

URL_VARIABLE: Final = "SCHEMA_REGISTRY_URL"
USER_VARIABLE: Final = "SCHEMA_REGISTRY_USER"
PASSWORD_VARIABLE: Final = "SCHEMA_REGISTRY_PASSWORD"
TOKEN_VARIABLE: Final = "SCHEMA_REGISTRY_TOKEN"
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Settings for one registry. `url` has no trailing slash and no secret. The other settings are never shown, and
    never leave the process."""

    url: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> RegistrySettings:
        """Return the settings from an environment. Raises ConfigurationError. No message contains the value of a
        secret, or a URL that might contain a secret."""
        url = environ.get(URL_VARIABLE, "").strip()
        if not url:
            raise ConfigurationError(
                f"{URL_VARIABLE} is not set, but the declaration uses a registry: set it to the registry's address, "
                "such as http://127.0.0.1:8081, or run `platform-assets up --registry` for the embedded one"
            )
        _check(url)
        user, password, token = (secret(environ, name) for name in (USER_VARIABLE, PASSWORD_VARIABLE, TOKEN_VARIABLE))
        if (user is None) != (password is None):
            raise ConfigurationError(f"{USER_VARIABLE} and {PASSWORD_VARIABLE} must be set together")
        if user is not None and token is not None:
            raise ConfigurationError(f"set {USER_VARIABLE} and {PASSWORD_VARIABLE}, or {TOKEN_VARIABLE}, and not both")
        if token is not None and not _TOKEN.fullmatch(token):
            raise ConfigurationError(
                f"{TOKEN_VARIABLE} cannot be sent: a token must not contain spaces, line ends or characters outside "
                f"ASCII. Set {TOKEN_VARIABLE}, or the file that {TOKEN_VARIABLE}_FILE names, to only the token."
            )
        parts = urlsplit(url)
        login = USER_VARIABLE if user is not None else TOKEN_VARIABLE if token is not None else None
        if (
            login
            and parts.scheme == "http"
            and not cleartext.is_loopback(parts.hostname or "")
            and not cleartext.allowed(environ)
        ):
            raise ConfigurationError(
                f"{URL_VARIABLE} begins with http://, so the login of {login} would cross the network unencrypted. "
                + cleartext.remedy(f"{URL_VARIABLE} to an address with https://")
            )
        return cls(url.rstrip("/"), user, password, token)

    @property
    def digest(self) -> str:
        """Name that identifies the registry in paths."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:16]

    def __reduce__(self) -> NoReturn:
        raise TypeError("settings of a registry may hold secrets, and are never pickled")


def address(environ: Mapping[str, str]) -> str:
    """Return the registry's address, which is not secret. The result is empty if the address is not set. Raises
    ConfigurationError."""
    return RegistrySettings.of(environ).url if environ.get(URL_VARIABLE) else ""


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(
            f"{URL_VARIABLE} contains a user or a password: move them to {USER_VARIABLE} and {PASSWORD_VARIABLE}"
        )
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.query or parts.fragment:
        raise ConfigurationError(
            f"{URL_VARIABLE} is not the address of a registry: it must have the form https://host:port/path"
        )
