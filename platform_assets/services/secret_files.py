"""Secrets read from files. This module makes the platform's own function available to the other modules of
`services`."""

from __future__ import annotations

from platform_assets.secret_files import STORE, SUFFIX, secret, take

__all__ = ["STORE", "SUFFIX", "secret", "take"]
