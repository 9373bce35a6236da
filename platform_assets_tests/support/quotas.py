"""Quotas for a broker's clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest

from platform_assets.kafka.batches.wire import Connection, Security, addresses
from testbed.clients import client_settings

_VERSION = 1


@contextmanager
def fetch_quota(bootstrap: str, client_id: str | None, bytes_a_second: int) -> Iterator[None]:
    """Within the block, limit the consumers with `client_id` to this many bytes per second in total. If `client_id` is
    None, limit each client that has no quota of its own."""
    _alter(bootstrap, client_id, bytes_a_second, remove=False)
    try:
        yield
    finally:
        _alter(bootstrap, client_id, bytes_a_second, remove=True)


def _alter(bootstrap: str, client_id: str | None, value: float, *, remove: bool) -> None:
    entry = AlterClientQuotasRequest.EntryData
    wanted = entry(
        entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[entry.OpData(key="consumer_byte_rate", value=float(value), remove=remove)],
    )
    connection = Connection(
        addresses(bootstrap)[0],
        Security(client_settings(bootstrap)),
        {AlterClientQuotasRequest: _VERSION},
        timeout=10,
        stopped=lambda: False,
    )
    try:
        answer = connection.request(
            AlterClientQuotasRequest(version=_VERSION, entries=[wanted], validate_only=False), lambda found: found
        )
    finally:
        connection.close()
    assert [e.error_code for e in answer.entries] == [0], answer
