"""Filtering requests to the UI: tests without a server check which requests pass and which are refused."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from urllib.parse import unquote

import pytest
from dagster_webserver.webserver import DagsterWebserver
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from platform_assets.services.errors import ConfigurationError
from platform_assets.services.web_guard import HOSTS_VARIABLE, AllowedHosts, Application, Guard, Message, refusal

LOOPBACK = AllowedHosts.parse("")
JSON = (b"content-type", b"application/json")


def status(
    method: str, path: str, *headers: tuple[bytes, bytes], host: bytes = b"127.0.0.1:3000", hosts: str = ""
) -> int | None:
    found = refusal(method, path, [(b"host", host), *headers], AllowedHosts.parse(hosts))
    return None if found is None else found.status


@pytest.mark.parametrize("host", [b"127.0.0.1", b"localhost:8080", b"LOCALHOST", b"[::1]:3000"])
def test_names_of_loopback_are_always_allowed(host: bytes) -> None:
    assert status("GET", "/", host=host, hosts="ui.example.com") is None


@pytest.mark.parametrize(
    "host",
    [b"", b"evil.example", b"127.0.0.1.evil.example", b"localhost.", b"0.0.0.0", b"a@localhost", b"::1", b"\xff\x1b"],
)
def test_any_other_host_is_refused(host: bytes) -> None:
    assert status("GET", "/", host=host) == 403
    assert status("WEBSOCKET", "/graphql", host=host) == 403


def test_a_host_that_is_missing_or_there_twice_is_refused() -> None:
    for headers in ([], [(b"host", b"localhost"), (b"host", b"localhost")]):
        found = refusal("GET", "/", headers, LOOPBACK)
        assert found is not None
        assert found.status == 403


@pytest.mark.parametrize(
    ("origin", "host", "hosts"),
    [
        (b"http://127.0.0.1:3000", b"127.0.0.1:3000", ""),
        (b"https://ui.example.com", b"ui.example.com", "ui.example.com"),
        (b"https://ui.example.com", b"ui.example.com:443", "UI.example.com"),
        (b"https://ui.example.com:8443", b"ui.example.com:8443", "ui.example.com"),
        # A proxy's Host header.
        (b"https://ui.example.com", b"localhost:3000", "ui.example.com"),
        (b"https://ui.example.com:8443", b"ui.example.com", "ui.example.com:8443"),
    ],
)
def test_origins_of_the_ui_pass(origin: bytes, host: bytes, hosts: str) -> None:
    for method in ("POST", "WEBSOCKET"):
        assert status(method, "/graphql", (b"origin", origin), JSON, host=host, hosts=hosts) is None


@pytest.mark.parametrize(
    ("origin", "hosts"),
    [
        (b"null", ""),
        (b"", ""),
        (b"http://127.0.0.1:8888", ""),
        (b"http://127.0.0.1", ""),
        (b"http://localhost:3000", ""),
        (b"http://127.0.0.1:3000.evil.example", ""),
        (b"file://127.0.0.1:3000", ""),
        (b"127.0.0.1:3000", ""),
        (b"https://ui.example.com:8443", "ui.example.com"),
        (b"https://ui.example.com.evil.example", "ui.example.com"),
    ],
)
def test_any_other_origin_is_refused(origin: bytes, hosts: str) -> None:
    for method in ("POST", "DELETE", "WEBSOCKET"):
        assert status(method, "/graphql", (b"origin", origin), JSON, hosts=hosts) == 403


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"application/json", None),
        (b"Application/JSON; charset=utf-8", None),
        (b"application/graphql", None),
        (b"application/x-www-form-urlencoded", 415),
        (b"multipart/form-data; boundary=application/json", 415),
        (b"text/plain; application/json", 415),
        (b"application/json, text/plain", 415),
        (b"", 415),
    ],
)
def test_only_content_types_that_a_browser_asks_about_pass(value: bytes, expected: int | None) -> None:
    assert status("POST", "/graphql", (b"content-type", value)) == expected
    assert status("POST", "/report_asset_check/a", (b"content-type", value)) == expected


def test_two_content_types_or_none_are_refused() -> None:
    assert status("POST", "/graphql") == 415
    assert status("POST", "/graphql", (b"content-type", b"text/plain"), JSON) == 415


@pytest.mark.parametrize("path", ["/graphql", "/prefix/graphql", "/graphql/"])
def test_an_address_alone_runs_nothing(path: str) -> None:
    assert status("GET", path) == 405
    assert status("GET", path, (b"accept", b"*/*")) == 405
    assert status("GET", path, (b"accept", b"text/html,*/*")) is None
    assert status("GET", "/assets/graphql-topic") is None


@pytest.mark.parametrize("path", ["/graphql\n", "/graphql\r", "/graphql\0", "/\x1fruns", "/a\x7f", "/_next/a\n.js"])
def test_a_path_with_a_control_character_is_refused(path: str) -> None:
    for method in ("GET", "HEAD", "OPTIONS", "POST", "DELETE", "WEBSOCKET"):
        assert status(method, path, JSON, (b"accept", b"text/html")) == 400


class _Recorded(DagsterWebserver[Any, Any]):
    """Dagster's routes; they record GraphQL instead of executing it."""

    def __init__(self, prefix: str) -> None:
        super().__init__(cast(Any, None), prefix)
        self.ran: list[str] = []

    async def execute_graphql_request(self, request: Request, query: str, *_: object, **__: object) -> JSONResponse:
        self.ran.append(query)
        return JSONResponse({})

    def index_html_endpoint(self, request: Request) -> HTMLResponse:
        return HTMLResponse("page")

    async def webserver_info_endpoint(self, request: Request) -> JSONResponse:
        return JSONResponse(dict(request.query_params))

    async def download_notebook(self, request: Request) -> Response:
        return JSONResponse(dict(request.query_params))


def ask(application: Application, method: str, path: str, query: bytes, *headers: tuple[bytes, bytes]) -> list[Message]:
    """Call an application as uvicorn does, and return its response."""
    answers: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        answers.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": unquote(path),
        "raw_path": path.encode(), "root_path": "", "query_string": query, "server": ("127.0.0.1", 3000),
        "headers": [(b"host", b"localhost:3000"), *headers],
    }  # fmt: skip

    async def call() -> None:
        await application(scope, receive, send)

    asyncio.run(call())
    return answers


@pytest.mark.parametrize("prefix", ["", "/prefix", "/a/graphql"])
@pytest.mark.parametrize(
    "path",
    [
        "/graphql", "/graphql%0A", "/graphql%0D", "/graphql%00", "/graphql;x", "/graphql/", "//graphql", "/%67raphql", "/GraphQL",
        "/%0Agraphql", "/graphql%0A/",
    ],
)  # fmt: skip
@pytest.mark.parametrize("query", [b"query=mutation{setNuxSeen}", b"a=b&%71uery=mutation{setNuxSeen}&query=x"])
def test_no_spelling_of_an_address_reaches_dagsters_graphql(prefix: str, path: str, query: bytes) -> None:
    dagster = _Recorded(prefix)
    guard = Guard(dagster.create_asgi_app(), LOOPBACK)
    for method in ("GET", "HEAD"):
        for headers in ([], [(b"accept", b"text/html")], [(b"accept", b"image/*")]):
            ask(guard, method, prefix + path, query, *headers)
    assert dagster.ran == []


@pytest.mark.parametrize("path", ["/graphql", "/graphql\n", "/anything"])
def test_what_an_address_says_is_dropped_even_if_its_path_is_not_recognised(path: str) -> None:
    """If a later Dagster adds a route, that route cannot execute the dropped query either."""
    seen: list[bytes] = []

    async def any_route(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["query_string"])

    query = b"a=%26&query=mutation{x}&%71uery=y&Query=kept&b="
    ask(Guard(any_route, LOOPBACK), "GET", path, query, (b"accept", b"text/html"))
    assert seen in ([], [b"a=%26&Query=kept&b="])


def test_other_parts_of_an_address_arrive() -> None:
    (_, body) = ask(
        Guard(_Recorded("").create_asgi_app(), LOOPBACK), "GET", "/notebook", b"path=%2Fa%26b.ipynb&repoLocName=x%2By"
    )
    assert body["body"] == b'{"path":"/a&b.ipynb","repoLocName":"x+y"}'


@pytest.mark.parametrize("site", [b"cross-site", b"same-site"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_another_site_may_link_to_a_page_and_load_nothing_but_static_files(site: bytes, method: str) -> None:
    foreign = (b"sec-fetch-site", site)
    page = (b"accept", b"text/html")
    assert status(method, "/runs/1", foreign, (b"sec-fetch-mode", b"navigate"), page) is None
    for mode in (b"no-cors", b"cors", b"same-origin", b"websocket"):
        for path in ("/", "/graphql", "/server_info", "/logs/a/compute_logs/b.err", "/notebook", "/runs/_next/a"):
            assert status(method, path, foreign, (b"sec-fetch-mode", mode), page) == 403
        for path in (
            "/_next/static/chunks/a.js",
            "/vendor/graphiql/graphiql.min.css",
            "/favicon.png",
            "/manifest.json",
        ):
            assert status(method, path, foreign, (b"sec-fetch-mode", mode)) is None
    assert status(method, "/runs/1", foreign, page) == 403


@pytest.mark.parametrize("site", [b"same-origin", b"none"])
def test_the_ui_may_load_what_it_needs(site: bytes) -> None:
    for mode in (b"navigate", b"no-cors", b"cors", b"same-origin"):
        assert status("GET", "/server_info", (b"sec-fetch-site", site), (b"sec-fetch-mode", mode)) is None


def test_a_refusal_shows_a_strangers_text_short_and_in_ascii() -> None:
    found = refusal("GET", "/", [(b"host", b"\x1b[31m<b>" + b"x" * 10_000)], LOOPBACK)
    assert found is not None
    assert found.text.isascii()
    assert found.text.isprintable()
    assert len(found.text) < 500
    assert HOSTS_VARIABLE in found.text


@pytest.mark.parametrize("text", ["*.example.com", "https://ui.example.com", "ui.example.com/path", "a b", "ui:port"])
def test_a_setting_that_names_no_host_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"(?s)^{HOSTS_VARIABLE}: .*`host` or `host:port`.*separated by commas"
    ):
        AllowedHosts.parse(f"ui.example.com, {text}")


def test_names_are_separated_by_commas() -> None:
    found = AllowedHosts.parse(" a.example, B.example:8443 ,[fe80::1],")
    assert found.names >= {"a.example", "b.example", "[fe80::1]", "localhost"}
    assert found.origins == {"a.example", "b.example:8443", "[fe80::1]"}
