"""`platform-assets compare-postgres`."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Final

import click

from platform_assets.cli import options
from platform_assets.errors import PlatformError
from platform_assets.terminal import console, echo, echo_error, echo_json

if TYPE_CHECKING:
    from platform_assets.checks.postgres.comparing import Comparison, Difference, Kind

JSON_VERSION: Final = 1
_KEPT: Final = 1_000
_MOST: Final = 1_000_000
EXIT_CODES: Final = {"equal": 0, "different": 1, "undecided": 2}
_SHOWN: Final = 20
_KINDS: Final[tuple[Kind, ...]] = ("missing", "extra", "different", "undecided")


@click.command()
@click.argument("topic")
@click.option(
    "--dsn-env",
    "variable",
    required=True,
    metavar="VAR",
    help="Environment variable with the database's address, postgresql://user:password@host/database; or VAR_FILE with a file.",
)
@click.option("--table", metavar="SCHEMA.TABLE", help="The table in the database. Default: the end of TOPIC.")
@click.option(
    "--slot", metavar="NAME", help="The connector's replication slot. Default: the database's only logical slot."
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait at most this long until the lake has every change of the snapshot.",
)
@click.option("--values", is_flag=True, help="Also show the values that differ.")
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=_KEPT,
    show_default=True,
    metavar="ROWS",
    help="With --json, list at most this many differences; all are counted.",
)
@options.as_json("Print JSON: version, topic, table, outcome, snapshot, counts, differences and more.")
def compare_postgres(
    topic: str,
    variable: str,
    table: str | None,
    slot: str | None,
    wait: float,
    values: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Prove that the latest row of each key of TOPIC equals the row in PostgreSQL, or name the keys that differ.

    TOPIC must be decoded with the format `debezium`. The command takes a snapshot of the database and compares each row
    of the table with the decoded rows of transactions that are in the snapshot, so both sides may change meanwhile. It
    does not write to the database, which sorts the table once. Values are not shown, but keys are.

    The lake may lack changes of the snapshot: the connector has not sent them, or their window is not decoded yet. Then
    differences are undecided. `--wait` keeps the snapshot open until the lake has all of them.

    Exits 0 if all rows are equal, 1 if rows differ, 2 if that is undecided or the comparison failed; the reason is
    printed.
    """
    from platform_assets.checks.postgres.comparing import PostgresComparison
    from platform_assets.cli.audit_table import progress
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import declaration_of
    from platform_assets.errors import ConfigurationError
    from platform_assets.secret_files import secret

    try:
        environment = Environment.of_process()
        declaration = declaration_of(topic.removeprefix("state/").removeprefix("decoded/"))
        address = secret(os.environ, variable)
        if address is None:
            raise ConfigurationError(
                f"{variable} is not set: export it with the database's address, such as "
                "postgresql://user:password@host:5432/database"
            )
        with progress(console(stderr=True)) as on_progress:
            found = PostgresComparison(
                declaration,
                environment.ledger(),
                environment.cluster(),
                address,
                variable,
                table=table,
                slot=slot,
                wait=wait,
                values=values,
                limit=limit if as_json else _SHOWN,
                on_progress=on_progress,
            ).run()
    except (PlatformError, KeyboardInterrupt) as e:
        echo_error(
            e if str(e) else KeyboardInterrupt("interrupted"),
            "platform-assets: the comparison could not be completed: ",
        )
        sys.exit(EXIT_CODES["undecided"])
    except Exception as e:  # noqa: BLE001
        # Exit code 1 would mean that rows differ. The error's text may contain values, so it is not shown.
        place = traceback.extract_tb(e.__traceback__)[-1]
        echo_error(
            RuntimeError(
                f"unexpected {type(e).__name__} at {os.path.basename(place.filename)}:{place.lineno}. Nothing is known about "
                "the rows. Report this as a bug"
            ),
            "platform-assets: the comparison could not be completed: ",
        )
        sys.exit(EXIT_CODES["undecided"])
    if as_json:
        echo_json(to_json(found))
    else:
        _print(found)
    sys.exit(EXIT_CODES[found.outcome])


def to_json(found: Comparison) -> dict[str, object]:
    """Return a comparison as JSON."""
    return {
        "version": JSON_VERSION,
        "topic": found.topic,
        "table": found.table,
        "outcome": found.outcome,
        "snapshot": found.snapshot,
        "rows": found.rows,
        "key": list(found.key),
        "columns": list(found.columns),
        "not_compared": found.not_compared,
        "counts": {kind: found.counts[kind] for kind in _KINDS},
        "limit": found.limit,
        "differences": [_difference(each) for each in found.differences],
        "reasons": found.why_undecided or found.about_keys,
        "notes": found.notes,
    }


def _difference(each: Difference) -> dict[str, object]:
    values = {name: {"database": there, "lake": here} for name, (there, here) in each.values.items()}
    return {
        "kind": each.kind,
        "key": each.key,
        "columns": list(each.columns),
        **({"values": values} if values else {}),
    }


def _print(found: Comparison) -> None:
    counts = found.counts
    if found.outcome == "equal":
        echo(f"{found.topic}: equal: {found.rows:,} rows of {found.table}, in {len(found.columns):,} columns")
    else:
        numbers = ", ".join(f"{counts[kind]:,} {kind}" for kind in _KINDS if counts[kind])
        echo(f"{found.topic}: {found.outcome}: {numbers or 'no differences'}, of {found.rows:,} rows of {found.table}")
    for each in found.differences[:_SHOWN]:
        key = ", ".join(f"{name}={'null' if text is None else text}" for name, text in each.key.items())
        echo(f"  {each.kind} {key}{': ' if each.columns else ''}{', '.join(each.columns)}")
        for name, (there, here) in each.values.items():
            echo(f"    {name}: {there!r} in the database, {here!r} in the lake")
    if counts.total() > _SHOWN:
        listed = "them" if counts.total() <= _MOST else f"the first {_MOST:,}"
        echo(f"  and {counts.total() - _SHOWN:,} more: `--json --limit {min(counts.total(), _MOST)}` lists {listed}")
    for reason in found.why_undecided or found.about_keys:
        echo(f"  undecided: {reason}")
    for name, why in found.not_compared.items():
        echo(f"  column {name} was not compared: {why}")
    for note in found.notes:
        echo(f"  {note}")
    echo(f"  snapshot {found.snapshot} of the database")
