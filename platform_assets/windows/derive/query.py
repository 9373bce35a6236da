"""The query of a derived table: which tables it reads, and proof that its rows can be computed group by group. Pure.

A query can be computed group by group if each group of its result depends only on the driving table's rows of that group, and on
whole other tables. The rules below are sufficient, not necessary: they refuse queries for which they find no proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from platform_assets.model.derived import DERIVED, DerivedDeclaration, DerivedRef
from platform_assets.model.tables import KINDS, STATE_KINDS, StateRef, TableRef
from platform_assets.windows.derive import expressions, joins
from platform_assets.windows.derive.expressions import QueryError, line_of

_BY_ORDER: Final = frozenset(
    {"first", "first_value", "last", "last_value", "any_value", "collect_list", "array_agg", "collect_set"}
)
"""Aggregates whose results depend on the order of the rows, which Spark does not fix."""
_FLOATING: Final = frozenset(
    {"std", "stddev", "stddev_pop", "stddev_samp", "var_pop", "var_samp", "variance", "variance_pop", "corr", "covar_pop",
     "covar_samp", "skewness", "kurtosis", "percentile_approx", "approx_percentile", "approx_quantile"}
)  # fmt: skip
"""Aggregates that Spark computes with floating-point numbers, or approximates, whatever the types of their arguments are."""

_SELECT: Final = frozenset(
    {"with_", "expressions", "hint", "distinct", "from_", "laterals", "joins", "where", "group", "having", "distribute", "sort",
     "cluster", "order"}
)  # fmt: skip
_SUBQUERY: Final = frozenset({"this", "alias", "with_"})
_TABLE: Final = frozenset({"this", "db", "alias"})
_GROUP: Final = frozenset({"expressions", "all"})
_JOIN: Final = frozenset({"this", "on", "side", "kind", "using", "method"})
"""The parts of a query that the rules below know. Any other part of the driving table's rows is refused."""
_JOIN_KINDS: Final = frozenset({"", "INNER", "OUTER", "CROSS", "SEMI", "ANTI"})
_NEW_NAMES: Final = "new names for the columns after a table's alias are not supported: rename them in SELECT"

Input = TableRef | StateRef | DerivedRef


@dataclass(frozen=True, slots=True)
class _Span:
    """The place of a table's name in the text of a query, `[start, end)`, and the alias that is to be added; None if it has one."""

    start: int
    end: int
    table: Input
    alias: str | None


@dataclass(frozen=True, slots=True)
class Query:
    """A query that can be computed group by group. `driving` is the table whose rows are filtered by group.

    `keyed` has the state tables that are read only by joins from which follows which rows of the driving table see a row of
    the state. `text` and `by` name each column that is read, unless `reads_all` is true, because of a `*`.
    """

    text: str
    driving: Input
    inputs: tuple[Input, ...]
    warnings: tuple[str, ...]
    spans: tuple[_Span, ...]
    by: Mapping[str, str]
    keyed: Mapping[Input, tuple[joins.Pairs, ...]]
    reads_all: bool

    def with_views(self, views: Mapping[Input, str]) -> str:
        """Return the query's text with each table's name replaced by a view. Lines keep their numbers."""
        text = self.text
        for span in sorted(self.spans, key=lambda span: -span.start):
            alias = "" if span.alias is None else f" AS {quoted(span.alias)}"
            text = text[: span.start] + quoted(views[span.table]) + alias + text[span.end :]
        return text


def quoted(name: str) -> str:
    """Return a name as a quoted identifier of Spark's SQL."""
    return f"`{name.replace('`', '``')}`"


def parsed(declaration: DerivedDeclaration) -> Query:
    """Return the query of a derived table. Raises QueryError if it is not one query that can be computed group by group."""
    try:
        return _parsed(declaration)
    except RecursionError as e:
        raise QueryError("`sql` or `by` is nested too deeply: use fewer levels, or name parts with WITH") from e


def _parsed(declaration: DerivedDeclaration) -> Query:
    sql = declaration.sql
    expressions.refuse_changing_names(sql, "the query")
    root = _tree(sql)
    expressions.refuse_changing(root, "the query")
    by = {name.lower(): expressions.by_expression(name, text) for name, text in declaration.by.items()}
    if len(by) < len(declaration.by):
        twice = next(a for a in declaration.by for b in declaration.by if a != b and a.lower() == b.lower())
        raise QueryError(
            f"`by` has the column {twice!r} twice, because upper and lower case are the same: rename or remove one"
        )
    if not by:
        raise QueryError("`by` names no column: give the columns by which the rows are grouped, or `by: window`")
    spans = tuple(_spans(root))
    refused = next((s for s in spans if s.table == declaration.table), None)
    if refused is not None:
        raise QueryError(
            f"the query of {declaration.table} reads {declaration.table} itself", line_at(sql, refused.start)
        )
    levels = _Levels(root, by, sql)
    found = levels.driving()
    own = [span for span in spans if span.table == found]
    if len(own) > 1:
        raise QueryError(
            f"{found} is the driving table, but the query reads it more than once, so its groups cannot be computed separately: "
            "read it only in the first FROM",
            line_at(sql, own[1].start),
        )
    inputs = tuple(dict.fromkeys((found, *(span.table for span in spans))))
    keyed = _keyed(levels.joins, spans)
    return Query(
        sql, found, inputs, tuple(_warnings(root)), spans, declaration.by, keyed, joins.reads_all_columns(root)
    )


def _keyed(found: list[tuple[str, str, joins.Pairs]], spans: tuple[_Span, ...]) -> dict[Input, tuple[joins.Pairs, ...]]:
    """Return the pairs of each state table that is read only by the joins `found`."""
    by_table: dict[Input, list[joins.Pairs]] = {}
    for kind, name, pairs in found:
        table = _input(kind, name)
        if isinstance(table, StateRef):
            by_table.setdefault(table, []).append(pairs)
    reads = Counter(span.table for span in spans)
    return {table: tuple(each) for table, each in by_table.items() if reads[table] == len(each)}


def _tree(sql: str) -> Any:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        found = [each for each in expressions.statements(sql) if each is not None]
    except SqlglotError as e:
        errors = getattr(e, "errors", [])
        line = errors[0].get("line") if errors else None
        what = errors[0].get("description") if errors else str(e)
        raise QueryError(f"the query is not valid SQL: {what}", line) from e
    if len(found) != 1 or not isinstance(found[0], exp.Query):
        raise QueryError("`sql` must be one SELECT, which may begin with WITH", 1)
    return found[0]


def _spans(root: Any) -> Iterator[_Span]:
    """Yield the place of each table's name. Raises QueryError for tables that are not in the lake."""
    from sqlglot import exp

    for table in root.find_all(exp.Table):
        line = line_of(table)
        if not isinstance(table.this, exp.Identifier):
            raise QueryError(f"{table.sql('spark')} is not a table of the lake", line)
        db = table.args.get("db")
        if db is None and _cte_of(table) is not None:
            continue
        ref = None if db is None or table.args.get("catalog") is not None else _input(db.name, table.name)
        if ref is None:
            kinds = ", ".join((*KINDS, *STATE_KINDS, DERIVED))
            raise QueryError(
                f"{table.sql('spark')} is not a table of the lake: write KIND.NAME, where KIND is one of {kinds}, such as "
                "decoded.orders, with a name such as `my-topic` in backquotes",
                line,
            )
        if any(value and name not in ("this", "db", "alias", "joins") for name, value in table.args.items()):
            raise QueryError(
                f"{ref}: a version, a sample, a hint or a pivot after a table's name is not supported", line
            )
        alias = None if table.alias else table.name
        yield _Span(db.meta["start"], table.this.meta["end"] + 1, ref, alias)
    for column in root.find_all(exp.Column):
        if column.args.get("db") is not None and column.args["db"].name in (*KINDS, *STATE_KINDS, DERIVED):
            raise QueryError(f"{column.sql('spark')}: give the table an alias, and write alias.column", line_of(column))


def _cte_of(table: Any) -> Any:
    """Return the WITH query that a name without a kind means at its place; None if there is none in its scope."""
    from sqlglot import exp

    name, child, node = table.name.lower(), table, table.parent
    while node is not None:
        with_ = child if isinstance(child, exp.With) else node.args.get("with_")
        visible = [] if with_ is None else list(with_.expressions)
        if isinstance(node, exp.With):
            # A query of a WITH sees those before it, and itself if it is recursive, which is refused later.
            visible = list(node.expressions)
            visible = visible[: visible.index(child) + bool(node.args.get("recursive"))]
        elif child is with_:
            visible = []
        for cte in reversed(visible):
            if cte.alias.lower() == name:
                return cte
        child, node = node, node.parent
    return None


def _input(kind: str, name: str) -> Input | None:
    if kind == DERIVED:
        return DerivedRef(name)
    if (state := StateRef.parse(f"{kind}/{name}")) is not None:
        return state
    return next((TableRef(known, name) for known in KINDS if kind == known), None)


@dataclass
class _Levels:
    """The nested selects from which the driving table's rows pass to the result. `joins` gets the keyed joins next to it, each
    with the kind and the name of the joined table."""

    root: Any
    by: Mapping[str, Any]
    sql: str
    joins: list[tuple[str, str, joins.Pairs]] = field(default_factory=list)

    def driving(self) -> Input:
        """Return the driving table. Raises QueryError unless each level keeps groups apart."""
        table, exposed = self._level(self.root)
        for name in self.by:
            if exposed.get(name) != name:
                expression = self.by[name].sql("spark")
                raise QueryError(
                    f"the result has no column {name} that is the `by` expression {expression} over {table}: select it as "
                    f"`{expression} AS {name}`",
                    1,
                )
        return table

    def _level(self, node: Any) -> tuple[Input, dict[str, str]]:
        """Return the driving table below `node`, and its output columns that are group columns, each with the group column."""
        from sqlglot import exp

        while isinstance(node, exp.Subquery):
            self._refuse_other(node, _SUBQUERY)
            self._check_with(node)
            if node.args.get("alias") and node.args["alias"].args.get("columns"):
                self._refuse(node, _NEW_NAMES)
            node = node.this
        if not isinstance(node, exp.Select):
            self._refuse(node, f"{node.key.upper()} of the driving table's rows is not supported: write one SELECT")
        self._refuse_other(node, _SELECT)
        self._check_with(node)
        from_ = node.args.get("from_")
        if from_ is None:
            self._refuse(node, "the query needs a FROM with the driving table first")
        source = from_.this
        alias = (source.alias or source.name).lower()
        if isinstance(source, exp.Table | exp.Subquery):
            self._refuse_other(source, _TABLE if isinstance(source, exp.Table) else _SUBQUERY)
            if source.args.get("alias") and source.args["alias"].args.get("columns"):
                self._refuse(source, _NEW_NAMES)
        inner: dict[str, str] | None = None
        if isinstance(source, exp.Table) and source.args.get("db") is None:
            table, inner = self._through_cte(source)
        elif isinstance(source, exp.Subquery):
            table, inner = self._level(source)
        elif isinstance(source, exp.Table):
            found = _input(source.args["db"].name, source.name)
            assert found is not None, "unreachable: _spans has refused other tables"
            table = found
            self.joins += joins.keyed(node, alias)
        else:
            self._refuse(source, "the first FROM must be the driving table")
        self._check(node, inner, alias)
        return table, dict(self._exposed(node, inner, alias))

    def _through_cte(self, source: Any) -> tuple[Input, dict[str, str]]:
        from sqlglot import exp

        cte = _cte_of(source)
        uses = [t for t in self.root.find_all(exp.Table) if t.args.get("db") is None and _cte_of(t) is cte]
        if len(uses) > 1:
            self._refuse(uses[1], f"{source.name} contains the driving table's rows, so it can be read only once")
        if cte.args["alias"].args.get("columns"):
            self._refuse(cte, "new names for the columns of a WITH are not supported: rename them in SELECT")
        return self._level(cte.this)

    def _check_with(self, node: Any) -> None:
        with_ = node.args.get("with_")
        if with_ is not None and with_.args.get("recursive"):
            self._refuse(with_, "WITH RECURSIVE is not supported")

    def _refuse_other(self, node: Any, allowed: frozenset[str]) -> None:
        """Refuse a part of a query that is not known to keep groups apart, also one that a later parser adds."""
        for name, value in node.args.items():
            if value and name not in allowed:
                what = name.removesuffix("_").upper()
                self._refuse(
                    node,
                    f"{what} applies to all groups together: remove it, or use row_number() OVER (PARTITION BY …)",
                )

    def _check(self, select: Any, inner: Mapping[str, str] | None, alias: str) -> None:
        from sqlglot import exp

        for join in select.args.get("joins") or ():
            if join.side in ("RIGHT", "FULL"):
                self._refuse(
                    join,
                    f"a {join.side} JOIN adds rows without a group: begin FROM with the other table, or use LEFT JOIN",
                )
            if any(value and name not in _JOIN for name, value in join.args.items()) or join.kind not in _JOIN_KINDS:
                self._refuse(join, f"a JOIN of this kind is not supported: {join.sql('spark')}")
        group = select.args.get("group")
        if group is not None:
            self._check_group(select, group, inner, alias)
        elif any(isinstance(node, exp.AggFunc) and not node.find_ancestor(exp.Window) for node in self._own(select)):
            self._refuse(select, "an aggregate without GROUP BY combines all groups: group by the columns in `by`")
        for node in self._own(select):
            if isinstance(node, exp.Window):
                parts = {self._match(each, inner, alias) for each in node.args.get("partition_by") or ()}
                if missing := [name for name in self.by if name not in parts]:
                    self._refuse(
                        node,
                        f"a window function needs PARTITION BY with all columns in `by`; missing: {', '.join(missing)}",
                    )

    def _check_group(self, select: Any, group: Any, inner: Mapping[str, str] | None, alias: str) -> None:
        from sqlglot import exp

        combined = (exp.Cube, exp.Rollup, exp.GroupingSets)
        if any(group.args.get(name) for name in ("cube", "rollup", "grouping_sets", "totals")) or any(
            isinstance(each, combined) for each in group.expressions
        ):
            self._refuse(group, "GROUPING SETS, CUBE and ROLLUP combine groups: use a plain GROUP BY")
        self._refuse_other(group, _GROUP)
        items = list(select.expressions)
        selected = {item.alias.lower(): item.this for item in items if isinstance(item, exp.Alias)}
        found = set[str | None]()
        if group.args.get("all"):
            found = {self._match(item.unalias(), inner, alias) for item in items}
        for each in group.expressions:
            if isinstance(each, exp.Literal) and each.is_int:
                number = int(each.this)
                each = items[number - 1].unalias() if 0 < number <= len(items) else each
            known = self._match(each, inner, alias)
            if known is None and isinstance(each, exp.Column) and not each.table and each.name.lower() in selected:
                known = self._match(selected[each.name.lower()], inner, alias)
            found.add(known)
        if missing := [name for name in self.by if name not in found]:
            lacking = ", ".join(f"{name} (`{self.by[name].sql('spark')}`)" for name in missing)
            self._refuse(group, f"GROUP BY must contain all expressions in `by`; missing: {lacking}")

    def _exposed(self, select: Any, inner: Mapping[str, str] | None, alias: str) -> Iterator[tuple[str, str]]:
        from sqlglot import exp

        for item in select.expressions:
            star = item.this if isinstance(item, exp.Column) else item
            if isinstance(star, exp.Star):
                if star.args.get("except_") or star.args.get("replace") or star.args.get("rename"):
                    self._refuse(item, "* EXCEPT is not supported: list the columns")
                if isinstance(item, exp.Star) or (item.table.lower() == alias and not item.args.get("db")):
                    plain = {n: e.name.lower() for n, e in self.by.items() if isinstance(e, exp.Column)}
                    yield from (inner.items() if inner is not None else ((c, n) for n, c in plain.items()))
                continue
            known = self._match(item.unalias(), inner, alias)
            if known is not None:
                yield (item.alias or item.name).lower(), known

    def _match(self, node: Any, inner: Mapping[str, str] | None, alias: str) -> str | None:
        """Return the group column that an expression is; None if it is none."""
        from sqlglot import exp

        while isinstance(node, exp.Paren):
            node = node.this
        for column in node.find_all(exp.Column):
            # With a third part, it is a field of a struct.
            if (column.table and column.table.lower() != alias) or column.args.get("db"):
                return None
        if inner is not None:
            return inner.get(node.name.lower()) if isinstance(node, exp.Column) else None
        text = _plain(node)
        return next((name for name, expression in self.by.items() if _plain(expression) == text), None)

    def _own(self, select: Any) -> Iterator[Any]:
        """Yield the nodes of a select's own expressions, without those of the queries inside of it."""
        from sqlglot import exp

        waiting = [
            child for name, value in select.args.items() if name not in ("with_", "from_") for child in _nodes(value)
        ]
        while waiting:
            node = waiting.pop()
            if isinstance(node, exp.Query):
                continue
            yield node
            waiting += [child for value in node.args.values() for child in _nodes(value)]

    def _refuse(self, node: Any, text: str) -> Any:
        raise QueryError(text, line_of(node))


def _nodes(value: Any) -> list[Any]:
    from sqlglot import exp

    if isinstance(value, list):
        return [each for each in value if isinstance(each, exp.Expression)]
    return [value] if isinstance(value, exp.Expression) else []


def _plain(node: Any) -> str:
    """Return an expression's text without the names of tables. Unquoted names ignore case, as in Spark."""
    from sqlglot import exp

    def plain(each: Any) -> Any:
        return exp.column(each.name.lower(), quoted=True) if isinstance(each, exp.Column) else each

    return str(node.copy().transform(plain).sql("spark", comments=False))


def line_at(sql: str, position: int) -> int:
    """Return the line of a position in a query, counted from 1."""
    return sql.count("\n", 0, position) + 1


def lineage(parsed_query: Query) -> dict[str, list[tuple[Input, str]]]:
    """Return the columns from which each column of the result is made; nothing for a query of several levels, or with `*`.

    Columns of which the text does not show the table are left out.
    """
    from sqlglot import exp

    root = _tree(parsed_query.text)
    sources = (
        [root.args["from_"].this, *(join.this for join in root.args.get("joins") or ())]
        if isinstance(root, exp.Select)
        else []
    )
    if not sources or any(not isinstance(s, exp.Table) or s.args.get("db") is None for s in sources):
        return {}
    tables = {(s.alias or s.name).lower(): _input(s.args["db"].name, s.name) for s in sources}
    found: dict[str, list[tuple[Input, str]]] = {}
    for item in root.expressions:
        if item.is_star:
            return {}
        deps = []
        for column in item.find_all(exp.Column):
            table = (
                tables.get(column.table.lower())
                if column.table
                else (next(iter(tables.values())) if len(tables) == 1 else None)
            )
            if table is not None and (table, column.name) not in deps:
                deps.append((table, column.name))
        found[item.alias or item.name] = deps
    return found


def _warnings(root: Any) -> Iterator[str]:
    from sqlglot import exp

    names = set()
    for node in root.find_all(exp.Func):
        name = node.name.lower() if isinstance(node, exp.Anonymous) else node.sql_name().lower()
        if name in _BY_ORDER and not node.find_ancestor(exp.Window):
            names.add(name)
    yield from _unrepeatable(root)
    for name in sorted(names):
        yield f"{name} depends on the order of the rows, which is not fixed: use min, max, or sort_array(collect_list(…))"


def _unrepeatable(root: Any) -> Iterator[str]:
    """Yield a warning for each aggregate of floating-point numbers, whose sums depend on the order of the rows."""
    from sqlglot import exp

    found = set()
    for node in root.find_all(exp.Func):
        names = [node.name] if isinstance(node, exp.Anonymous) else node.sql_names()
        adds = isinstance(node, exp.Sum | exp.Avg) and has_floating_text(node)
        if adds or {name.lower() for name in names} & _FLOATING:
            found.add(str(node.sql("spark")))
    yield from map(floating_sum, sorted(found))


def floating_sum(text: str) -> str:
    """Return the warning about an aggregate of floating-point numbers."""
    return (
        f"{text} adds floating-point numbers, so its last digits depend on the order of the rows, which is not fixed: cast its "
        "argument to DECIMAL, or round the result"
    )


def has_floating_text(aggregate: Any) -> bool:
    """Return True if an aggregate's text alone shows that it adds floating-point numbers."""
    return any(map(_is_floating, aggregate.walk()))


def _is_floating(node: Any) -> bool:
    from sqlglot import exp

    return isinstance(node, exp.Div) or (isinstance(node, exp.Cast) and node.to.is_type("double", "float"))
