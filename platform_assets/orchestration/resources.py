"""The shared Dagster resources (brokers, lake, Spark), and run configuration that holds only values.

Resource values come from the environment when a run or a tick starts, never from the config of a run. Wherever
Dagster's `Config` accepts a string, a number or a flag, it also accepts `{env: NAME}`, and then reads that variable in
the code location. `values_of` prevents this: otherwise, anyone with permission to launch a run could make it write
secrets to a log, an error or the ledger.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import dagster as dg
from dagster._config import ConfigType
from dagster._utils.cached_method import cached_method
from pydantic import Field, PrivateAttr

from platform_assets.engines.choice import choose_engine, decode_engine
from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.engines.protocol import LoadEngine
from platform_assets.engines.shared.session import connect, end
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import EngineName

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


class _FixedResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A resource that the code location configures, and a run cannot: otherwise a run could send credentials to another
    address."""

    @cached_method  # Dagster tells definitions apart by identity.
    def get_resource_definition(self) -> Any:
        """Return the definition of the resource for Dagster; its config schema has no fields."""
        given = self._resolved_config_dict
        return super().get_resource_definition().configured(lambda _: given, config_schema={})


class KafkaResource(_FixedResource):
    """The Kafka cluster. Security settings are read from `KAFKA_*` when they are used, and kept out of Dagster's
    config."""

    bootstrap_servers: str = Field(description="host:port[,host:port…]")
    timeout_seconds: float = Field(default=10.0, gt=0, description="Maximum duration of one call to the brokers.")

    def settings(self) -> ClientSettings:
        """Return the settings for every client. Raises ConfigurationError."""
        return ClientSettings.from_environment(os.environ, self.bootstrap_servers)

    def cluster(self) -> Cluster:
        """Return a client of the admin interface."""
        return Cluster.connect(self.settings(), self.timeout_seconds)


class LakeResource(_FixedResource):
    """The lake: a folder that this process and the Spark server reach by the same path."""

    root: str = Field(description="Folder that contains the tables and the ledger.")

    def lake(self) -> Lake:
        """The lake. Raises ConfigurationError for anything but an absolute local path."""
        return Lake.at(self.root)


class SparkResource(_FixedResource):
    """The Spark Connect server. The resource of dagster-pyspark creates the session on first use."""

    remote: str = Field(description="sc://host:port/;token=…")
    _session: SparkSession | None = PrivateAttr(default=None)

    def session(self) -> SparkSession:
        """Return the session of this process. Raises SparkUnreachableError."""
        if self._session is None:
            self._session = connect(self.remote)
        return self._session

    def forget(self) -> None:
        """Drop the session after the server became unavailable, so that the next call creates a new session."""
        if self._session is not None:
            session, self._session = self._session, None
            end(session)


C = TypeVar("C", bound=dg.Config)


def values_of(config: type[dg.Config]) -> dg.Field:
    """Return the schema of an op's config, for `config_schema`: the schema of `config`, without references to the
    environment.

    Raises:
        TypeError: a field has a type that this module does not know.
    """
    return _field(config.to_config_schema().as_field())


def read_config(config: type[C], context: dg.OpExecutionContext) -> C:
    """Return the config of a step whose op has the schema `values_of(config)`."""
    return config(**context.op_config)


def _field(given: Any) -> dg.Field:
    default = {"default_value": given.default_value} if given.default_provided else {}
    return dg.Field(_values(given.config_type), is_required=given.is_required, description=given.description, **default)


def _values(given: ConfigType) -> Any:
    if isinstance(given, dg.ScalarUnion):
        return given.scalar_type
    if isinstance(given, dg.Array):
        return dg.Array(_values(given.inner_type))
    if isinstance(given, dg.Noneable):
        return dg.Noneable(_values(given.inner_type))
    if isinstance(given, dg.Map):
        return dg.Map(_values(given.key_type), _values(given.inner_type))  # type: ignore[no-untyped-call]
    if isinstance(given, dg.Shape):
        return dg.Shape({name: _field(field) for name, field in given.fields.items()})  # type: ignore[no-untyped-call]
    if given.key in ("String", "Int", "Bool", "Float"):
        return given
    raise TypeError(
        f"config type {given.key} might read environment variables: if it does not, add the type to {__name__}"
    )


# --- services ---------------------------------------------------------------------------------------------------


class Log(Protocol):
    """Logger for the progress of a load, in a run or in another process."""

    def info(self, text: str, /) -> None:
        """Write a line."""
        ...

    def warning(self, text: str, /) -> None:
        """Write a warning."""
        ...

    def error(self, text: str, /) -> None:
        """Write an error."""
        ...


class Services(Protocol):
    """The services needed to load windows."""

    @property
    def ledger(self) -> Ledger:
        """The ledger, with its lake."""
        ...

    @property
    def cluster(self) -> Cluster:
        """The brokers."""
        ...

    def settings(self) -> ClientSettings:
        """Settings for clients that connect to the brokers. Raises ConfigurationError."""
        ...

    def load_engine(self, name: EngineName) -> LoadEngine:
        """Return an engine for loading."""
        ...

    def check_engine(self, name: EngineName) -> LoadEngine:
        """Return an engine that reads windows again for a check."""
        ...

    def decode_engine(self) -> DecodeEngine:
        """Return an engine that decodes windows."""
        ...

    def forget_session(self) -> None:
        """Drop the connection to Spark, so that the next window gets a new one."""
        ...


@dataclass
class RunServices:
    """The services that a run uses, from Dagster's resources."""

    kafka: KafkaResource
    lake: LakeResource
    spark: SparkResource

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, with its lake."""
        return Ledger(self.lake.lake())

    @cached_property
    def cluster(self) -> Cluster:
        """The brokers."""
        return self.kafka.cluster()

    def settings(self) -> ClientSettings:
        """Settings for clients that connect to the brokers. Raises ConfigurationError."""
        return self.kafka.settings()

    def load_engine(self, name: EngineName) -> LoadEngine:
        """Return an engine for loading."""
        return choose_engine(self.ledger.lake, self.settings, self.spark.session, name, self.spark.remote)

    def check_engine(self, name: EngineName) -> LoadEngine:
        """Return an engine that reads windows again for a check."""
        return choose_engine(self.ledger.lake, self.settings, self.spark.session, name)

    def decode_engine(self) -> DecodeEngine:
        """Return the decoding engine."""
        return decode_engine(self.ledger.lake, self.spark.session, self.spark.remote)

    def forget_session(self) -> None:
        """Drop the connection to Spark, so that the next window gets a new one."""
        self.spark.forget()
