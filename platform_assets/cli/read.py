"""`platform-assets read`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from platform_assets.cli import options
from platform_assets.terminal import echo, echo_json, echo_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.connect.session import SparkSession

    from platform_assets.cli.environment import Environment
    from platform_assets.model.derived import DerivedRef
    from platform_assets.model.tables import StateRef, TableRef
    from platform_assets.windows.state.folding import TopicState

JSON_VERSION = 1
FRESH = "fresh "
AS_OF = "as of "


@click.command()
@click.argument("table")
@options.as_json("Print JSON: version, table, path, spark_name, snippets; for a state, also spark_fresh_name.")
def read(table: str, as_json: bool) -> None:
    """Print code that reads TABLE in Spark, polars, DuckDB and pandas, SPARK'S TOKEN INCLUDED.

    TABLE is raw/<topic>, decoded/<topic>, dead_letters/<topic>, changes/<topic>, state/<topic>, history/<topic> or
    derived/<name>; a topic's name alone means the topic's raw table. For state/<topic>, code follows that also applies the
    changes that are not folded yet; for history/<topic>, code that reads the state as of a window. If a Spark server answers,
    the table is registered there by name, so that SQL can use a name such as raw.orders. The embedded server forgets these
    names when it stops; run this command again after a restart.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.cli.snippets import register, snippets
    from platform_assets.cli.state_snippets import register_fresh
    from platform_assets.components.declared import derived_or_held
    from platform_assets.errors import ConfigurationError
    from platform_assets.lake.new_tables import is_made, making
    from platform_assets.model.tables import StateRef, TableRef

    environment = Environment.of_process()
    ledger = environment.ledger()
    name = derived_or_held(table, ledger)
    folder = ledger.lake.table(name)
    if not folder.has_delta_log():
        raise ConfigurationError(
            f"{name} has no rows yet, because nothing has been loaded into it: see `platform-assets status`"
        )
    if not isinstance(name, TableRef) and not is_made(folder):
        raise ConfigurationError(
            f"{name} was not made yet: the run that makes it has not finished, or has failed. See `platform-assets status`, or "
            f"run `{making(name)}`"
        )
    known_as, why_not = _registered(environment, lambda spark: register(spark, name, folder))
    fresh_known_as = None
    if known_as and isinstance(name, StateRef) and name.kind == "state":
        state = _state(name, environment)
        fresh_known_as, why_not = _registered(environment, lambda spark: register_fresh(spark, state))
    plain = snippets(name, folder, environment.variables.get("SPARK_REMOTE"))
    texts = {str(reader): text for reader, text in plain.items()} | _fresh(name, environment)
    if as_json:
        found = {"version": JSON_VERSION, "table": name.name, "path": folder.uri, "spark_name": known_as}
        found |= {"spark_fresh_name": fresh_known_as} if f"{FRESH}spark" in texts else {}
        echo_json({**found, "snippets": dict(texts)})
        return
    echo(f"# {name} is in {folder.uri}")
    for reader, text in texts.items():
        echo()
        echo(f"# {reader}")
        echo_lines(text)
        if reader == f"{FRESH}spark" and fresh_known_as:
            echo(f"spark.table('{fresh_known_as}').show(5)")
        if reader == "spark":
            echo(f"spark.table('{known_as}').show(5)" if known_as else f"# {why_not}")


def _fresh(name: TableRef | DerivedRef | StateRef, environment: Environment) -> dict[str, str]:
    """Return the code that reads a state together with its pending changes, or a history as of its newest window; none for
    other tables."""
    from platform_assets.cli.state_snippets import as_of, can_broadcast, changes_from, fresh_view
    from platform_assets.model.tables import StateRef

    if not isinstance(name, StateRef) or name.kind == "state_deleted":
        return {}
    state = _state(name, environment)
    pending = state.pending()
    remote = environment.variables.get("SPARK_REMOTE")
    if name.kind == "history":
        return {f"{AS_OF}{reader}": text for reader, text in as_of(state, pending.through, remote).items()}
    if pending.replaces or pending.rebuild:
        echo(
            f"{name}: windows that are in the state were replaced since, or it is to be made again, so the code for fresh rows "
            f"may still show what they replaced: run `platform-assets fold {state.topic}` first",
            err=True,
        )
    columns = state.opened().live.columns.names
    since, is_folded = changes_from(pending)
    texts = fresh_view(state, columns, since, remote, is_folded=is_folded, broadcasts=can_broadcast(pending))
    return {f"{FRESH}{reader}": text for reader, text in texts.items()}


def _state(name: TableRef | DerivedRef | StateRef, environment: Environment) -> TopicState:
    from platform_assets.components.declared import state_of
    from platform_assets.windows.state.folding import TopicState

    declaration, declared = state_of(name.name)
    return TopicState(declaration.topic, declared, environment.ledger().lake)


def _registered(environment: Environment, register: Callable[[SparkSession], str]) -> tuple[str | None, str]:
    """Register a table or view with Spark; return its name there, or the reason why it was not registered."""
    from pyspark.errors import PySparkException

    from platform_assets.engines.shared.session import without_token
    from platform_assets.errors import ConfigurationError, SparkUnreachableError

    if not environment.has_spark:
        return None, "no Spark server is running, and SPARK_REMOTE is not set: `platform-assets up` starts one"
    try:
        return register(environment.spark()), ""
    except (SparkUnreachableError, ConfigurationError) as e:
        return None, str(e)
    except PySparkException as e:
        return None, f"the Spark server could not register the table: {without_token(str(e)).splitlines()[0]}"
