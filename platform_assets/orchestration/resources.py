"""The shared Dagster resources: brokers, lake and Spark. Values come from the environment when a run or tick starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field, PrivateAttr

from platform_assets.engines.spark.session import connect, end
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


class KafkaResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The Kafka cluster. Security settings are taken from `KAFKA_*` when used, and kept out of Dagster's config."""

    bootstrap_servers: str = Field(description="host:port[,host:port…]")
    timeout_seconds: float = Field(default=10.0, gt=0, description="Bound of one call to the brokers.")

    def settings(self) -> ClientSettings:
        """Settings for every client. Raises ConfigurationError."""
        return ClientSettings.from_environment(os.environ, self.bootstrap_servers)

    def cluster(self) -> Cluster:
        """A client of the admin interface."""
        return Cluster.connect(self.settings(), self.timeout_seconds)


class LakeResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The lake: a folder that this process and the Spark server both reach by the same path."""

    root: str = Field(description="Folder of the tables and of the ledger.")

    def lake(self) -> Lake:
        """The lake. Raises ConfigurationError for anything but an absolute local path."""
        return Lake.at(self.root)


class SparkResource(dg.ConfigurableResource):  # type: ignore[type-arg]
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
