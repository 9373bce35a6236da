"""`platform-assets erase`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from platform_assets.cli import options

if TYPE_CHECKING:
    from platform_assets.windows.erase.erasing import Ranges

JSON_VERSION: Final = 1


@click.command()
@click.argument("table")
@click.option(
    "--offsets",
    multiple=True,
    metavar="PARTITION:START-END",
    help="Offsets to erase; END is exclusive. This option and the key options can be repeated.",
)
@click.option(
    "--key", "keys", multiple=True, metavar="TEXT", help="Erase all records whose key is TEXT, encoded as UTF-8."
)
@click.option(
    "--key-hex", "hex_keys", multiple=True, metavar="HEX", help="Like --key, but for a binary key, given in hex."
)
@click.option(
    "--key-file",
    "key_files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Like --key, but the key is the whole content of a file and does not get into your shell's history.",
)
@click.option(
    "--generation",
    type=click.IntRange(min=1),
    help="Generation of the topic's log, for --offsets. Default: the newest.",
)
@options.reason("Reason for the erasure. The ledger keeps it, so do not name the person concerned.")
@options.by
@click.option(
    "--past-versions-expire",
    is_flag=True,
    help="If the lake's bucket keeps past versions, confirm that a lifecycle rule eventually deletes them.",
)
@click.option(
    "--forget-keys",
    is_flag=True,
    help=(
        "Do not keep digests of the keys. Records with these keys are then loaded again if they return at other "
        "offsets."
    ),
)
@click.option(
    "--rules-of",
    metavar="TOPIC",
    help="Apply to TABLE the erasures by key that were made for TOPIC, for example after TOPIC was copied to a new name.",
)
@options.dry_run("Report what would be erased, and change nothing.")
@options.yes
@options.as_json(
    "Print JSON: version, topic, accepted, windows, damaged, replays_unfinished, without_raw_row, uncompared, "
    "unreadable, done, past_versions, and derived (tables that are not done yet)."
)
def erase(
    table: str,
    offsets: tuple[str, ...],
    keys: tuple[str, ...],
    hex_keys: tuple[str, ...],
    key_files: tuple[Path, ...],
    generation: int | None,
    reason: str | None,
    by: str | None,
    past_versions_expire: bool,
    forget_keys: bool,
    rules_of: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Erase records of TABLE permanently: from the table, its decoded tables, its replays and all old files.

    TABLE is raw/<topic>, or just the topic's name. Select records by offsets or by keys. Keys are compared with the
    keys in the table. The ledger keeps salted digests of the erased keys. With these, later loads leave out records
    with an erased key in windows that are already sealed, and, in a re-created or copied log, records that were sent
    before the erasure.

    First the offsets are recorded in the ledger. From then on, no load, replay or decoding brings the records back, and
    checks count them as erased. Then each window with such records is written again without them, and the window's
    older files are deleted, so the window cannot be restored from a past version. Other windows keep their past
    versions.

    Derived tables are computed from the remaining records by their next runs, which also delete past files. The command
    names each derived table that is not done yet.

    If an erasure is interrupted, run the command again to continue. Without offsets and keys, the command only
    continues interrupted erasures. Damaged replays are reported, with the fix, after the rest is erased. Records
    in Kafka stay there, including dead letters that were sent to a topic.
    """
    from platform_assets.cli.deciding import deciding, print_decision
    from platform_assets.ledger.decisions import Author

    given = [key.encode() for key in keys] + [_bytes(text) for text in hex_keys] + [f.read_bytes() for f in key_files]
    if offsets and given:
        raise click.UsageError("select records by --offsets or by keys, not by both")
    if generation is not None and not offsets:
        raise click.UsageError("--generation selects the log for --offsets: add --offsets, or leave out --generation")
    if rules_of is not None and (offsets or given or forget_keys or dry_run):
        raise click.UsageError(
            "--rules-of already selects the records: leave out --offsets, keys, --forget-keys and --dry-run"
        )
    ranges = _ranges(offsets)
    author = None if dry_run else Author.of(by, reason)
    decided = deciding(table, author, quiet=as_json, ask=not yes and not as_json)
    if rules_of is not None:
        adopted = decided.adoption(rules_of, past_versions_expire=past_versions_expire)
        if as_json:
            print_decision(JSON_VERSION, decided, adopted)
        return
    found = decided.erasure(
        ranges, given, generation, past_versions_expire=past_versions_expire, forget_keys=forget_keys
    )
    if as_json:
        print_decision(JSON_VERSION, decided, found)


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        # Without the text, because it may be personal data.
        raise click.BadParameter(
            "the key must be hexadecimal, with two digits per byte", param_hint="--key-hex"
        ) from None


def _ranges(texts: tuple[str, ...]) -> Ranges:
    from platform_assets.windows.erase.erasure_ranges import parsed_ranges

    try:
        return parsed_ranges(texts)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--offsets") from e
