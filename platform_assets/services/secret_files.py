"""Secrets read from files, using the platform's own function, for the rest of `services`."""

from __future__ import annotations

from platform_assets.secret_files import STORE, SUFFIX, secret, take

__all__ = ["STORE", "SUFFIX", "secret", "take"]
