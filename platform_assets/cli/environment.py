"""The environment of all commands, completed with the addresses of the embedded services."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from platform_assets.errors import ConfigurationError

if TYPE_CHECKING:
    import dagster as dg
    from pyspark.sql.connect.session import SparkSession

    from platform_assets.engines.protocol import LoadEngine
    from platform_assets.kafka.cluster import Cluster
    from platform_assets.kafka.settings import ClientSettings
    from platform_assets.lake.location import Lake
    from platform_assets.ledger.store import Ledger
    from platform_assets.model.declaration import EngineName
    from platform_assets.orchestration.resources import SparkResource


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables of this process and of the embedded platform. They include secrets, so they are hidden from the
    repr."""

    variables: Mapping[str, str] = field(repr=False)

    @classmethod
    def of_process(cls) -> Environment:
        """Read the environment now. Raises ConfigurationError if the run state or `platform.env` is damaged."""
        from platform_assets.services import platform

        found = platform.environment()
        # The address of an embedded service that has ended does not count.
        kept = {n: v for n, v in os.environ.items() if n not in (platform.KAFKA_ADDRESS, platform.SPARK_ADDRESS)}
        return cls({**kept, **found})

    @property
    def has_broker(self) -> bool:
        """True if a broker is set in the environment or runs embedded."""
        return bool(self.variables.get("KAFKA_BOOTSTRAP_SERVERS"))

    @property
    def has_spark(self) -> bool:
        """True if a Spark Connect server is set in the environment or runs embedded."""
        return bool(self.variables.get("SPARK_REMOTE"))

    @property
    def has_registry(self) -> bool:
        """True if a schema registry is set in the environment or runs embedded."""
        return bool(self.variables.get("SCHEMA_REGISTRY_URL"))

    def settings(self) -> ClientSettings:
        """Settings for every Kafka client. Raises ConfigurationError."""
        from platform_assets.kafka.settings import ClientSettings

        return ClientSettings.from_environment(self.variables)

    def cluster(self, timeout: float = 10.0) -> Cluster:
        """Return a client of the brokers whose calls take at most `timeout` seconds. Raises ConfigurationError."""
        from platform_assets.kafka.cluster import Cluster

        return Cluster.connect(self.settings(), timeout)

    def ledger(self) -> Ledger:
        """The lake's ledger. Raises ConfigurationError."""
        from platform_assets.lake.location import Lake
        from platform_assets.ledger.store import Ledger

        return Ledger(Lake.at(self.variables["LAKE_ROOT"]))

    def spark_remote(self) -> str:
        """The address of the Spark Connect server, token included. Raises ConfigurationError if there is none."""
        remote = self.variables.get("SPARK_REMOTE")
        if not remote:
            raise ConfigurationError("no Spark Connect server: run `platform-assets up` or set SPARK_REMOTE")
        return remote

    def spark(self) -> SparkSession:
        """A session on the Spark Connect server. Raises ConfigurationError and SparkUnreachableError."""
        from platform_assets.engines.shared.session import connect

        return connect(self.spark_remote())

    def engine(self, name: EngineName, spark: SparkResource | None = None, lake: Lake | None = None) -> LoadEngine:
        """Return the load engine: the lake's engine, unless another one is given. With `spark`, the engine can load;
        otherwise it can only read windows again for a check. Raises ConfigurationError."""
        from platform_assets.engines.choice import choose_engine

        lake = lake or self.ledger().lake
        if spark is None:
            return choose_engine(lake, self.settings, functools.cache(self.spark), name)
        return choose_engine(lake, self.settings, spark.session, name, spark.remote)

    def instance(self) -> dg.DagsterInstance | None:
        """Return the Dagster instance in `DAGSTER_HOME`; None if that folder has no `dagster.yaml`. Raises
        ConfigurationError if the instance's storage does not answer."""
        import dagster as dg

        from platform_assets.services import dagster_services

        home = self.variables.get("DAGSTER_HOME", "")
        if not (Path(home) / "dagster.yaml").is_file():
            return None
        os.environ["DAGSTER_HOME"] = home
        with dagster_services.failures_named(Path(home), self.variables):
            return dg.DagsterInstance.get()
