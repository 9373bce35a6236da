"""Windows that `load` loads: named by key or as a range, or chosen by options."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from platform_assets.errors import ConfigurationError, UnknownWindowError

if TYPE_CHECKING:
    from platform_assets.cli.environment import Environment
    from platform_assets.ledger.store import Ledger
    from platform_assets.model.declaration import TopicDeclaration
    from platform_assets.model.tables import TableRef


@dataclass(frozen=True, slots=True)
class Choice:
    """Windows as the user specified them. `named` has keys or ranges A..B; if it is empty, all windows are meant. Each
    option narrows the choice."""

    named: tuple[str, ...]
    stale: bool = False
    dead_letters: bool = False
    failed: bool = False

    @property
    def has_options(self) -> bool:
        """True if options choose the windows."""
        return self.stale or self.dead_letters or self.failed

    @property
    def text(self) -> str:
        """The options, as the user writes them."""
        given = {"--stale": self.stale, "--dead-letters": self.dead_letters, "--failed": self.failed}
        return " ".join(option for option, is_given in given.items() if is_given)


def chosen_windows(
    choice: Choice, declaration: TopicDeclaration, target: TableRef, environment: Environment
) -> list[str]:
    """Return the keys of the windows to load into `target`: in the given order or, if there is an option, oldest first.

    Without an option, keys are not looked up, because the load reports any problem with them. Raises WindowKeyError,
    UnknownWindowError for a range without windows, and ConfigurationError for an option that does not apply to the
    table.
    """
    ledger = environment.ledger()
    named = _named(choice.named, declaration, target, ledger)
    if not choice.has_options:
        return named
    found = [_option(name, declaration, target, environment, ledger) for name in choice.text.split()]
    common = set.intersection(*(set(keys) for keys in found))
    return sorted(common.intersection(named) if choice.named else common)


def _named(names: Sequence[str], declaration: TopicDeclaration, target: TableRef, ledger: Ledger) -> list[str]:
    from platform_assets.model.windows import edge_of
    from platform_assets.windows.replay.replaying import ByKeys, find

    found: list[str] = []
    for name in names:
        if ".." not in name:
            edge_of(name)
            found.append(name)
            continue
        keys = [window.key for window in find(ByKeys((name,)), declaration.topic, ledger).windows]
        if target.kind != "raw":
            # Windows that are not in the source table cannot be decoded, or have no changes.
            is_changes = target.kind == "changes"
            source = declaration.decoded_table if is_changes else declaration.raw_table
            verb = "make changes from" if is_changes else "decode"
            loaded = _in_table(source, ledger)
            keys = [key for key in keys if key in loaded]
            if not keys:
                reason = f"{source} has no loaded window in this range, so there is nothing to {verb}"
                raise UnknownWindowError(declaration.topic, name, reason)
        found += keys
    return list(dict.fromkeys(found))


def _in_table(table: TableRef, ledger: Ledger) -> set[str]:
    return set(ledger.commit_rows(table, columns=["window"])["window"].to_pylist())


def _option(
    option: str, declaration: TopicDeclaration, target: TableRef, environment: Environment, ledger: Ledger
) -> Collection[str]:
    if option == "--failed":
        return _failed(declaration, target, environment, ledger)
    if target.kind == "raw" or declaration.decode is None:
        raise ConfigurationError(
            f"{option} applies only to decoded tables, but {target} is not one: use decoded/{declaration.topic}"
            + ("" if declaration.decode else f", after adding `decode:` to the YAML of topic {declaration.topic!r}")
        )
    if option == "--stale" and target.kind == "changes":
        from platform_assets.windows.change.changing import stale_windows as outdated

        return outdated(ledger, declaration)
    if option == "--stale":
        from platform_assets.orchestration.decoded_status import stale_windows

        return stale_windows(declaration, declaration.decode, ledger, datetime.now(UTC))
    letters = ledger.commit_rows(declaration.dead_letter_table, columns=["rows"]).to_pylist()
    return {row["window"] for row in letters if row["rows"]}


def _failed(
    declaration: TopicDeclaration, target: TableRef, environment: Environment, ledger: Ledger
) -> Collection[str]:
    from platform_assets.orchestration.health import failed_windows

    instance = environment.instance()
    if instance is None:
        raise ConfigurationError(
            "--failed needs Dagster's records of failed runs, but there is no Dagster instance in DAGSTER_HOME. "
            "Set DAGSTER_HOME, for "
            'example with `eval "$(platform-assets env)"`, or give the windows as arguments: `platform-assets '
            "status` lists those that "
            "are not loaded"
        )
    if target.kind != "raw" and declaration.decode is None:
        raise ConfigurationError(
            f"topic {declaration.topic!r} has no `decode:` in its YAML, so it has no table {target}: add `decode:`, or use "
            f"raw/{declaration.topic}"
        )
    if target.kind == "raw":
        return failed_windows(declaration, declaration.raw_table, ledger, instance)
    # Windows that are not in the raw table cannot be decoded.
    loaded = _in_table(declaration.raw_table, ledger)
    of = declaration.changes_table if target.kind == "changes" else declaration.decoded_table
    return loaded.intersection(failed_windows(declaration, of, ledger, instance))


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """A window to load, and the numbers of rows and dead letters that the tables now have for this window. The numbers
    are None if the tables do not have the window."""

    window: str
    rows: int | None
    dead_letters: int | None

    @property
    def text(self) -> str:
        """A line of a dry run."""
        if self.rows is None:
            return f"{self.window}: not loaded yet"
        letters = "" if self.dead_letters is None else f", {self.dead_letters:,} dead letters"
        return f"{self.window}: currently {self.rows:,} rows{letters}"


def plan_of(keys: Sequence[str], declaration: TopicDeclaration, target: TableRef, ledger: Ledger) -> list[PlannedLoad]:
    """Return what the tables now have for each of the windows to load."""
    is_raw = target.kind == "raw"
    only_rows = is_raw or target.kind == "changes"
    rows = ledger.receipts(target if only_rows else declaration.decoded_table, keys)
    letters = {} if only_rows else ledger.receipts(declaration.dead_letter_table, keys)
    return [
        PlannedLoad(key, rows[key].rows if key in rows else None, letters[key].rows if key in letters else None)
        for key in keys
    ]
