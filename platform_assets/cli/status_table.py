"""Terminal output of `platform-assets status`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from platform_assets.checks.decoded import SHARE
from platform_assets.checks.findings import counted
from platform_assets.model.untrusted import line
from platform_assets.orchestration.changes_status import ChangesStatus
from platform_assets.orchestration.decoded_status import DecodedStatus
from platform_assets.orchestration.derived_status import DerivedStatus, InputStatus
from platform_assets.orchestration.health import CheckStatus
from platform_assets.orchestration.retention_check import hours_text
from platform_assets.orchestration.state_status import StateStatus
from platform_assets.orchestration.status import Status, TableStatus
from platform_assets.terminal import console as console_of
from platform_assets.windows.maintain import expiry_text

_COLUMNS = (
    "table",
    "loaded",
    "waiting",
    "failed",
    "records",
    "lag",
    "to watermark",
    "overtaken in",
    "newest window",
    "age",
    "checks",
)
_UNBOUNDED = 10_000
_LEFT = ("table", "newest window", "checks")


def print_status(status: Status, console: Console | None = None, *, attention_first: bool = False) -> None:
    """Print one row per table, or a few lines per table if the rows would be wider than the terminal, and then the
    problems. With `attention_first`, the problems come first."""
    console = console or console_of()
    if attention_first:
        _print_attention(status, console)
    _print_rows(status, console)
    for each in (each for row in status.tables for each in row.upkeep):
        console.print(Text(line(f"{each.table}: last upkeep at {each.at}: {each.text}"), "dim"), soft_wrap=True)
    for row in status.tables:
        if row.keep is not None:
            console.print(Text(line(f"{row.table}: {expiry_text.text(row.keep)}"), "dim"), soft_wrap=True)
    for state in (row.state for row in status.tables if row.state is not None):
        for text in (*_of_deleted(state), *state.waits_for):
            console.print(Text(line(f"{state.table}: {text}"), "dim"), soft_wrap=True)
    for derived in status.derived:
        console.print(Text(line(f"{derived.table}: {_last_run(derived)}"), "dim"), soft_wrap=True)
    if not attention_first:
        _print_attention(status, console)


def _print_rows(status: Status, console: Console) -> None:
    title = line(f"lake tables at {status.at}")
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    rows = [cells for row in status.tables for cells in _all_cells(row)]
    rows += [tuple(map(_cell, _derived_cells(row))) for row in status.derived]
    for cells in rows:
        table.add_row(*cells)
    # A truncated number would be another number.
    if console.measure(table, options=console.options.update(max_width=_UNBOUNDED)).maximum <= console.width:
        console.print(table)
    else:
        _print_lines(title, rows, console)


def _print_attention(status: Status, console: Console) -> None:
    lines = [*([status.spark_error] if status.spark_error else []), *status.left_out]
    lines += [line for row in status.tables for line in _attention(row)]
    lines += [line for row in status.derived for line in _of_derived(row)]
    for text in dict.fromkeys(lines):
        console.print(Text(line(text), "yellow"), soft_wrap=True)


def _all_cells(row: TableStatus) -> Iterator[tuple[Text, ...]]:
    yield tuple(map(_cell, _cells(row)))
    if row.decoded is not None:
        yield tuple(map(_cell, _decoded_cells(row.decoded, row.windows_loaded)))
    if row.changes is not None:
        yield tuple(map(_cell, _changes_cells(row.changes, row.windows_loaded)))
    if row.state is not None:
        made = 0 if row.changes is None else row.changes.windows_made
        yield tuple(map(_cell, _state_cells(row.state, made)))


def _cell(content: str | Text) -> Text:
    return content if isinstance(content, Text) else Text(line(content))


def _cells(row: TableStatus) -> tuple[str | Text, ...]:
    return (
        f"{row.table} (paused)" if row.paused else row.table,
        f"{row.windows_loaded:,}/{row.windows_sealed:,}",
        f"{row.windows_waiting:,}",
        Text(f"{row.windows_failed:,}", "bold red") if row.windows_failed else "0",
        f"{row.rows:,}",
        _number(row.lag),
        _number(row.lag_to_high_watermark),
        "–" if row.hours_left is None else hours_text(row.hours_left),
        row.newest_window or "none",
        _age(row.newest_window_age_seconds),
        _checks(row.checks),
    )


def _decoded_cells(row: DecodedStatus, loaded: int) -> tuple[str | Text, ...]:
    """Return the cells of a decoded table. The total number of windows is that of the raw table; only records that
    became rows are counted."""
    return (
        row.table,
        f"{row.windows_decoded:,}/{loaded:,}",
        f"{row.windows_waiting:,}",
        Text(f"{row.windows_failed:,}", "bold red") if row.windows_failed else "0",
        f"{row.rows:,}",
        "",
        "",
        "–",
        row.newest_window or "none",
        "",
        _checks(row.checks, may_warn=True),
    )


def _changes_cells(row: ChangesStatus, loaded: int) -> tuple[str | Text, ...]:
    """Return the cells of a table of changes. The total number of windows is that of the raw table."""
    return (
        row.table,
        f"{row.windows_made:,}/{loaded:,}",
        f"{row.windows_waiting + row.windows_stale:,}",
        "0",
        f"{row.rows:,}",
        "",
        "",
        "–",
        row.newest_window or "none",
        "",
        _checks(row.checks, may_warn=True),
    )


def _state_cells(row: StateStatus, made: int) -> tuple[str | Text, ...]:
    """Return the cells of a state. The total number of windows is that of the table of changes."""
    return (
        row.table,
        f"{max(made - row.pending_windows, 0):,}/{made:,}",
        f"{row.pending_windows:,}",
        "0",
        f"{row.rows:,}",
        "",
        "",
        "–",
        row.through or "none",
        "",
        _checks(row.checks, may_warn=True),
    )


def _derived_cells(row: DerivedStatus) -> tuple[str | Text, ...]:
    """Return the cells of a derived table, which has no windows."""
    return (row.table, "", "", "", f"{row.rows:,}", "", "", "–", "", "", _checks(row.checks, may_warn=True))


def _last_run(row: DerivedStatus) -> str:
    """Return when the last run committed and what it computed, and the inputs with newer versions."""
    missing = [each.table for each in row.inputs if each.newest is None]
    behind = [_behind(each) for each in row.inputs if each.is_behind]
    if row.committed_at is None:
        return "no run yet" + (f"; waits for {', '.join(missing)}, without rows yet" if missing else "")
    what = "all rows" if row.groups is None else counted(row.groups, "group")
    if row.query_changed:
        behind.insert(0, "its changed query")
    current = f"not in it: {', '.join(behind)}" if behind else "its inputs have no newer version"
    return f"last commit at {row.committed_at}, computed {what}; {current}"


def _behind(each: InputStatus) -> str:
    if each.version is None or each.newest is None or each.newest <= each.version:
        return f"changes of {each.table}"
    return f"{counted(each.newest - each.version, 'version')} of {each.table}"


def _of_derived(row: DerivedStatus) -> Iterator[str]:
    yield from (f"{row.table}: {problem}" for problem in (*([row.error] if row.error else []), *row.problems))
    yield from (f"{row.table}: {check.name}: {check.headline}" for check in row.checks if check.passed is False)


def _print_lines(title: str, rows: Iterable[tuple[Text, ...]], console: Console) -> None:
    console.print(Text(title, "italic"), soft_wrap=True)
    for name, loaded, waiting, failed, records, lag, watermark, overtaken, window, age, checks in rows:
        console.print(Text(f"\n{name}", "bold"), soft_wrap=True)
        facts: tuple[tuple[str | Text, ...], ...] = (
            *(((loaded, " windows loaded, ", waiting, " waiting, ", failed, " failed"),) if loaded else ()),
            (records, " records", *((", lag ", lag) if lag else ())),
            *(((("lag to the high watermark ", watermark),)) if watermark else ()),
            *(() if overtaken.plain == "–" else (("retention may reach unloaded records in ", overtaken),)),
            *((("newest window ", window, *((", ", age, " old") if age else ())),) if window else ()),
            ("checks: ", checks),
        )
        for fact in facts:
            console.print(Text.assemble("  ", *fact), soft_wrap=True)


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _checks(checks: tuple[CheckStatus, ...], *, may_warn: bool = False) -> str | Text:
    failed = [c.name for c in checks if c.failed or (c.warning and not may_warn)]
    if failed:
        return Text(line(f"{', '.join(failed)} FAILED"), "bold red")
    if warning := [c.name for c in checks if c.warning]:
        return Text(line(f"{', '.join(warning)} WARNS"), "yellow")
    passed = sum(c.passed is True for c in checks)
    return Text(f"{passed} passed", "green") if passed == len(checks) else f"{passed} of {len(checks)} ran"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _named(row: TableStatus) -> str:
    named = " ".join(w.window for w in row.unloaded[:3])
    return f"`platform-assets load {row.table} {named}`" + (" …" if len(row.unloaded) > 3 else "")


def _attention(row: TableStatus) -> list[str]:
    # Problems of the brokers are the same for every table; others name the topic.
    lines = [row.broker_error] if row.broker_error else []
    lines += [f"{row.table}: {text}" for text in (row.error, row.warning) if text]
    lines += [f"{row.table}: {problem}" for problem in row.problems]
    if row.windows_failed and not row.problems:
        lines.append(
            f"{row.table}: {row.windows_failed:,} sealed windows are not loaded; to load them, run {_named(row)}"
        )
    parked = [w for w in row.unloaded if w.state == "parked"]
    if row.windows_parked:
        named = "; ".join(f"{w.window} {w.error}" for w in parked[:3])
        lines.append(
            f"{row.table}: {row.windows_parked:,} windows parked: {named}. `platform-assets unpark` brings them back"
        )
    lines += [f"{row.table}: {c.name}: {c.headline}" for c in row.checks if c.passed is False]
    lines += [] if row.decoded is None else list(_of_decoded(row.decoded, row.topic))
    lines += [] if row.changes is None else list(_of_changes(row.changes))
    return lines + ([] if row.state is None else list(_of_state(row.state)))


def _of_deleted(row: StateStatus) -> Iterator[str]:
    if row.collected is not None:
        yield f"{counted(row.deleted_keys, 'deleted key')} kept; those deleted up to window {row.collected} are not"


def _of_state(row: StateStatus) -> Iterator[str]:
    yield from (f"{row.table}: {problem}" for problem in row.problems)
    yield from (f"{row.table}: {check.name}: {check.headline}" for check in row.checks if check.passed is False)


def _of_changes(row: ChangesStatus) -> Iterator[str]:
    yield from (f"{row.table}: {problem}" for problem in row.problems)
    if row.windows_stale:
        yield (
            f"{row.table}: the changes of {counted(row.windows_stale, 'window')} were made from an earlier load of the decoded "
            f"window or with an earlier declaration; the sensor requests them, or run `platform-assets load {row.table} --stale`"
        )
    yield from (f"{row.table}: {check.name}: {check.headline}" for check in row.checks if check.passed is False)


def _of_decoded(row: DecodedStatus, topic: str) -> Iterator[str]:
    for problem in row.problems:
        yield f"{row.table}: {problem}"
    if row.windows_stale:
        yield (
            f"{row.table}: {counted(row.windows_stale, 'window')} decoded with an earlier declaration; to decode "
            f"them again, materialize them or run `platform-assets load {row.table} WINDOW`"
        )
    not_passed = [c for c in row.checks if c.passed is False]
    for check in not_passed:
        yield f"{row.table}: {check.name}: {check.headline}"
    if row.recent_dead_letters and SHARE not in {c.name for c in not_passed}:
        yield (
            f"dead_letters/{topic}: {row.recent_dead_letters:,} of {counted(row.recent_records, 'record')} in the newest "
            f"{counted(row.recent_windows, 'window')}; {row.dead_letters:,} in all: `platform-assets dead-letters {topic}` shows them"
        )
