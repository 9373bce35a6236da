"""Rules for unencrypted logins: they are allowed only within this machine, or if a setting allows them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "PLATFORM_ALLOW_CLEARTEXT_LOGINS"


def allowed(environ: Mapping[str, str]) -> bool:
    """Return True if the environment allows unencrypted logins to any host."""
    return environ.get(VARIABLE, "").strip().lower() in ("1", "true", "yes")


def is_loopback(host: str) -> bool:
    """Return True if a host, given by its name or address, is on loopback. Names are not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def remedy(instead: str) -> str:
    """Return the remedy for an error message. `instead` is the setting that turns on encryption."""
    return f"Set {instead}, or {VARIABLE}=true if you trust the network."
