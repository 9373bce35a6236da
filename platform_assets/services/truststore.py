"""A Java trust store that contains the certificates that Python trusts. It is for the Java inside a Python package.

That Java has its own list of certificates, which lacks the certificates that this machine was configured to trust.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
import time
from pathlib import Path
from typing import Final

PASSWORD: Final = "changeit"
"""The default password of Java's trust stores. The store contains only public certificates, but the format requires a
password."""

_MAGIC: Final = 0xFEEDFEED
_TRUSTED_CERTIFICATE: Final = 2


def trust_options(folder: Path) -> tuple[str, ...]:
    """Write the store into `folder`, and return the Java options that select it. There are no options if Python does
    not name a file of certificates.

    Raises:
        OSError: the folder cannot be written.
    """
    bundle = ssl.get_default_verify_paths().cafile
    if not bundle:
        return ()
    certificates = ssl.create_default_context(cafile=bundle).get_ca_certs(binary_form=True)
    if not certificates:
        return ()
    store = folder / "trust.jks"
    store.write_bytes(java_keystore(certificates))
    return (f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}")


def java_keystore(certificates: list[bytes]) -> bytes:
    """Return a JKS key store, version 2, that contains DER certificates."""
    now = int(time.time() * 1000)
    body = struct.pack(">III", _MAGIC, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca-{number}") + struct.pack(">Q", now)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    # The format's own checksum: SHA-1 over the password, a fixed phrase and the body.
    checksum = hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + checksum.digest()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded
