"""`platform-assets dead-letters`."""

from __future__ import annotations

from dataclasses import asdict

import click

from platform_assets.cli import options
from platform_assets.terminal import echo, echo_json

JSON_VERSION = 1


@click.command("dead-letters")
@click.argument("table")
@click.argument("windows", nargs=-1, metavar="[WINDOW]...")
@click.option(
    "--samples",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Number of samples to show for each kind of dead letter.",
)
@options.as_json("Print JSON: version, table, windows, records, dead_letters, groups, others, sent.")
@click.option(
    "--send-to",
    metavar="TOPIC",
    help="Also send the dead letters to this Kafka topic. Each is sent only once, even if you run the command again.",
)
def dead_letters(table: str, windows: tuple[str, ...], samples: int, as_json: bool, send_to: str | None) -> None:
    """Show which records of TABLE could not be decoded: their numbers by reason and place, and samples.

    TABLE is dead_letters/<topic>, or just the topic's name. Without a WINDOW, all decoded windows are included. Keys
    and values are shortened, and escaped if they are not text. To decode such records, correct `decode:` in the topic's
    YAML and load the windows again (`platform-assets load decoded/<topic> WINDOW`). The records that can then be
    decoded move to the decoded table.

    With --send-to, key, value and headers of each record are sent unchanged, followed by additional headers named
    dead_letter.…. The topic must exist. The command creates a compacted topic, TOPIC.sent, which records what was sent.
    """
    from platform_assets.checks.findings import counted
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import table_of
    from platform_assets.errors import ConfigurationError
    from platform_assets.kafka.outbox import Outbox
    from platform_assets.lake import holdings
    from platform_assets.lake.dead_letters import Groups, groups
    from platform_assets.model.windows import edge_of
    from platform_assets.windows.decode.sending import send

    for window in windows:
        edge_of(window)
    declaration, _ = table_of(table)
    environment = Environment.of_process()
    ledger = environment.ledger()
    wanted = list(windows) or None
    letters = ledger.receipts(declaration.dead_letter_table, wanted)
    decoded = ledger.receipts(declaration.decoded_table, wanted)
    if missing := [key for key in windows if key not in letters]:
        raise ConfigurationError(
            f"windows {missing} of {declaration.decoded_table} are not decoded yet; to decode one, run `platform-assets load "
            f"{declaration.decoded_table} {missing[0]}`"
        )
    keys = sorted(key for key, receipt in letters.items() if receipt.rows)
    found = groups(ledger.lake.table(declaration.dead_letter_table), keys, samples) if keys else Groups()
    dead = sum(r.rows for r in letters.values())
    records = dead + sum(decoded[key].rows for key in letters if key in decoded)
    sent = None
    if send_to is not None:
        folder = ledger.lake.table(declaration.dead_letter_table)
        versions = {
            key: holdings.version_with(folder, key, letters[key].files_digest, version)
            for key in keys
            if (version := letters[key].table_version) is not None
        }
        outbox = Outbox(environment.cluster(), declaration.topic, send_to)
        sent = send(outbox, folder, versions)
    if as_json:
        whole = {
            "version": JSON_VERSION,
            "table": declaration.dead_letter_table.name,
            "windows": {key: letters[key].rows for key in keys},
            "records": records,
            "dead_letters": dead,
            "groups": [asdict(group) for group in found.listed],
            "others": found.others,
            "sent": None if sent is None else {"topic": send_to, **asdict(sent)},
        }
        echo_json(whole)
        return
    share = f" ({dead / records:.3%})" if records else ""
    echo(
        f"{declaration.dead_letter_table}: {dead:,} of {counted(records, 'record')} in "
        f"{counted(len(letters), 'window')}{share}"
    )
    for group in found.listed:
        place = f" at {group.place}" if group.place else ""
        echo()
        echo(f"{group.reason}{place} ({group.side}): {group.count:,} ({group.count / dead:.1%} of the dead letters)")
        for sample in group.samples:
            content = sample.key if group.side == "key" else sample.value
            echo(f"  {sample.window} partition {sample.partition} offset {sample.offset}: {sample.detail}")
            echo(f"    {group.side}: {content}")
    if found.others:
        echo()
        echo(f"and {found.others:,} of other kinds; only {len(found.listed)} kinds are listed")
    if sent is not None:
        echo()
        echo(f"sent to {send_to}: {sent.now:,}; {sent.before:,} had been sent before")
