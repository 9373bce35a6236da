"""Check if a Spark Connect server accepts a token, without a session and without pyspark."""

from __future__ import annotations

import importlib
from typing import Any, Final

from platform_assets.services.ports import is_listening

_METHOD: Final = "/spark.connect.SparkConnectService/Interrupt"
_TIMEOUT_SECONDS: Final = 5.0


def accepts(host: str, port: int, token: str) -> bool:
    """Return True if a Spark Connect server listens at this address and accepts this token.

    The request is empty, so the service itself rejects it. The token is valid if the request passes authentication and
    is rejected only by the service. The check leaves nothing on the server.

    Args:
        host: a loopback address.
        port: the port of the server.
        token: the token to check, which is sent only to that address.
    """
    if not is_listening(port):
        return False
    return status(host, port, token) not in ("UNAVAILABLE", "UNAUTHENTICATED", "DEADLINE_EXCEEDED", "UNIMPLEMENTED")


def status(host: str, port: int, token: str) -> str:
    """Return the name of the gRPC status in the response to an empty request."""
    # Imported here because most commands do not need gRPC. Untyped because gRPC's stubs lack the code of an RpcError.
    grpc: Any = importlib.import_module("grpc")

    with grpc.insecure_channel(f"{host}:{port}") as channel:
        call = channel.unary_unary(_METHOD)
        try:
            call(b"", metadata=(("authorization", f"Bearer {token}"),), timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"
