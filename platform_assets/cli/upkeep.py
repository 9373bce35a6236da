"""`platform-assets upkeep`."""

from __future__ import annotations

import functools
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from platform_assets.cli import options
from platform_assets.terminal import echo, echo_error, echo_json

if TYPE_CHECKING:
    from datetime import datetime

    from platform_assets.cli.environment import Environment
    from platform_assets.ledger.store import Ledger
    from platform_assets.windows.maintain.upkeep import TableUpkeep

JSON_VERSION = 1


def _bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the number of bytes of a size such as `128 MB`."""
    from platform_assets.model.sizes import bytes_of

    found = None if value is None else bytes_of(value)
    if value is not None and not found:
        raise click.BadParameter(f"{value!r} is not a size such as 128 MB or 1 GB", ctx, param)
    return found


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--target",
    metavar="SIZE",
    callback=_bytes,
    help="Size of merged files. Default: the topic's target_file_size, 128 MB.",
)
@click.option(
    "--quiet-hours",
    type=click.FloatRange(0, 100_000),
    default=6.0,
    show_default=True,
    help="Skip windows that ended less than this many hours ago.",
)
@click.option(
    "--budget", metavar="SIZE", callback=_bytes, help="Merge about this amount of data per table. Default: 32 GB."
)
@options.dry_run("Only report what would be merged and removed.")
@options.as_json("Print JSON: version, dry_run, tables with what was done, and keep with what was removed as expired.")
def upkeep(
    tables: tuple[str, ...], target: int | None, quiet_hours: float, budget: int | None, dry_run: bool, as_json: bool
) -> None:
    """Merge small files of each TABLE, or of all tables of the lake, and delete files that are no longer needed.

    First, for each raw TABLE whose topic has `keep` in its YAML, the command removes windows past it from all tables of
    the topic. A new or changed `keep` takes effect a week after the first upkeep that sees it; --dry-run shows how
    many windows would go.

    Only tables that are not partitioned by windows have files to merge. Before anything is replaced, rows are compared
    with those that were loaded. Readers that follow the table's changes see nothing of a merge. Spark's workers merge the files;
    without Spark, this process does. Once a day, the command also deletes files that no version of the last week refers
    to, as `vacuum` does.

    If the command is interrupted, run it again to continue. Exits 1 if rows of a window are not those that were loaded,
    or if a window past `keep` cannot be removed, unless it is parked.
    """
    from datetime import UTC, datetime

    from platform_assets.cli.environment import Environment
    from platform_assets.errors import PlatformError
    from platform_assets.windows.maintain import upkeep_text

    environment, now = Environment.of_process(), datetime.now(UTC)
    ledger = environment.ledger()
    given = {"target": target, "budget": budget, "quiet": timedelta(hours=quiet_hours)}
    settings = {name: value for name, value in given.items() if value is not None}
    done: list[dict[str, Any]] = []
    upkeeps = _upkeeps(tables, ledger, environment, settings)
    topics = [each.table.topic for each in upkeeps if each.table.kind == "raw"]
    expired, failed = _expired(topics, ledger, now, dry_run=dry_run, as_json=as_json)
    for each in upkeeps:
        name = each.table.name
        try:
            if dry_run:
                plan = each.plan(now)
                text = upkeep_text.PARTITIONED if plan is None else upkeep_text.plan_text(plan)
                values: dict[str, Any] = {} if plan is None else _planned(plan)
            else:
                found = each.run(now, functools.partial(_show, name))
                text = upkeep_text.PARTITIONED if found is None else upkeep_text.done_text(found)
                values = {} if found is None else found.to_json()
                for damage in () if found is None else upkeep_text.damage_texts(name, sorted(found.damaged)):
                    failed = True
                    echo(damage, err=True)
        except PlatformError as e:
            if len(tables) == 1:
                raise
            echo_error(e)
            failed, text, values = True, "", {"error": str(e)}
        done.append({"table": name, "partitioned": not values, **values})
        if text and not as_json:
            echo(f"{name}: {text}")
    if as_json:
        echo_json({"version": JSON_VERSION, "dry_run": dry_run, "tables": done, "keep": expired})
    sys.exit(1 if failed else 0)


def _expired(
    topics: list[str], ledger: Ledger, now: datetime, *, dry_run: bool, as_json: bool
) -> tuple[list[dict[str, Any]], bool]:
    """Remove windows that are past the topics' `keep`; return the results, and True if a topic needs attention."""
    from platform_assets.components.declared import declarations
    from platform_assets.windows.maintain import expiry_text, keeping

    known, found, failed = declarations(), list[dict[str, Any]](), False
    wanted = [known[topic] for topic in topics if topic in known]
    for declaration, done in keeping.of_topics(wanted, ledger, now, dry_run=dry_run):
        topic = declaration.topic
        if isinstance(done, Exception):
            echo_error(done)
            found.append({"topic": topic, "error": str(done)})
            failed = True
            continue
        found.append({"topic": topic, **done.to_json()})
        if not as_json:
            echo(f"raw/{topic}: {expiry_text.plan_text(done) if dry_run else expiry_text.text(done)}")
        for text in expiry_text.warnings(topic, done.held, done.more):
            echo(text, err=True)
        for text in expiry_text.problems(topic, done.held, done.more):
            failed = failed or not dry_run
            echo(text, err=True)
    return found, failed


def _show(name: str, number: int, groups: int, merged: Any) -> None:
    from platform_assets.windows.maintain.upkeep_text import group_text

    if groups > 1:
        echo(f"{name}: {group_text(number, groups, merged)}", err=True)


def _planned(plan: Any) -> dict[str, Any]:
    return {
        "files": plan.files,
        "bytes": plan.bytes,
        "merged_files": sum(len(group.files) for group in plan.groups),
        "merged_bytes": sum(group.bytes for group in plan.groups),
        "new_files": len(plan.groups),
        "left_bytes": sum(group.bytes for group in plan.left),
    }


def _upkeeps(
    tables: tuple[str, ...], ledger: Ledger, environment: Environment, settings: dict[str, Any]
) -> list[TableUpkeep]:
    """Return the upkeep of each given table, or of all tables. Raises ConfigurationError for an unknown table."""
    from platform_assets.components.declared import declarations, table_held
    from platform_assets.engines.choice import merge_engine
    from platform_assets.engines.merging.engine import MergeEngine
    from platform_assets.errors import ConfigurationError
    from platform_assets.windows.maintain import keeping
    from platform_assets.windows.maintain.upkeep import TableUpkeep

    engine, removed = MergeEngine(), functools.cache(functools.partial(keeping.topics_with_removals, ledger))
    if environment.has_spark:
        engine = merge_engine(ledger.lake, functools.cache(environment.spark), environment.spark_remote())
    known = declarations()
    if not tables:
        named = [(known.get(table.topic), table) for table in ledger.lake.tables()]
    else:
        named = [(known.get(topic.topic), table) for topic, table in (table_held(name, ledger) for name in tables)]
        for _, table in named:
            if not ledger.lake.table(table).has_delta_log():
                raise ConfigurationError(
                    f"{table} has no files yet, because nothing has been loaded into it: see `platform-assets status`"
                )
    return [TableUpkeep.of(table, ledger, topic, engine=engine, removed=removed, **settings) for topic, table in named]
