"""The shared Dagster resources: brokers, lake and Spark. Values come from the environment when a run or tick starts,
never from the run's config.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._utils.cached_method import cached_method
from pydantic import Field, PrivateAttr

from platform_assets.engines.spark.session import connect, end
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


class _FixedResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A resource that the code location configures, and no run: else a run could have credentials sent to another address."""

    @cached_method  # Dagster tells definitions apart by identity.
    def get_resource_definition(self) -> Any:
        """The definition for Dagster; its schema has no fields."""
        given = self._resolved_config_dict
        return super().get_resource_definition().configured(lambda _: given, config_schema={})


class KafkaResource(_FixedResource):
    """The Kafka cluster. Security settings are taken from `KAFKA_*` when used, and kept out of Dagster's config."""

    bootstrap_servers: str = Field(description="host:port[,host:port…]")
    timeout_seconds: float = Field(default=10.0, gt=0, description="Bound of one call to the brokers.")

    def settings(self) -> ClientSettings:
        """Settings for every client. Raises ConfigurationError."""
        return ClientSettings.from_environment(os.environ, self.bootstrap_servers)

    def cluster(self) -> Cluster:
        """A client of the admin interface."""
        return Cluster.connect(self.settings(), self.timeout_seconds)


class LakeResource(_FixedResource):
    """The lake: a folder that this process and the Spark server both reach by the same path."""

    root: str = Field(description="Folder of the tables and of the ledger.")

    def lake(self) -> Lake:
        """The lake. Raises ConfigurationError for anything but an absolute local path."""
        return Lake.at(self.root)


class SparkResource(_FixedResource):
    """The Spark Connect server. The session is made by dagster-pyspark's resource when first asked for."""

    remote: str = Field(description="sc://host:port/;token=…")
    _session: SparkSession | None = PrivateAttr(default=None)

    def session(self) -> SparkSession:
        """The session of this process. Raises SparkUnreachableError."""
        if self._session is None:
            self._session = connect(self.remote)
        return self._session

    def forget(self) -> None:
        """Drop the session, so that the next call makes a new one: after the server went away."""
        if self._session is not None:
            session, self._session = self._session, None
            end(session)
