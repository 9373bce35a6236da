"""Dagster's storage in PostgreSQL, whose address can be in a file. Each new connection uses the password that is in the
file at that time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage
from dagster_postgres.auth import PgTokenProvider

from platform_assets.services.dagster_services import POSTGRES_VARIABLE
from platform_assets.services.errors import ConfigurationError
from platform_assets.services.secret_files import SUFFIX, secret


class _Password(PgTokenProvider):
    """The password in the address. The address is read again for each connection."""

    def _fetch_token(self) -> tuple[str, float]:
        # Always expired, so that it is never cached.
        return unquote(urlsplit(_address()).password or ""), 0.0


class PostgresStorage(DagsterPostgresStorage):
    """Storage for `dagster.yaml`: `storage: {custom: {module: platform_assets.services.postgres_storage, class:
    PostgresStorage}}`."""

    @classmethod
    def config_type(cls) -> Mapping[str, Any]:
        """Return an empty schema, because the address is in the environment, or in a file to which the environment
        points."""
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        """Create the storage. Raises ConfigurationError if there is no address, or if the file that contains the
        address cannot be used."""
        return cls(_address(), inst_data=inst_data, token_provider=_Password())


def _address() -> str:
    found = secret(os.environ, POSTGRES_VARIABLE)
    if found is None:
        raise ConfigurationError(
            f"dagster.yaml sets PostgreSQL as Dagster's storage, but neither {POSTGRES_VARIABLE} nor "
            f"{POSTGRES_VARIABLE}{SUFFIX} is set. Set one of them."
        )
    return found
