"""How secrets are read from files: the platform's own way, for the rest of `infra`."""

from __future__ import annotations

from platform_assets.secret_files import STORE, SUFFIX, secret, take

__all__ = ["STORE", "SUFFIX", "secret", "take"]
