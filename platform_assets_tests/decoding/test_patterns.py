"""Format `patterns`: the first pattern that matches a whole log line determines the columns of the line, and the row
names that pattern."""

from __future__ import annotations

import logging
import random
import re
import urllib.request
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.patterns import parts_of
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec
from platform_assets.services.home import Home
from platform_assets_tests.support.decoding import UNTIMED, decoded

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker

ACCESS = {
    "name": "access",
    "regex": r'(?P<host>\S+) \S+ (?P<user>\S+) \[(?P<time>[^\]]+ [+-]\d{4})\] "(?P<request>[^"]*)" (?P<status>\d{3})'
    r' (?:-|(?P<size>\d+))(?: "(?P<referrer>[^"]*)" "(?P<agent>[^"]*)")?',
    "types": {"time": {"type": "TIMESTAMP", "format": "%d/%b/%Y:%H:%M:%S %z"}, "status": "SMALLINT", "size": "BIGINT"},
}
BROKER = {
    "name": "broker",
    "regex": r"(?P<time>\S+Z) (?P<level>[A-Z]+) (?P<logger>\S+) (?s:(?P<message>.*))",
    "types": {"time": {"type": "TIMESTAMP", "format": "%Y-%m-%dT%H:%M:%S.%f%z"}},
}
PYTHON = {
    "name": "python",
    "regex": r"(?P<time>\d{4}-\d\d-\d\d [\d:,]+) \[(?P<process>\d+)\] (?P<level>[A-Z]+): (?P<message>.*)",
    "types": {"time": {"type": "TIMESTAMP", "format": "%Y-%m-%d %H:%M:%S,%f"}, "process": "INT"},
}
SERVER = {
    "name": "server",
    "regex": r'(?P<host>[\d.]+) - - \[(?P<time>[^\]]+)\] "(?P<request>(?:GET|POST) \S+ HTTP/1\.\d)" (?P<status>\d+) -',
    "types": {"time": {"type": "TIMESTAMP", "format": "%d/%b/%Y %H:%M:%S"}, "status": "SMALLINT"},
}
ALL = [ACCESS, SERVER, BROKER, PYTHON]


def of(*patterns: Any, **options: Any) -> Any:
    return decoder_of(FormatSpec("patterns", {"patterns": list(patterns), **options}))


def access_lines(rng: random.Random, number: int) -> list[str]:
    """Return lines that web servers write in the common and the combined format."""
    lines = []
    for each in range(number):
        time = datetime(2026, 11, 22, tzinfo=UTC) + timedelta(seconds=each)
        line = (
            f"10.0.{rng.randrange(256)}.{rng.randrange(256)} - {rng.choice(['-', 'ann'])} "
            f"[{time:%d/%b/%Y:%H:%M:%S %z}] "
            f'"{rng.choice(["GET", "POST"])} /p/{each}?q=%C3%A9 HTTP/1.1" {rng.choice([200, 304, 404, 500])} '
            f"{rng.choice(['-', str(rng.randrange(10**7))])}"
        )
        lines.append(line + rng.choice(["", ' "https://example.org/" "curl/8.5 (x; é)"']))
    return lines


def server_lines(number: int) -> list[str]:
    """Return the lines that Python's own web server logs for this number of requests."""
    lines: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            lines.append(f"{self.address_string()} - - [{self.log_date_time_string()}] {format % args}\n")

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for each in range(number):
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/page/{each}").close()
        server.shutdown()
    return lines


def python_lines(rng: random.Random, number: int) -> list[str]:
    """Return lines that Python's logging formats with its default time format."""
    formatter = logging.Formatter("%(asctime)s [%(process)d] %(levelname)s: %(message)s")
    levels = [logging.DEBUG, logging.INFO, logging.ERROR]
    return [
        formatter.format(logging.LogRecord("a", rng.choice(levels), __file__, 1, "step %s of %r", (each, "é]"), None))
        for each in range(number)
    ]


def test_lines_of_differing_systems_get_their_patterns_columns(rng: random.Random) -> None:
    access, python, server = access_lines(rng, 4_000), python_lines(rng, 4_000), server_lines(50)
    strange = [
        "",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "10.0.0.1 - - [yesterday",
    ]
    lines = [*access, *python, *server, *strange * 10]
    rng.shuffle(lines)
    found = decoded(of(*ALL), [line.encode() for line in lines])
    columns = found.columns.to_pydict()
    assert Counter(columns["pattern"]) == {"access": 4_000, "python": 4_000, "server": 50, None: 40}
    assert Counter(found.dead["reason"].to_pylist()) == {"unmatched": 40}
    for row, line in enumerate(lines):
        if columns["pattern"][row] == "access":
            host, _, user, rest = line.split(" ", 3)
            assert (columns["host"][row], columns["user"][row]) == (host, user)
            assert columns["time"][row] == datetime.strptime(rest[1:27], "%d/%b/%Y:%H:%M:%S %z")
            request, numbers, *further = rest[30:].split('"', 2)
            status, size = numbers.split()
            assert (columns["request"][row], columns["status"][row]) == (request, int(status))
            assert columns["size"][row] == (None if size == "-" else int(size))
            assert (columns["agent"][row] is None) == (not further)
        elif columns["pattern"][row] == "python":
            assert columns["time"][row] == datetime.strptime(line[:23] + "000", "%Y-%m-%d %H:%M:%S,%f").replace(
                tzinfo=UTC
            )
            assert f"[{columns['process'][row]}] {columns['level'][row]}: {columns['message'][row]}" == line[24:]


@pytest.mark.broker
def test_the_log_of_the_sessions_broker_is_decoded(broker: Broker, platform_home: Home) -> None:
    lines = platform_home.log_file("kafka").read_text().splitlines(keepends=True)[:5_000]
    assert len(lines) > 100
    found = decoded(of(*ALL), [line.encode() for line in lines])
    dead = set(found.dead["row"].to_pylist())
    columns = found.columns.to_pydict()
    head = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]{12})Z ([A-Z]+) ")
    for row, line in enumerate(lines):
        fits = head.match(line)
        assert (row not in dead) == (fits is not None)
        if fits:
            assert columns["pattern"][row] == "broker"
            assert columns["time"][row] == datetime.fromisoformat(fits[1]).replace(tzinfo=UTC)
            assert (columns["level"][row], line.rstrip("\n").endswith(columns["message"][row])) == (fits[2], True)


SIMPLE = {"name": "one", "regex": r"(?P<a>a+)(?P<b>b*)[;,]?(?P<n>\d+)?", "types": {"n": "TINYINT"}}
OTHER = {"name": "two", "regex": r"(?:x|(?P<a>[^0-9]+)) (?P<n>-?\d+)", "types": {"n": "TINYINT"}}


@UNTIMED
@given(
    st.lists(st.none() | st.text("abx0123;, é\n\r", max_size=8).map(str.encode) | st.binary(max_size=5), max_size=12)
)
def test_lines_match_as_pythons_own_expressions_do(values: list[bytes | None]) -> None:
    found = decoded(of(SIMPLE, OTHER), values)
    dead = dict(zip(found.dead["row"].to_pylist(), found.dead.to_pylist(), strict=True))
    for row, value in enumerate(values):
        if value is None or (row in dead and dead[row]["reason"] == "malformed"):
            continue
        line = re.sub(r"\r?\n\Z", "", value.decode())
        for pattern in (SIMPLE, OTHER):
            match = re.fullmatch(str(pattern["regex"]), line, re.ASCII)
            if match:
                if row in dead:
                    assert (dead[row]["reason"], dead[row]["place"]) == ("out_of_range", "n")
                    assert not -128 <= int(match["n"]) <= 127
                else:
                    groups = {name: text or None for name, text in match.groupdict().items()}
                    wanted = {
                        "a": None,
                        "b": None,
                        **groups,
                        "n": groups["n"] and int(groups["n"]),
                        "pattern": pattern["name"],
                    }
                    assert found.columns.slice(row, 1).to_pylist() == [wanted]
                break
        else:
            assert dead[row]["reason"] == "unmatched"


def test_the_first_pattern_that_matches_whole_wins() -> None:
    general = {"name": "any", "regex": r"(?P<message>.*)"}
    assert decoded(of(general, PYTHON), [b"2026-01-01 00:00:00,1 [7] INFO: x"]).columns["pattern"].to_pylist() == [
        "any"
    ]
    assert decoded(of(PYTHON, general), [b"2026-01-01 00:00:00,1 [7] INFO: x", b"y\r\n"]).columns[
        "pattern"
    ].to_pylist() == [
        "python",
        "any",
    ]


def test_a_group_that_does_not_fit_its_type_names_pattern_and_column() -> None:
    (dead,) = decoded(of(*ALL), [b"2026-02-30 00:00:00,1 [7] INFO: x"]).dead.to_pylist()
    assert (dead["reason"], dead["place"]) == ("out_of_range", "time")
    assert "pattern 'python': '2026-02-30 00:00:00,1' is not a valid TIMESTAMP: not a calendar time" in dead["detail"]


def test_a_dead_letter_names_the_option_that_reads_a_time_without_a_format() -> None:
    timed = {"name": "timed", "regex": r"(?P<time>\S+) .*", "types": {"time": "TIMESTAMP"}}
    line = b"2013-01-01T10:00:00 start"
    (dead,) = decoded(of(timed), [line]).dead.to_pylist()
    assert dead["detail"].endswith("; `timestamps: iso8601_or_utc` accepts it")
    assert decoded(of(timed, timestamps="iso8601_or_utc"), [line]).dead.num_rows == 0
    own = {**timed, "types": {"time": {"type": "TIMESTAMP", "format": "%Y/%m/%d"}}}
    assert "`timestamps:" not in decoded(of(own), [line]).dead["detail"][0].as_py()


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (
            "2026-01-01 00:00:00,1 [seven] INFO: x",
            "the nearest pattern is 'python': the line matches the first 3 of its 10 parts, and its last 6; the next part, "
            r"which does not match, is (?P<process>\d+)",
        ),
        ('10.0.0.1 - ann [22/Nov/2026:01:02:03 +0000] "GET /" 200', "nearest pattern is 'access'"),
        (
            '127.0.0.1 - - [22/Nov/2026 01:02:03] "GET / HTTP/1.1" 200 -x',
            "the nearest pattern is 'server': it matches the start of the line, but more text follows",
        ),
        (
            '127.0.0.1 - - [22/Nov/2026 01:02:03] "GET / HTTP/1.1" error -',
            "the next part, which does not match, is (?P<status>",
        ),
        (
            "",
            r"no pattern matches the line, not even its start; the first pattern, 'access', begins with (?P<host>\S+)",
        ),
    ],
)
def test_an_unmatched_line_names_the_nearest_pattern(line: str, detail: str) -> None:
    (dead,) = decoded(of(*ALL), [line.encode()]).dead.to_pylist()
    assert dead["reason"] == "unmatched"
    assert detail in dead["detail"]


@pytest.mark.parametrize(
    ("regex", "parts"),
    [
        (r"\[(?P<t>[^\]]+)\] a{2,3}?b", [r"\[", r"(?P<t>[^\]]+)", r"\]", " ", "a{2,3}?", "b"]),
        ("a|b", ["a|b"]),
        ("(?:a|b)+c", ["(?:a|b)+", "c"]),
        (r"[]a]x[[:alpha:]\]]*", ["[]a]", "x", r"[[:alpha:]\]]*"]),
        (r"(?i)a\Qb*c\E\pN\x{e9}", ["(?i)", "a", r"\Qb*c\E", r"\pN", r"\x{e9}"]),
        (r"(?P<a>\d+\.(?:x\)|y))z", [r"(?P<a>\d+\.(?:x\)|y))", "z"]),
        (r"a\x{ 41}b", [r"a\x{ 41}b"]),  # RE2 refuses it, and also each part into which it could be split
    ],
)
def test_an_expression_is_cut_between_its_parts(regex: str, parts: list[str]) -> None:
    assert list(parts_of(regex)) == parts


def test_an_expression_of_very_many_parts_is_put_together_to_fewer() -> None:
    parts = parts_of("ab" * 500)
    assert len(parts) <= 40
    assert "".join(parts) == "ab" * 500


def test_an_expression_that_makes_backtracking_explode_is_linear_here() -> None:
    hostile = {"name": "hostile", "regex": r"(?:(?:a+)+)+(?P<x>b)"}
    found = decoded(of(hostile), [b"a" * 100_000, b"a" * 100_000 + b"b"])
    assert found.dead["row"].to_pylist() == [0]
    assert found.columns["x"].to_pylist() == [None, "b"]


def test_what_is_plainly_good_never_reaches_the_exact_path(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    one = of(*ALL)
    monkeypatch.setattr(type(one), "decode_exactly", None)
    assert one.decode(pa.array(line.encode() for line in access_lines(rng, 100))).columns["status"].null_count == 0


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ([], "option 'patterns' .* a non-empty list"),
        (["x"], r"patterns\[0\] must be a mapping with name, regex and optionally types; got 'x'"),
        ([{"name": "x", "regex": "a", "type": {}}], r"patterns\[0\] must be a mapping"),
        ([{"name": "x", "regex": "(?P<a>"}], r"patterns\[0\] \(x\): .*missing \).*an RE2 regular expression"),
        ([{"name": "x", "regex": "a)|(b"}], r"patterns\[0\] \(x\): .*unexpected \)"),
        ([{"name": "x", "regex": "(a)"}], r"patterns\[0\] \(x\): .*unnamed groups.*\(\?:…\) for no column"),
        ([{"name": "x", "regex": r"(?P<a>a)\1"}], r"patterns\[0\] \(x\): .*without look-around or backreferences"),
        ([{"name": "x", "regex": "(?P<a>a)", "types": {"b": "INT"}}], "`types` lists 'b', but the groups are: a"),
        ([{"name": "x", "regex": "(?P<a>a)", "types": {"a": "INT, b INT"}}], "the type of 'a' is 'INT, b INT'"),
        (
            [{"name": "x", "regex": "(?P<a>a)", "types": {"a": "INT NOT NULL"}}],
            "it must be one type, without NOT NULL",
        ),
        (
            [{"name": "x", "regex": "(?P<a>a)", "types": {"a": {"type": "INT", "format": "%Y-%m-%d"}}}],
            "only to DATE and TIMESTAMP",
        ),
        (
            [{"name": "x", "regex": "(?P<a>a)", "types": {"a": {"format": "%Y"}}}],
            "'a' must be declared as a type, or",
        ),
        (
            [{"name": "x", "regex": "(?P<pattern>a)"}],
            "'pattern' is reserved for the column that contains the name of the pattern",
        ),
        ([{"name": "x", "regex": "(?P<window>a)"}], "'window' is a reserved column of decoded tables"),
        ([SIMPLE, SIMPLE], "'one' occurs twice"),
        ([SIMPLE, {"name": "x", "regex": "(?P<n>a)"}], "group 'n' is TINYINT in 'one' but STRING in 'x'"),
    ],
)
def test_wrong_patterns_are_refused_by_name(patterns: list[Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        of(*patterns)
