"""Find out whether the brokers, Spark and the schema registry answer and, if not, why: used by `check`, `status` and `up`."""

from __future__ import annotations

from platform_assets.cli.environment import Environment
from platform_assets.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    RegistryRefusedError,
    RegistryUnreachableError,
    SparkUnreachableError,
)

_SECONDS = 4.0


def broker_silence(environment: Environment) -> str | None:
    """Return the likely reason why the brokers do not answer; None if they do. Raises ConfigurationError."""
    from platform_assets.kafka.diagnosis import likely_cause

    settings = environment.settings()
    try:
        environment.cluster(_SECONDS).check_reachable()
    except BrokerUnreachableError:
        return likely_cause(settings)
    except BrokerRefusedError as e:
        return e.reason
    return None


def spark_problem(environment: Environment) -> str | None:
    """Return the reason why loads cannot use Spark; None if Spark answers, or is neither configured nor started yet.

    Raises ConfigurationError.
    """
    from platform_assets.services import platform

    if environment.has_spark:
        cause = spark_silence(environment)
        return None if cause is None else f"Spark is not answering, so nothing can be loaded: {cause}"
    for state in platform.running_state(environ=environment.variables):
        if state.service == "spark" and state.status == "dead":
            return (
                "Spark has stopped, so nothing can be loaded: run `platform-assets up` to restart it; for the cause, "
                f"see {state.log}"
            )
    return None


def spark_silence(environment: Environment) -> str | None:
    """Return the reason why the Spark Connect server does not answer, or None. A TLS connection cannot be inspected, so
    None is returned for it."""
    from platform_assets.engines.shared.session import address_of, check_reachable
    from platform_assets.services import connect_probe

    remote = environment.spark_remote()
    host, port = address_of(remote)
    try:
        check_reachable(remote, _SECONDS)
    except SparkUnreachableError as e:
        return f"cannot connect to {e.address} ({e.__cause__}): start the server there, or correct the address"
    parameters = dict(p.partition("=")[::2] for p in remote.split(";")[1:])
    if parameters.get("use_ssl", "").lower() == "true":
        return None
    code = connect_probe.status(host, port, parameters.get("token", ""))
    return {
        "UNAUTHENTICATED": f"{host}:{port} refuses the token: correct `;token=` in SPARK_REMOTE",
        "UNIMPLEMENTED": f"the service at {host}:{port} is not a Spark Connect server: correct SPARK_REMOTE",
        "UNAVAILABLE": f"the service at {host}:{port} does not accept plaintext gRPC: correct SPARK_REMOTE, or add "
        "`;use_ssl=true` if the server requires TLS",
        "DEADLINE_EXCEEDED": f"{host}:{port} accepts connections but does not answer: check the server's log",
    }.get(code)


def registry_silence(environment: Environment) -> str | None:
    """Return the reason why the schema registry does not answer like one; None if it does. Raises ConfigurationError."""
    from platform_assets.decoding.registry.cache import LARGEST_ID, BadReferences, UnknownId
    from platform_assets.decoding.registry.client import HURRIED, RegistryClient
    from platform_assets.decoding.registry.settings import RegistrySettings

    client = RegistryClient(RegistrySettings.of(environment.variables), patience=HURRIED)
    try:
        client.schema(LARGEST_ID)
    except (UnknownId, BadReferences):
        return None
    except (RegistryUnreachableError, RegistryRefusedError) as e:
        return f"{e.reason}: check SCHEMA_REGISTRY_URL, the credentials, and that the registry is running"
    finally:
        client.close()
    return None
