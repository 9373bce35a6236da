"""Why a broker's certificate is not trusted, and what to do: whose turn it is depends on what is wrong with it."""

from __future__ import annotations

import ssl
from typing import Final

_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_NAME, _WRONG_ADDRESS = 62, 64
"""OpenSSL's numbers (X509_V_ERR_…)."""

_REMEDIES: Final = {
    _NOT_YET_VALID: "compare the clocks of this machine and of the one that made it",
    _EXPIRED: "whoever runs the brokers has to give them a new one; nothing on this side helps",
    _WRONG_NAME: "name the broker in KAFKA_BOOTSTRAP_SERVERS, and in its advertised.listeners, as its certificate does",
    _WRONG_ADDRESS: "name the broker in KAFKA_BOOTSTRAP_SERVERS, and in its advertised.listeners, as its certificate does",
}
_OTHERWISE: Final = "set KAFKA_SSL_CA_LOCATION to the certificates of its authority"


def distrusted(error: ssl.SSLCertVerificationError) -> str:
    """The cause in OpenSSL's words, and the next step, to be read behind "the certificate"."""
    return f"is not trusted ({error.verify_message}): {_REMEDIES.get(error.verify_code, _OTHERWISE)}"
