"""`platform-assets fold`."""

from __future__ import annotations

import click

from platform_assets.cli import options
from platform_assets.terminal import console, echo, echo_json

JSON_VERSION = 1


@click.command()
@click.argument("table", metavar="TOPIC")
@click.option("--rebuild", is_flag=True, help="Make the state from all changes, instead of applying the pending ones.")
@click.option("--dry-run", is_flag=True, help="Only print what would be folded.")
@options.as_json(
    "Print JSON: version, table, made, reason, windows, changes, rows, deleted, collected, history, through, seconds."
)
def fold(table: str, rebuild: bool, dry_run: bool, as_json: bool) -> None:
    """Apply the pending changes of TOPIC to state/<topic> now, as its sensor's runs do, and to its history if it has one.

    TOPIC is a topic with `state` in its YAML, or its table state/<topic>. The command needs neither Kafka nor Spark. The
    state is made from all changes if it is new, if its declaration has changed, or if the log no longer shows what
    changed; the reason is printed. It is safe to run this command at any time, more than once, and to interrupt it. The
    fold is not reported to Dagster.
    """
    from platform_assets.checks.findings import counted
    from platform_assets.cli.audit_table import progress
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import state_of
    from platform_assets.orchestration.state_definitions import summary
    from platform_assets.windows.state.folding import TopicState

    declaration, state = state_of(table)
    name = declaration.state_tables[0].name
    found = TopicState(declaration.topic, state, Environment.of_process().ledger().lake, "command")
    if dry_run:
        pending = found.pending()
        reason = pending.rebuild or ("requested" if rebuild else "")
        made = "rebuild" if reason else "fold" if pending.windows else "unchanged"
        if as_json:
            echo_json(
                {
                    "version": JSON_VERSION,
                    "table": name,
                    "made": made,
                    "reason": reason,
                    "windows": list(pending.windows),
                    "changes": pending.rows,
                    "rows": pending.state_rows,
                    "deleted": None,
                    "collected": pending.collected or None,
                    "history": pending.history_rows if state.history else None,
                    "through": pending.through,
                    "seconds": None,
                }
            )
            return
        what = f"{counted(pending.rows, 'change')} of {counted(len(pending.windows), 'window')}"
        if pending.waits:
            echo(f"{name}: nothing can be folded yet: {pending.waits}")
        elif made == "rebuild":
            echo(f"{name}: would be made from all changes: {reason}")
        elif made == "unchanged":
            echo(f"{name}: nothing to apply; it has {pending.state_rows:,} rows, through window {pending.through}")
        else:
            due = "now" if pending.is_due else "once more changes are pending"
            echo(f"{name}: {what} would be applied; the sensor requests this {due}")
        return
    with progress(console(stderr=True)) as show:
        done = found.fold(rebuild=rebuild, progress=lambda at, of: show(f"{at:,} of {counted(of, 'part')} written"))
    if as_json:
        echo_json(
            {
                "version": JSON_VERSION,
                "table": name,
                "made": done.made,
                "reason": done.reason,
                "windows": list(done.windows),
                "changes": done.changes,
                "rows": done.rows,
                "deleted": done.deleted,
                "collected": done.collected or None,
                "history": done.history,
                "through": done.through,
                "seconds": round(done.seconds, 3),
            }
        )
        return
    echo(f"{name}: {summary(done)}")
