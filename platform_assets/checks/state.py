"""Checks of a topic's state: it has every window, each key once, and the row of each key that counts.

They share no code with folds beyond opening and reading tables: keys are compared by their values instead of hashes, and
the row that counts is found by comparing tuples.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.checks.audit import Audit, CheckOutcome
from platform_assets.checks.findings import CheckResult, Finding, counted
from platform_assets.errors import FilesLostError, PlatformError
from platform_assets.lake import delta_log, new_tables, state_table
from platform_assets.lake.state_table import FoldMetadata, Opened
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.snapshots import Attempt
from platform_assets.model.state import StateDeclaration
from platform_assets.model.windows import Span
from platform_assets.windows.state.changes_source import ChangesSource
from platform_assets.windows.state.folding import TopicState

ONE_ROW: Final = "one_row_per_key"
COMPLETE: Final = "state_is_complete"
EQUALS: Final = "state_equals_rebuild"
HISTORY: Final = "history_equals_changes"
"""Name of the check of each history."""
NAMES: Final = (COMPLETE, ONE_ROW, EQUALS)
"""Names of the checks of each state."""
DEEP: Final = "state_made_again"
KEYS: Final = 200
"""Number of keys that a check compares if it does not compare all."""
MOST_ROWS: Final = 2_000_000
"""Number of rows of a table up to which a check reads all of them."""
_BLOCK_ROWS: Final = 1 << 16

Key = tuple[Any, ...]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """A state and its changes as they were when they were opened, with the ledger's entries. `applied` has the table
    version and the rows of each window's changes; `decoded` has the decoded windows that have rows."""

    declaration: TopicDeclaration
    state: StateDeclaration
    live: Opened
    dead: Opened
    source: ChangesSource
    pending: frozenset[str]
    rebuild: str
    has_replaced: bool
    history: Opened | None
    applied: Mapping[str, tuple[int, int]]
    decoded: frozenset[str]

    @property
    def folds(self) -> tuple[FoldMetadata, FoldMetadata] | None:
        """The newest fold of both tables; None if one of the tables has none."""
        if self.live.fold is None or self.dead.fold is None:
            return None
        return self.live.fold, self.dead.fold

    @property
    def snapshots(self) -> tuple[Attempt, ...]:
        """The attempts at a snapshot that the newest fold names."""
        return () if self.folds is None else self.folds[1].snapshots

    @property
    def collected(self) -> str:
        """The window up to which deleted keys are no longer kept; an empty text if all are."""
        return max((fold.collected for fold in self.folds or ()), default="")


def facts_of(declaration: TopicDeclaration, state: StateDeclaration, ledger: Ledger) -> Facts | None:
    """Open a state; None if it was not made yet. Raises whatever reading the tables or the ledger raises."""
    topic = TopicState(declaration.topic, state, ledger.lake)
    if not topic.exists or not new_tables.is_made(topic.live_folder):
        return None
    # Read first: changes that come later are then changes that the state may lack.
    names = ["window", "table_version", "rows"]
    rows = ledger.commit_rows(declaration.changes_table, columns=names).select(names)
    found: dict[str, tuple[int, int]] = {}
    for window, version, number in zip(*(rows[n].to_pylist() for n in names), strict=True):
        if version is not None:
            found[window] = (version, found.get(window, (0, 0))[1] + number)
    decoded = ledger.commit_rows(declaration.decoded_table, columns=names)
    decoded = decoded.filter(pc.and_(pc.is_valid(decoded["table_version"]), pc.greater(decoded["rows"], 0)))
    opened = topic.opened()
    return Facts(
        declaration,
        state,
        opened.live,
        opened.dead,
        opened.source,
        opened.plan.windows,
        opened.plan.rebuild,
        opened.plan.replaces,
        opened.history,
        found,
        frozenset(decoded["window"].to_pylist()),
    )


def results(
    declaration: TopicDeclaration, state: StateDeclaration, ledger: Ledger, *, seed: str, whole: bool = False
) -> Iterator[CheckResult]:
    """Evaluate all checks. Large tables are sampled with `seed`, unless `whole`."""
    table = declaration.state_tables[0]
    try:
        facts = facts_of(declaration, state, ledger)
    except PlatformError as e:
        yield from _all_undecided(declaration, str(e))
        return
    if facts is None:
        yield from _all_undecided(
            declaration, f"{table} was not made yet: run `platform-assets fold {declaration.topic}`"
        )
        return
    checks: tuple[tuple[str, Callable[[Facts], CheckResult]], ...] = (
        (COMPLETE, complete),
        (ONE_ROW, partial(one_row_per_key, seed=seed, whole=whole)),
        (EQUALS, partial(equals_rebuild, seed=seed)),
        *(((HISTORY, partial(history_equals_changes, seed=seed)),) if state.history else ()),
    )
    for name, check in checks:
        try:
            yield check(facts)
        except FilesLostError as e:
            yield _lost(name, facts, e)
        except PlatformError as e:
            yield _undecided(name, declaration, str(e))


def _lost(name: str, facts: Facts, error: FilesLostError) -> CheckResult:
    """Return the result of a check that could not read files: an error for those of the state, unless a fold has replaced
    them in the meantime."""
    d, sides = facts.declaration, [side for side in (facts.live, facts.dead, facts.history) if side is not None]
    is_own = error.table in (state_table.name_of(side.folder) for side in sides)
    if not is_own or any(delta_log.newest_version(side.folder) != side.version for side in sides):
        return _undecided(name, d, str(error))
    text = f"data files of {error.table} are missing or damaged: {error.detail}"
    found = _finding(facts, "", text, f"Run `platform-assets fold {d.topic} --rebuild`.")
    return CheckResult(name, d.state_tables[2 if name == HISTORY else 0], (found,), text, ())


def complete(facts: Facts) -> CheckResult:
    """Check that every window of the changes up to the newest one is in the state. Reads the ledger and the tables'
    logs, and no data."""
    d, table, folds = facts.declaration, facts.declaration.state_tables[0], facts.folds
    again = f"Run `platform-assets fold {d.topic} --rebuild`."
    if folds is None:
        if facts.live.version == 0 or facts.dead.version == 0:
            return _undecided(COMPLETE, d, f"{table} was never folded")
        text = "another program has changed its rows since the newest fold, or its log no longer has that fold"
        return CheckResult(COMPLETE, table, (_finding(facts, "", text, again),), f"{table}: {text}", ())
    if facts.rebuild:
        return _undecided(COMPLETE, d, f"the next fold makes it from all changes: {facts.rebuild}")
    found, live = list[Finding](), folds[0]
    for opened, ref in zip((facts.live, facts.dead, facts.history), d.state_tables, strict=False):
        if opened is None or (fold := opened.fold) is None:
            continue
        rows = pc.sum(opened.files()["num_records"]).as_py() or 0
        if rows != fold.rows:
            text = f"the files of {ref} have {rows:,} rows, but its newest fold committed {fold.rows:,}"
            found.append(_finding(facts, "", text, again))
    seen = min(fold.changes.version for fold in folds)
    pending = {window for window, (version, _) in facts.applied.items() if version > seen} | facts.pending
    applied = {window: rows for window, (_, rows) in facts.applied.items() if window not in pending}
    through = max(applied, default="")
    if not pending and not found:
        # Each window has a key at most once, and each row of the state is a change.
        keys = live.rows + folds[1].rows
        # A run that is killed before it records a receipt leaves changes that a fold applies. Changes may also be lost.
        held = facts.source.rows_by_window()
        both = [(applied.get(window, 0), held.get(window, 0)) for window in {*applied, *held}]
        most = sum(map(max, both))
        # A truncate deletes keys of any number of windows, and deleted keys may be kept for a time only.
        is_whole = not facts.state.has_truncates and not facts.collected
        least = max(map(min, both), default=0) if is_whole else 0
        if not least <= keys <= most:
            text = f"it has {keys:,} live and deleted keys, but its changes have from {least:,} to {most:,}"
            found.append(_finding(facts, "", text, again))
    late = sorted(window for window in pending if window < through)
    missing = sorted(window for window in facts.decoded - set(facts.applied) if window < through)
    found += [
        Finding(
            "could not tell", d.topic, window, None, (), "its changes were made or replaced after the newest fold",
            f"The topic's sensor requests the fold, or run `platform-assets fold {d.topic}`.",
        )
        for window in late
    ]  # fmt: skip
    found += [
        Finding(
            "could not tell", d.topic, window, None, (), "it is decoded, but its changes are not made",
            f"The topic's sensor requests them, or run `platform-assets load {d.changes_table} {window}`.",
        )
        for window in missing
    ]  # fmt: skip
    headline = (
        f"{table} is wrong or incomplete"
        if any(f.alarming for f in found)
        else f"{counted(len(late) + len(missing), 'window')} up to {through} not applied yet"
        if found
        else f"{counted(len(applied), 'window')} up to {through or 'none'} applied, {len(pending):,} newer ones pending"
    )
    figures = (("windows", len(applied)), ("pending", len(pending)), ("rows", live.rows), ("deleted", folds[1].rows))
    return CheckResult(COMPLETE, table, tuple(found), headline, figures)


def one_row_per_key(facts: Facts, *, seed: str, whole: bool = False) -> CheckResult:
    """Check that each key is in one row of both tables together. Of large tables, some keys are looked up in all files,
    unless `whole`."""
    d, table, key = facts.declaration, facts.declaration.state_tables[0], list(facts.state.key)
    if facts.rebuild and facts.folds is not None:
        # Its rows may have other key columns than those that are declared now.
        return _undecided(ONE_ROW, d, f"the next fold makes it from all changes: {facts.rebuild}")
    sides = (facts.live, facts.dead)
    rows = sum(pc.sum(side.files()["num_records"]).as_py() or 0 for side in sides)
    wanted: set[Key] | None = None
    if rows > MOST_ROWS and not whole:
        chosen = random.Random(seed)
        wanted = _chosen((b for side in sides for b in _key_blocks(side, key)), key, chosen)
    parts = [
        block if wanted is None else _among(block, key, wanted) for side in sides for block in _key_blocks(side, key)
    ]
    keys = pa.Table.from_batches([b for b in parts if b.num_rows], None) if any(b.num_rows for b in parts) else None
    twice = [] if keys is None else _twice(keys, key)
    again = f"Run `platform-assets fold {d.topic} --rebuild`, and report this."
    found = []
    # A fold that ended between its two commits leaves keys in both tables, which the next fold decides.
    is_between = facts.folds is not None and facts.folds[0].fold_id != facts.folds[1].fold_id
    if twice and is_between:
        return _undecided(ONE_ROW, d, "the last fold ended between its two commits; the next one completes it")
    if twice:
        text = f"{counted(len(twice), 'key')} in more than one row, for example {_text(twice[0], key)}"
        found.append(_finding(facts, "", text, again))
    number = rows if wanted is None else len(wanted)
    headline = found[0].detail if found else f"{number:,} of {rows:,} keys compared: each is in one row"
    return CheckResult(ONE_ROW, table, tuple(found), headline, (("keys", number), ("twice", len(twice))))


def equals_rebuild(facts: Facts, *, seed: str) -> CheckResult:
    """Check that some keys have the row that counts among all changes. If there are many changes, only those of the
    newest windows are read: the row must then be one of them, or come from an earlier window and count more."""
    d, table, state, folds = facts.declaration, facts.declaration.state_tables[0], facts.state, facts.folds
    if folds is None or facts.rebuild:
        return _undecided(EQUALS, d, f"the next fold makes it from all changes: {facts.rebuild}")
    if folds[0].fold_id != folds[1].fold_id:
        return _undecided(EQUALS, d, "the last fold ended between its two commits; the next one completes it")
    chosen, key = random.Random(seed), list(state.key)
    read = _read_windows(facts)
    columns = pa.schema([f.remove_metadata() for f in facts.source.columns if f.name != "topic_id"])
    keys_only = pa.schema([f for f in columns if f.name in (*key, "window")])
    sides = (facts.live, facts.dead)
    keys = _chosen(map(_with_numbers, facts.source.blocks(keys_only, read)), key, chosen)
    keys |= _chosen((b for side in sides for b in _key_blocks(side, key)), key, chosen)
    if state.has_truncates:
        keys.add(_no_key(key))
    best: dict[Key, Row] = {}
    for row in _rows(map(_with_numbers, facts.source.blocks(columns, read)), key, keys):
        now = best.get(_key(row, key))
        if now is None or _counts_more(row, now, state):
            best[_key(row, key)] = row
    standing: dict[Key, tuple[bool, Row]] = {}
    for opened, is_dead in zip(sides, (False, True), strict=True):
        blocks = (b for path in opened.files()["path"].to_pylist() for b in _blocks(opened, path))
        for row in _rows(blocks, key, keys):
            standing[_key(row, key)] = (is_dead, row)
    wrong, compared = list[str](), 0
    truncate = standing[_no_key(key)][1] if _no_key(key) in standing else None
    swept = max((first for first, _ in _snapshots(facts, read)), default=None)
    for each in sorted(keys, key=repr):
        expected, found = best.get(each), standing.get(each)
        if swept is not None and each != _no_key(key):
            if expected is not None and _position(expected) < swept:
                expected = None
            if found is not None and _position(found[1]) < swept:
                wrong.append(f"{_text(each, key)} has a row from before the snapshot that began in window {swept[1]}")
                continue
        if truncate is not None and each != _no_key(key):
            if expected is not None and _counts_more(truncate, expected, state):
                expected = None
            if found is not None and _counts_more(truncate, found[1], state):
                wrong.append(f"{_text(each, key)} has a row from before the truncate in window {truncate['window']}")
                continue
        if found is not None and found[1]["window"] in facts.pending:
            continue
        compared += 1
        if found is None and expected is not None and expected["deleted"] and expected["window"] <= facts.collected:
            continue
        if (text := _difference(expected, found, read, state)) is not None:
            wrong.append(f"{_text(each, key)} {text}")
    findings = []
    if wrong:
        again = f"Run `platform-assets fold {d.topic} --rebuild`, and `platform-assets audit {table} --deep`."
        detail = f"{len(wrong):,} of {counted(compared, 'key')} differ from the changes, for example {wrong[0]}"
        findings.append(_finding(facts, "", detail, again))
    headline = (
        findings[0].detail if findings else f"{counted(compared, 'key')} compared with the changes: all are equal"
    )
    return CheckResult(EQUALS, table, tuple(findings), headline, (("keys", compared), ("different", len(wrong))))


def history_equals_changes(facts: Facts, *, seed: str) -> CheckResult:
    """Check that the rows of some keys are those that counted one after another among all changes. If there are many
    changes, only those of the newest windows are read, and the rows of earlier windows are taken as they are."""
    d, state, key, history = facts.declaration, facts.state, list(facts.state.key), facts.history
    if facts.folds is None or facts.rebuild or history is None or history.fold is None:
        return _undecided(HISTORY, d, f"the next fold makes it from all changes: {facts.rebuild}")
    if len({facts.folds[0].fold_id, facts.folds[1].fold_id, history.fold.fold_id}) > 1:
        return _undecided(HISTORY, d, "the last fold ended between its commits; the next one completes it")
    if facts.pending and facts.has_replaced:
        return _undecided(HISTORY, d, "windows that are in it were replaced since")
    read, chosen = _read_windows(facts), random.Random(seed)
    columns = pa.schema([f.remove_metadata() for f in facts.source.columns if f.name != "topic_id"])
    keys_only = pa.schema([f for f in columns if f.name in (*key, "window")])
    keys = _chosen(map(_with_numbers, facts.source.blocks(keys_only, read)), key, chosen)
    keys |= _chosen(_key_blocks(history, key), key, chosen)
    keys.add(_no_key(key))
    standing: dict[Key, list[Row]] = {each: [] for each in keys}
    for path in history.files()["path"].to_pylist():
        for row in _rows(_blocks(history, path), key, keys):
            standing[_key(row, key)].append(row)
    changes: dict[Key, list[Row]] = {
        each: [r for r in rows if r["window"] not in read] for each, rows in standing.items()
    }
    for row in _rows(map(_with_numbers, facts.source.blocks(columns, read)), key, keys):
        changes[_key(row, key)].append(row)
    truncates = sorted(_position(row) for row in changes[_no_key(key)])
    snapshots = _snapshots(facts, read)
    wrong = list[str]()
    for each in sorted(keys, key=repr):
        found = sorted(standing[each], key=_position)
        ended = [] if each == _no_key(key) else snapshots
        expected = _counted_one_after_another(changes[each], truncates, ended, state)
        if len(found) != len(expected):
            wrong.append(f"{_text(each, key)} has {len(found):,} rows instead of {len(expected):,}")
        for row, wanted in zip(found, expected, strict=False):
            names = [name for name in wanted if repr(_known(row[name])) != repr(_known(wanted[name]))]
            if names:
                wrong.append(
                    f"{_text(each, key)} has other values in {', '.join(names)} from window {row['window']} on"
                )
                break
    findings, table = list[Finding](), d.state_tables[2]
    headline = f"{counted(len(keys), 'key')} compared with the changes: all are equal"
    if wrong:
        again = (
            f"Run `platform-assets fold {d.topic} --rebuild`, and `platform-assets audit {d.state_tables[0]} --deep`."
        )
        headline = f"{len(wrong):,} of {counted(len(keys), 'key')} differ from the changes, for example {wrong[0]}"
        findings.append(_finding(facts, "", headline, again))
    return CheckResult(HISTORY, table, tuple(findings), headline, (("keys", len(keys)), ("different", len(wrong))))


def _snapshots(facts: Facts, read: frozenset[str]) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return the positions of the first row and of the end of each complete snapshot, found in the changes of the windows
    `read`, or taken from the newest fold if there are other windows."""
    state = facts.state
    if not state.has_sweeps:
        return []
    if read != {*facts.source.rows_by_window()} - facts.pending:
        return [(each.first, each.end) for each in facts.snapshots if each.is_complete and each.end is not None]
    names = ("generation", "window", "kafka_partition", "kafka_offset", state.operation, state.lsn, state.snapshot)
    columns = pa.schema([facts.source.columns.field(name).remove_metadata() for name in names])
    places: dict[tuple[int, int], list[tuple[str, tuple[Any, ...]]]] = {}
    for block in facts.source.blocks(columns, read):
        rows = pa.Table.from_batches([block.filter(pc.equal(block[state.operation], "r"))])
        grouped = rows.group_by([*names[:3], state.lsn, state.snapshot]).aggregate([("kafka_offset", "min")])
        for row in grouped.to_pylist():
            if row[state.lsn] is not None and row[state.snapshot] not in (None, "false", "incremental"):
                place = (row["generation"], row["window"], row["kafka_partition"], row["kafka_offset_min"])
                places.setdefault((row["generation"], row[state.lsn]), []).append((row[state.snapshot], place))
    found = []
    for attempt in places.values():
        ends = [place for kind, place in attempt if kind.startswith("last")]
        if ends and not any(place[2] and place[1] <= min(ends)[1] for _, place in attempt):
            found.append((min(place for _, place in attempt), min(ends)))
    return found


def _counted_one_after_another(
    changes: Sequence[Row],
    truncates: Sequence[tuple[Any, ...]],
    snapshots: Sequence[tuple[tuple[Any, ...], tuple[Any, ...]]],
    state: StateDeclaration,
) -> list[Row]:
    """Return the rows of a key's history, given its changes, the positions of all truncates in order, and those of the
    first row and of the end of each snapshot."""
    counted_rows = list[Row]()
    for row in sorted(changes, key=_position):
        if not counted_rows or _counts_more(row, counted_rows[-1], state):
            counted_rows.append(row)
    found = list[Row]()
    for row, after in zip(counted_rows, [*counted_rows[1:], None], strict=False):
        ends = [place for place in truncates if place > _position(row)][:1]
        ends += [end for first, end in snapshots if first > _position(row)]
        ends += [] if after is None else [_position(after)]
        generation, window, partition, offset = min(ends, default=(None,) * 4)
        own = {name: value for name, value in row.items() if name not in state_table.HISTORY_OWN}
        ended = dict(zip(state_table.ENDED_BY, (generation, partition, offset), strict=True))
        found.append({**own, state_table.VALID_FROM: row["window"], state_table.VALID_TO: window, **ended})
    return found


def audit(
    declaration: TopicDeclaration,
    state: StateDeclaration,
    ledger: Ledger,
    now: datetime,
    *,
    deep: bool,
    seed: str,
    progress: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Evaluate every check of a state. With `deep`, also make the whole state again from all changes, and compare
    both; nothing is changed."""
    at, table = now.isoformat(timespec="seconds"), declaration.state_tables[0]
    outcomes = list[CheckOutcome]()
    for result in results(declaration, state, ledger, seed=seed, whole=deep):
        progress(result.check)
        outcomes.append(CheckOutcome(result.check, result, None))
    if deep:
        progress(DEEP)
        try:
            outcomes.append(CheckOutcome(DEEP, made_again(declaration, state, ledger, progress), None))
        except PlatformError as e:
            outcomes.append(CheckOutcome(DEEP, None, str(e)))
    windows = dict(outcomes[0].check_result.figures).get("windows", 0) if outcomes[0].check_result else 0
    return Audit(table.name, at, Span(), deep, tuple(outcomes), None, count=max(windows, 1))


def made_again(
    declaration: TopicDeclaration, state: StateDeclaration, ledger: Ledger, progress: Callable[[str], None]
) -> CheckResult:
    """Make the whole state again from all changes, and compare both tables with it. Raises whatever a fold raises."""
    table = declaration.state_tables[0]

    def show(done: int, of: int) -> None:
        progress(f"{DEEP}: {done} of {of}")

    compared = TopicState(declaration.topic, state, ledger.lake).compare(show)
    found = list[Finding]()
    for (now, remade), ref in zip(compared.tables, declaration.state_tables, strict=True):
        if now != remade:
            text = f"{ref} has {now.rows:,} rows; made again from all changes, it has {remade.rows:,} rows, not all of them the same"
            again = f"Run `platform-assets fold {declaration.topic} --rebuild`."
            found.append(Finding("decoded otherwise", declaration.topic, "", None, (), text, again))
    rows = compared.live[0].rows
    headline = found[0].detail if found else f"made again from all changes: the same {rows:,} rows"
    return CheckResult(DEEP, table, tuple(found), headline, (("rows", rows),))


def _undecided(name: str, declaration: TopicDeclaration, text: str) -> CheckResult:
    again = f"The topic's sensor requests a fold, or run `platform-assets fold {declaration.topic}`."
    found = Finding("could not tell", declaration.topic, "", None, (), text, again)
    table = declaration.state_tables[2 if name == HISTORY else 0]
    return CheckResult(name, table, (found,), f"Could not tell: {text}", ())


def _all_undecided(declaration: TopicDeclaration, text: str) -> Iterator[CheckResult]:
    for name in (*NAMES, *(HISTORY for _ in declaration.state_tables[2:])):
        yield _undecided(name, declaration, text)


def _finding(facts: Facts, window: str, text: str, remedy: str) -> Finding:
    return Finding("not conserved", facts.declaration.topic, window, None, (), text, remedy)


def _read_windows(facts: Facts) -> frozenset[str]:
    """Return the newest windows whose changes are read: all, if these are not too many rows. Pending ones are left out."""
    rows, found, total = facts.source.rows_by_window(), list[str](), 0
    for window in sorted(rows, reverse=True):
        if window in facts.pending:
            continue
        total += rows[window]
        if found and total > MOST_ROWS:
            break
        found.append(window)
    return frozenset(found)


def _blocks(opened: Opened, path: str) -> Iterator[pa.RecordBatch]:
    return map(_with_numbers, state_table.blocks(opened.folder, path, opened.columns, _BLOCK_ROWS))


def _with_numbers(block: pa.RecordBatch) -> pa.RecordBatch:
    """Return the block with times as the numbers that are stored, because Python's times end with the year 9999."""
    return block.cast(pa.schema([field.with_type(_number(field.type)) for field in block.schema]))


def _number(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_number(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_number(kind.key_type)), kind.item_field.with_type(_number(kind.item_type))
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return made(kind.value_field.with_type(_number(kind.value_type)))
    return kind


def _key_blocks(opened: Opened, key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    columns = pa.schema([opened.columns.field(name) for name in key])
    for path in opened.files()["path"].to_pylist():
        yield from map(_with_numbers, state_table.blocks(opened.folder, path, columns, _BLOCK_ROWS))


def _chosen(blocks: Iterator[pa.RecordBatch], key: Sequence[str], chosen: random.Random) -> set[Key]:
    """Return up to `KEYS` keys of rows in these blocks."""
    found: list[Key] = []
    for block in blocks:
        at = sorted(chosen.sample(range(block.num_rows), min(KEYS, block.num_rows)))
        found += [_key(row, key) for row in block.select(list(key)).take(pa.array(at, pa.int64())).to_pylist()]
        if len(found) > KEYS * 50:
            found = chosen.sample(found, KEYS)
    return set(chosen.sample(found, min(KEYS, len(found))))


def _among(block: pa.RecordBatch, key: Sequence[str], wanted: set[Key]) -> pa.RecordBatch:
    for at, name in enumerate(key):
        values = pa.array(sorted({each[at] for each in wanted}, key=repr), block.schema.field(name).type)
        block = block.filter(pc.is_in(block[name], value_set=values))
    return block


def _rows(blocks: Iterator[pa.RecordBatch], key: Sequence[str], wanted: set[Key]) -> Iterator[Row]:
    for block in blocks:
        for row in _among(block, key, wanted).to_pylist():
            if _key(row, key) in wanted:
                yield row


def _no_key(key: Sequence[str]) -> Key:
    """Return the key of a truncate."""
    return (None,) * len(key)


def _key(row: Row, key: Sequence[str]) -> Key:
    return tuple(row[name] for name in key)


def _twice(keys: pa.Table, key: list[str]) -> list[Key]:
    # Not by their own names: a key column may be called `count_all`.
    names = [f"key{number}" for number in range(len(key))]
    counts = keys.select(key).rename_columns(names).group_by(names).aggregate([([], "count_all")])
    return [_key(row, names) for row in counts.filter(pc.greater(counts["count_all"], 1)).to_pylist()]


def _place(row: Row, state: StateDeclaration) -> tuple[Any, ...]:
    return (*(() if state.version is None else (row[state.version],)), *_position(row))


def _position(row: Row) -> tuple[Any, ...]:
    return row["generation"], row["window"], row["kafka_partition"], row["kafka_offset"]


def _counts_more(row: Row, other: Row, state: StateDeclaration) -> bool:
    first, second = _place(row, state), _place(other, state)
    return bool(first > second if state.keep == "last" else first < second)


def _difference(
    expected: Row | None, found: tuple[bool, Row] | None, read: frozenset[str], state: StateDeclaration
) -> str | None:
    """Describe how a row of the state differs from the change that counts; None if it does not differ."""
    if found is None:
        return None if expected is None else f"is missing: the change in window {expected['window']} counts"
    is_deleted, row = found
    if expected is None or _counts_more(row, expected, state):
        return f"has a row from window {row['window']}, which has no such change" if row["window"] in read else None
    if _counts_more(expected, row, state):
        return f"has the row of window {row['window']}, but the one of window {expected['window']} counts"
    if bool(expected["deleted"]) != is_deleted:
        return (
            "is deleted, but its last change deletes nothing"
            if is_deleted
            else "is live, but its last change deletes it"
        )
    # Values that are not numbers are not equal to themselves.
    wrong = [name for name in row if name in expected and repr(_known(row[name])) != repr(_known(expected[name]))]
    return f"has other values in {', '.join(wrong)}" if wrong else None


def _known(value: Any) -> Any:
    """Return a value without the null fields of its structs: a struct that got a field later has null in it."""
    if isinstance(value, dict):
        return {name: _known(each) for name, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value]
    return value


def _text(key: Key, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {str(value)[:40]!r}" for name, value in zip(names, key, strict=True))
