"""Which expressions of a derived table's query give the same result each time, and which `by` accepts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, get_args

from platform_assets.errors import ConfigurationError
from platform_assets.lake.pinned_files import Function

_CHANGING: Final = frozenset(
    {"rand", "random", "randn", "uuid", "shuffle", "now", "curdate", "current_timestamp", "current_date", "current_time",
     "current_timezone", "localtimestamp", "current_user", "user", "session_user", "current_database", "current_schema",
     "current_catalog", "input_file_name", "input_file_block_start", "input_file_block_length", "spark_partition_id",
     "monotonically_increasing_id", "randstr", "uniform", "version", "java_method", "reflect", "try_reflect", "aes_encrypt",
     "identifier"}
)  # fmt: skip
"""Functions whose results are not determined by the input rows, and `identifier`, which can name any function."""
_WITHOUT_PARENTHESES: Final = frozenset(
    {"current_timestamp", "current_date", "current_time", "current_user", "session_user", "user", "localtimestamp"}
)
_MOVING_DATE: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)(\s.*)?", re.IGNORECASE | re.DOTALL)
"""Texts that Spark replaces by the present time if it needs a date or a timestamp; a time zone may follow."""

_ONE_ROW: Final = (
    "Column", "Identifier", "Literal", "RawString", "Boolean", "Null", "Paren", "Var", "DataType", "DataTypeParam", "Interval",
    "Bracket", "Add", "Sub", "Mul", "Div", "IntDiv", "Mod", "Neg", "BitwiseAnd", "DPipe", "EQ", "NEQ", "GT", "GTE", "LT", "LTE",
    "NullSafeEQ", "And", "Or", "Not", "Is", "In", "Between", "Like", "ILike", "RegexpLike", "Case", "If", "Coalesce", "Nullif",
    "Greatest", "Least", "Cast", "TryCast", "AtTimeZone", "FromTimeZone", "TimestampTrunc", "DateTrunc", "TsOrDsToDate",
    "TsOrDsAdd", "TimestampAdd", "AddMonths", "DateDiff", "DateFromUnixDate", "StrToDate", "StrToTime", "StrToUnix",
    "UnixToStr", "UnixToTime", "UnixSeconds", "UnixMillis", "UnixMicros", "TimeStrToTime", "TimeToStr", "LastDay", "Extract",
    "Second", "Minute", "Hour", "Day", "DayOfWeek", "DayOfMonth", "DayOfYear", "Week", "WeekOfYear", "Month", "Quarter", "Year",
    "Abs", "Floor", "Ceil", "Round", "Sign", "Upper", "Lower", "Initcap", "Trim", "Pad", "Left", "Right", "Substring",
    "SubstringIndex", "StrPosition", "Length", "Reverse", "Replace", "RegexpReplace", "RegexpExtract", "RegexpSplit", "Split",
    "SplitPart", "Concat", "ConcatWs", "MD5", "SHA", "SHA2", "Hex", "JSONExtractScalar", "JSONPath", "JSONPathRoot",
    "JSONPathKey", "JSONPathSubscript",
)  # fmt: skip
"""Names of the parser's nodes of which a `by` expression may consist: each gives one value from the values of one row."""
_ONE_ROW_BY_NAME: Final = frozenset(
    {"pmod", "make_date", "date_part", "weekday", "timestamp_seconds", "timestamp_millis", "crc32", "hash", "xxhash64"}
)
"""Functions with one value for each row that the parser knows by name only."""


class QueryError(ConfigurationError):
    """A query cannot be parsed, or cannot be computed group by group. `line` counts from 1; None if it is unknown."""

    def __init__(self, message: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(message)


def statements(sql: str) -> list[Any]:
    """Return the parsed statements in a text. In tables of windows, `window` is a column, so no WINDOW clause is parsed."""
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.tokenizer_core import TokenType

    dialect = Dialect.get_or_raise("spark")
    tokens = dialect.tokenize(sql)
    for token in tokens:
        if token.token_type == TokenType.WINDOW:
            token.token_type = TokenType.VAR
    return list(dialect.parser().parse(tokens, sql))


def refuse_changing_names(sql: str, where: str) -> None:
    """Raise QueryError for a function of which the result changes, by the words of a text that may not be valid SQL."""
    import sqlglot
    from sqlglot.errors import SqlglotError
    from sqlglot.tokenizer_core import TokenType

    try:
        tokens = sqlglot.tokenize(sql, read="spark")
    except SqlglotError as e:
        raise QueryError(f"{where} is not valid SQL: {str(e).splitlines()[0]}") from e
    for token, following in zip(tokens, [*tokens[1:], *([None] if tokens else [])], strict=True):
        if token.token_type == TokenType.PIPE_GT:
            raise QueryError(f"{where} uses |>, which is not supported: write it as SELECT", token.line)
        name = token.text.lower()
        called = following is not None and following.token_type == TokenType.L_PAREN
        if called and name in _CHANGING and token.token_type != TokenType.STRING:
            raise _changes(where, name, token.line)


def refuse_changing(root: Any, where: str) -> None:
    """Raise QueryError if a parsed query or expression has a part of which the result changes without its input rows."""
    from sqlglot import exp

    for node in root.walk():
        if isinstance(node, exp.TableSample | exp.Pivot | exp.QueryTransform):
            what = {"tablesample": "a sample", "pivot": "a pivot"}.get(node.key, "TRANSFORM")
            raise QueryError(f"{where} has {what}, which is not supported", line_of(node))
        if name := next((n for n in _names(node) if n in _CHANGING), None):
            raise _changes(where, name, line_of(node))
        if _is_moving_date(node):
            raise QueryError(
                f"{where} has the text {node.name!r}, which Spark may read as the present time: use a column, or compare a text with "
                f"it as `CAST(column AS STRING) = {node.name!r}`",
                line_of(node),
            )
        if (
            isinstance(node, exp.Query)
            and (node.args.get("limit") or node.args.get("offset"))
            and not node.args.get("order")
        ):
            raise QueryError(
                f"{where} has a LIMIT without ORDER BY, which gives other rows each time: add ORDER BY", line_of(node)
            )


def _names(node: Any) -> Iterator[str]:
    """Yield the lower-case names of the function that a node calls; nothing for other nodes."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        yield node.name.lower()
    elif isinstance(node, exp.Func):
        yield from (name.lower() for name in node.sql_names())
    elif isinstance(node, exp.Column) and not node.table and node.name.lower() in _WITHOUT_PARENTHESES:
        yield node.name.lower()


def _is_moving_date(node: Any) -> bool:
    """Return True for a text such as 'now', unless it is selected as a text, or compared with what is cast to a text."""
    from sqlglot import exp

    is_text = isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string)
    if not is_text or not _MOVING_DATE.fullmatch(node.name) or isinstance(node.parent, exp.Alias):
        return False
    compared = node.parent.this if isinstance(node.parent, exp.Predicate) else None
    return not (isinstance(compared, exp.Cast) and compared.to.is_type(*exp.DataType.TEXT_TYPES))


def _changes(where: str, name: str, line: int | None) -> QueryError:
    fix = "write table.column if it is a column" if name in _WITHOUT_PARENTHESES else "use a column"
    return QueryError(f"{where} uses {name}, which gives other results each time: {fix}, such as kafka_timestamp", line)


def by_expression(name: str, text: str) -> Any:
    """Return the parsed expression of a column in `by`. Raises QueryError unless it gives one fixed value for each row."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    where = f"`by: {name}`"
    refuse_changing_names(text, where)
    try:
        (found,) = statements(text)
    except (SqlglotError, ValueError) as e:
        raise QueryError(f"{where}: {text!r} is not a valid SQL expression") from e
    if found is None:
        raise QueryError(f"{where} is empty: give an expression over one row of the driving table")
    refuse_changing(found, where)
    for node in found.walk():
        if isinstance(node, exp.Column) and node.table:
            *structs, field = [part.name for part in node.parts]
            path = structs[0] + "".join(f"['{each}']" for each in (*structs[1:], field))
            raise QueryError(
                f"{where}: write the columns of {text!r} without a table's name, such as date(time_hour), and a field of a struct as "
                f"{path}"
            )
        known = node.name.lower() in _ONE_ROW_BY_NAME if isinstance(node, exp.Anonymous) else False
        if type(node).__name__ not in _ONE_ROW and not known:
            raise QueryError(
                f"{where}: {text!r} must be an expression over one row of the driving table, and {_shown(node)} is not known to be one"
            )
    return found


def never_decreasing(expression: Any) -> tuple[str, Function] | None:
    """Return the column and the function if a `by` expression is a column, its date, or a time truncated to a unit that has a fixed
    length; None for other expressions."""
    from sqlglot import exp

    while isinstance(expression, exp.Paren):
        expression = expression.this
    function: Function = "same"
    if isinstance(expression, exp.Cast) and expression.to.is_type(exp.DataType.Type.DATE):
        if expression.args.get("format") or expression.args.get("default"):
            return None
        function = "date"
    elif isinstance(expression, exp.TsOrDsToDate) and not expression.args.get("format"):
        function = "date"
    elif isinstance(expression, exp.TimestampTrunc) and not expression.args.get("zone"):
        unit = next((each for each in get_args(Function) if each == expression.text("unit").lower()), None)
        if unit is None or unit in ("same", "date"):
            return None
        function = unit
    column = expression if function == "same" else expression.this
    while isinstance(column, exp.Paren):
        column = column.this
    return (column.name, function) if isinstance(column, exp.Column) and not column.table else None


def _shown(node: Any) -> str:
    from sqlglot import exp

    return node.name if isinstance(node, exp.Anonymous) else node.key.upper()


def line_of(node: Any) -> int | None:
    """Return the line of the first identifier in a node or, if it has none, in the node around it."""
    while node is not None:
        lines = [each.meta["line"] for each in node.walk() if "line" in each.meta]
        if lines:
            return int(min(lines))
        node = node.parent
    return None
