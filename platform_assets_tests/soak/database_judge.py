"""What a topic of Debezium's connector says about a table, read without the platform: Python's `json` and a dictionary.

The connector sends each change of a row with the whole row, so the last event of each key is what the topic says about it.
If PostgreSQL has another row, the connector lost the change, or sent a row that is not complete. Values are compared as
canonical Python values, made from the event's JSON by the decoder below, and from what psycopg2 and pyarrow return. Pure.
"""

from __future__ import annotations

import base64
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""What the connector writes instead of a large value that an update did not change."""
NAMED: Final = 1_000
"""Number of differences that `compare-postgres --json` lists."""
_NOT_A_NUMBER: Final = "NaN"
_ENDS: Final = ("last", "last_in_data_collection")
_STREAMED: Final = ("false", None, "incremental")

Record = tuple[bytes | None, bytes | None]
"""Key and value of a record, in the order of the topic."""
Key = tuple[str, ...]
"""PostgreSQL's texts of the columns of a key."""
Row = dict[str, Any]
Named = tuple[str, Key, frozenset[str]]
"""A kind of difference, a key, and the columns that differ."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type in PostgreSQL, its type in the lake, and the functions that make a canonical value of the event's
    JSON and of a Python value. `select` is a cast that PostgreSQL applies before psycopg2 gets the value."""

    kind: str
    declared: str
    of_json: Callable[[Any], Any]
    of_python: Callable[[Any], Any]
    select: str = ""


@dataclass
class Said:
    """What a topic says about a table: the rows, as canonical values without the columns that an event lacks. `incomplete`
    counts events with a placeholder, which say nothing about the row; `truncates` and `records` count all of these."""

    rows: dict[Key, Row] = field(default_factory=dict)
    records: int = 0
    incomplete: int = 0
    truncates: int = 0
    attempts: int = 0


def replay(
    records: Iterable[Record], key: Sequence[str], columns: Mapping[str, Column], *, whole: bool = False
) -> Said:
    """Apply all records of a topic with one partition, in their order. With `whole`, a complete snapshot of the connector
    deletes each row whose last event comes before the snapshot's first one."""
    found, at, began = Said(), dict[Key, int](), dict[int, int]()
    for number, (name, value) in enumerate(records):
        found.records += 1
        event = None if value is None else json.loads(value)
        if event is not None and event["op"] == "t":
            found.truncates += 1
            found.rows.clear()
            continue
        assert name is not None, f"record {number} has no key"
        row_key = key_of(json.loads(name), key)
        if event is None or event["op"] == "d":
            found.rows.pop(row_key, None)
            continue
        after, source = event["after"], event["source"]
        # A value that is not here is not known. Only a text can be large in these tables.
        if PLACEHOLDER in after.values():
            found.incomplete += 1
        else:
            found.rows[row_key] = {n: columns[n].of_json(v) for n, v in after.items() if n in columns}
            at[row_key] = number
        if source["snapshot"] not in _STREAMED:
            began.setdefault(source["lsn"], number)
            if source["snapshot"] in _ENDS and whole:
                found.rows = {k: row for k, row in found.rows.items() if at[k] >= began[source["lsn"]]}
    found.attempts = len(began)
    return found


def key_of(row: Mapping[str, Any], key: Sequence[str]) -> Key:
    """Return the texts of a key. Keys are whole numbers and texts."""
    return tuple(str(row[name]) for name in key)


def differences(there: Mapping[Key, Row], here: Mapping[Key, Row], columns: Iterable[str]) -> set[Named]:
    """Return how the rows `there` differ from those `here`, in these columns. A column that a row lacks is null."""
    names, found = list(columns), set[Named]()
    for key in there.keys() | here.keys():
        if key not in here:
            found.add(("missing", key, frozenset()))
        elif key not in there:
            found.add(("extra", key, frozenset()))
        else:
            wrong = frozenset(n for n in names if there[key].get(n) != here[key].get(n))
            found |= {("different", key, wrong)} if wrong else set()
    return found


def judge_comparison(answer: Mapping[str, Any], lost: set[Named], key: Sequence[str], rows: int) -> list[str]:
    """Return what is wrong with the JSON of `compare-postgres`, given the real differences and the number of rows in the
    database. It lists the first differences in the order of their keys and counts all of them."""
    expected = "different" if lost else "equal"
    if answer["outcome"] != expected:
        return [f"the outcome is {answer['outcome']}, not {expected} ({len(lost)} keys differ): {answer['reasons']}"]
    found = []
    if answer["rows"] != rows:
        found.append(f"it compared {answer['rows']:,} rows of {rows:,}")
    kinds = Counter(kind for kind, *_ in lost)
    counts = {kind: kinds[kind] for kind in ("missing", "extra", "different", "undecided")}
    if answer["counts"] != counts:
        found.append(f"it counts {answer['counts']}, not {counts}")
    named = [
        (each["kind"], tuple(each["key"][name] for name in key), frozenset(each["columns"]))
        for each in answer["differences"]
    ]
    wanted = sorted(lost, key=lambda each: each[1])[:NAMED]
    if len(named) != len(set(named)):
        found.append("it names a key twice")
    if set(named) != set(wanted):
        spare, absent = sorted(map(_shown, set(named) - set(wanted))), sorted(map(_shown, set(wanted) - set(named)))
        found.append(f"it names {spare[:3]} ({len(spare)}) wrongly, and does not name {absent[:3]} ({len(absent)})")
    return found


def judge_state(state: Mapping[Key, Row], said: Mapping[Key, Row], columns: Mapping[str, Column]) -> list[str]:
    """Return in what the rows of a state, as pyarrow returns them, differ from what the topic says."""
    here = {key: {name: columns[name].of_python(value) for name, value in row.items()} for key, row in state.items()}
    wrong = sorted(map(_shown, differences(said, here, columns)))
    return [f"{len(wrong):,} rows of the state are wrong: {wrong[:3]}"] if wrong else []


def _shown(each: Named) -> str:
    kind, key, columns = each
    return f"{kind} {', '.join(key)}{f' in {sorted(columns)}' if columns else ''}"


# --- values -----------------------------------------------------------------------------------------------------------


def or_null(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that leaves None as it is."""
    return lambda value: None if value is None else of(value)


def same(value: Any) -> Any:
    """Return the value."""
    return value


def number(value: Any) -> float | str:
    """Return a floating point number, given as a number or as text."""
    found = float(value)
    return _NOT_A_NUMBER if found != found else found


def single(value: Any) -> float | str:
    """Return the 32-bit number that is nearest to `value`."""
    return number(struct.unpack("f", struct.pack("f", float(value)))[0])


def exact(value: Any) -> Decimal | str:
    """Return a decimal. The connector writes NaN as NAN."""
    found = Decimal(value)
    return _NOT_A_NUMBER if found.is_nan() else found


def of_base64(value: str) -> bytes:
    """Return the bytes of a base64 text."""
    return base64.b64decode(value)


def unscaled(scale: int) -> Callable[[Any], Decimal]:
    """Return the decoder for decimals as bytes, with the given number of digits after the point."""
    return lambda value: Decimal(int.from_bytes(of_base64(value), "big", signed=True)).scaleb(-scale)


def scaled(value: Any) -> Decimal:
    """Return the decimal of an object with scale and bytes."""
    return unscaled(value["scale"])(value["value"])


def moment(value: datetime) -> datetime:
    """Return a time in UTC without its zone."""
    if value.tzinfo is not None and value.utcoffset():
        raise ValueError(f"{value} is not in UTC")
    return value.replace(tzinfo=None)


def moment_of_text(text: str) -> datetime:
    """Return the time in UTC that the connector writes as text."""
    return moment(datetime.fromisoformat(text.replace("Z", "+00:00")))


def moment_of_microseconds(value: int) -> datetime:
    """Return the time so many microseconds after 1970."""
    return datetime(1970, 1, 1) + timedelta(microseconds=value)


def day_of_number(value: int) -> date:
    """Return the date so many days after 1970."""
    return date(1970, 1, 1) + timedelta(days=value)


def day_of_text(text: str) -> date:
    """Return the date that the connector writes as text."""
    return date.fromisoformat(text.removesuffix("Z"))


def many(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function for lists of such values, in which elements can be null."""
    return lambda values: tuple(None if value is None else of(value) for value in values)
