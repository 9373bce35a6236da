"""Ask a Spark Connect server whether it takes our token, without a session and without pyspark."""

from __future__ import annotations

import importlib
from typing import Any, Final

from infra.ports import is_listening

_METHOD: Final = "/spark.connect.SparkConnectService/Interrupt"
_TIMEOUT_SECONDS: Final = 5.0


def accepts(host: str, port: int, token: str) -> bool:
    """Whether a Spark Connect server listens here and lets this token in.

    The request is empty, which the service itself rejects: to be rejected by it and not by its doorkeeper is the
    proof, and nothing is left behind on the server.

    Args:
        host: loopback address.
        port: the server's.
        token: sent to that address alone.
    """
    if not is_listening(port):
        return False
    return status(host, port, token) not in ("UNAVAILABLE", "UNAUTHENTICATED", "DEADLINE_EXCEEDED", "UNIMPLEMENTED")


def status(host: str, port: int, token: str) -> str:
    """The name of the gRPC status that an empty request is answered with."""
    # Imported here, since most commands need no gRPC; untyped, since its stubs deny that an RpcError has a code.
    grpc: Any = importlib.import_module("grpc")

    with grpc.insecure_channel(f"{host}:{port}") as channel:
        call = channel.unary_unary(_METHOD)
        try:
            call(b"", metadata=(("authorization", f"Bearer {token}"),), timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"
