"""The UI that `up` starts: it accepts requests from its own pages and from programs, but no request that a browser
sends on behalf of another site's page."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from platform_assets.services import dagster_services, platform
from platform_assets.services.errors import ConfigurationError
from platform_assets.services.platform import UpOptions
from platform_assets.services.web_guard import HOSTS_VARIABLE
from testbed.homes import home_at, service_environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MUTATION: Final = """mutation { reportRunlessAssetEvents(eventParams: {
  eventType: ASSET_MATERIALIZATION, assetKey: {path: ["one"]}}) { __typename } }"""
QUERY: Final = (
    '{ assetNodeOrError(assetKey: {path: ["one"]}) { ... on AssetNode { assetMaterializations { runId } } } }'
)
PROXY: Final = "ui.example.com"
JSON: Final = {"Content-Type": "application/json"}
BODY: Final = json.dumps({"query": MUTATION})


class Ui:
    """A running UI, as a client sees it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.netloc = urlsplit(address).netloc
        self.port = int(self.netloc.rsplit(":")[-1])

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: str | None = None, *, host: str | None = None
    ) -> tuple[int, str]:
        """Send one request; return the status and the text of the response."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": host or self.netloc, **headers}.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body.encode())))
            connection.endheaders(None if body is None else body.encode())
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def materialised(self) -> int:
        """Return the number of mutations that were executed."""
        status, text = self.ask("POST", "/graphql", JSON, json.dumps({"query": QUERY}))
        assert status == 200, text
        return len(json.loads(text)["data"]["assetNodeOrError"]["assetMaterializations"])


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """Start the UI as `up` does, with one asset."""
    folder = tmp_path_factory.mktemp("web")
    (folder / "one.py").write_text(
        "import dagster as dg\n\n@dg.asset\ndef one() -> None: ...\n\ndefs = dg.Definitions([one])\n"
    )
    workspace = folder / "workspace.yaml"
    workspace.write_text("load_from:\n  - python_file: one.py\n")
    home = home_at(folder / "home")
    environ = service_environment() | {HOSTS_VARIABLE: PROXY}
    try:
        record = platform.start_service("dagster-webserver", home, UpOptions(workspace=workspace), environ=environ)
        yield Ui(record.address)
    finally:
        platform.down(home, report=lambda _: None)


@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("GET", "/graphql?query=" + quote(MUTATION), {}, None),
        ("GET", "/graphql?query=" + quote(MUTATION), {"Accept": "image/avif,image/webp,*/*"}, None),
        ("POST", "/graphql?query=" + quote(MUTATION), {"Content-Type": "application/x-www-form-urlencoded"}, "a=b"),
        ("POST", "/graphql?query=" + quote(MUTATION), {"Content-Type": "text/plain"}, "x"),
        ("POST", "/graphql?query=" + quote(MUTATION), {}, None),
        ("POST", "/graphql", {"Content-Type": "text/plain; application/json"}, BODY),
        ("POST", "/report_asset_materialization/one", {}, None),
        ("POST", "/graphql", JSON | {"Origin": "http://evil.example"}, BODY),
        ("POST", "/graphql", JSON | {"Origin": "null"}, BODY),
        ("POST", "/graphql", JSON | {"Origin": "http://127.0.0.1:1"}, BODY),
        ("POST", "/graphql", JSON | {"Sec-Fetch-Site": "cross-site"}, BODY),
    ],
)
def test_what_a_foreign_page_can_send_changes_nothing(
    ui: Ui, method: str, path: str, headers: dict[str, str], body: str | None
) -> None:
    before = ui.materialised()
    status, text = ui.ask(method, path, headers, body)
    assert status in (403, 405, 415), text
    assert ui.materialised() == before


@pytest.mark.parametrize(
    "path",
    [
        "/graphql%0A", "/graphql%0D", "/graphql%00", "/graphql%0A/", "/%0Agraphql", "/graphql%7F", "/graphql;x", "/graphql/",
        "//graphql", "/%67raphql", "/GRAPHQL", "/graphql%20", "/x/../graphql", "/./graphql", "/graphql%E2%80%A8",
    ],
)  # fmt: skip
def test_no_other_spelling_of_the_address_runs_a_mutation(ui: Ui, path: str) -> None:
    before = ui.materialised()
    for method in ("GET", "HEAD"):
        for headers in ({}, {"Accept": "text/html"}, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}):
            ui.ask(method, f"{path}?query={quote(MUTATION)}", headers)
    assert ui.materialised() == before


@pytest.mark.parametrize("path", ["/", "/graphql", "/server_info"])
def test_a_host_that_is_not_allowed_is_refused_whatever_it_asks_for(ui: Ui, path: str) -> None:
    status, text = ui.ask("GET", path, {"Accept": "text/html"}, host="rebound.example:80")
    assert status == 403
    assert HOSTS_VARIABLE in text
    status, _ = ui.ask("POST", path, JSON | {"Origin": "http://rebound.example"}, BODY, host="rebound.example")
    assert status == 403


@pytest.mark.parametrize(
    ("headers", "host"),
    [
        (JSON, None),
        ({"Content-Type": "application/json; charset=utf-8"}, None),
        (JSON | {"Origin": "http://localhost:{port}", "Sec-Fetch-Site": "same-origin"}, "localhost:{port}"),
        (JSON | {"Origin": f"https://{PROXY}"}, PROXY),
        # A proxy that puts its own name for the UI into Host.
        (JSON | {"Origin": f"https://{PROXY}"}, None),
    ],
)
def test_programs_own_pages_and_a_named_proxy_come_through(ui: Ui, headers: dict[str, str], host: str | None) -> None:
    before = ui.materialised()
    sent = {name: value.replace("{port}", str(ui.port)) for name, value in headers.items()}
    status, text = ui.ask("POST", "/graphql", sent, BODY, host=host and host.replace("{port}", str(ui.port)))
    assert status == 200, text
    assert ui.materialised() == before + 1


def subscribe(ui: Ui, *, origin: str | None, host: str = "") -> Any:
    """Subscribe over one of the UI's websockets; return the first answer."""
    with connect(
        f"ws://{host or ui.netloc}/graphql",
        address=("127.0.0.1", ui.port),
        origin=None if origin is None else Origin(origin),
        subprotocols=[Subprotocol("graphql-ws")],
        proxy=None,
    ) as socket:
        socket.send('{"type": "connection_init"}')
        return json.loads(socket.recv(60))["type"]


def test_a_websocket_is_for_own_pages_and_programs(ui: Ui) -> None:
    assert subscribe(ui, origin=None) == subscribe(ui, origin=ui.address) == "connection_ack"
    for origin, host in (("http://evil.example", ""), ("null", ""), ("http://rebound.example", "rebound.example")):
        with pytest.raises(InvalidStatus) as refused:
            subscribe(ui, origin=origin, host=host)
        assert refused.value.response.status_code == 403


def test_hosts_reach_the_web_server_alone_and_a_change_of_them_is_seen(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    home.prepare()
    specs = [
        dagster_services.webserver_spec(home, tmp_path / "w.yaml", {"A": "1"}, environ={HOSTS_VARIABLE: hosts})
        for hosts in ("", PROXY)
    ]
    assert [spec.environment.get(HOSTS_VARIABLE) for spec in specs] == [None, PROXY]
    assert dagster_services.changed(specs[0].fingerprint, {"A": "1", HOSTS_VARIABLE: PROXY}) == HOSTS_VARIABLE
    with pytest.raises(ConfigurationError, match=HOSTS_VARIABLE):
        dagster_services.webserver_spec(home, tmp_path / "w.yaml", {}, environ={HOSTS_VARIABLE: "*"})


class _Foreign(BaseHTTPRequestHandler):
    """A page from another site that tries everything that a browser allows."""

    target = ""

    def do_GET(self) -> None:
        get = f"{self.target}/graphql?query={quote(MUTATION)}"
        page = f"""<img src="{get}"><script src="{get}"></script><iframe src="{self.target}/"></iframe>
          <iframe name="hidden"></iframe>
          <form id="form" method="post" target="hidden" action="{get}"><input name="a" value="b"></form>
          <script>
            const tries = [
              fetch("{get}", {{mode: "no-cors"}}),
              fetch("{self.target}/graphql", {{method: "POST", mode: "no-cors", body: {json.dumps(BODY)},
                    headers: {{"Content-Type": "text/plain"}}}}),
              fetch("{self.target}/graphql", {{method: "POST", body: {json.dumps(BODY)},
                    headers: {{"Content-Type": "application/json"}}}}),
              new Promise((done, failed) => {{
                const socket = new WebSocket("{self.target.replace("http", "ws")}/graphql", "graphql-ws");
                socket.onopen = () => done("open"); socket.onerror = () => failed("refused");
              }}),
            ];
            document.getElementById("form").submit();
            Promise.allSettled(tries).then(all => {{ window.outcomes = all.map(one => one.status); }});
          </script>"""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Suppress logging."""


@pytest.mark.browser
def test_in_a_browser_the_ui_works_and_a_foreign_page_does_not_reach_it(ui: Ui, browser: Browser) -> None:
    before = ui.materialised()
    page = browser.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(f"{ui.address}/assets/one")
    page.get_by_role("button", name="Materialize").wait_for(timeout=60_000)
    assert (
        page.evaluate(
            """() => new Promise(done => {
            const socket = new WebSocket(`ws://${location.host}/graphql`, 'graphql-ws');
            socket.onopen = () => done('open'); socket.onerror = () => done('refused'); })"""
        )
        == "open"
    )
    assert [text for text in errors if "Content Security Policy" in text or "403" in text] == []
    page.goto(f"{ui.address}/graphql")
    page.locator(".graphiql-container").wait_for()
    page.close()

    _Foreign.target = ui.address
    with ThreadingHTTPServer(("127.0.0.1", 0), _Foreign) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            foreign = browser.new_page()
            foreign.goto(f"http://127.0.0.1:{server.server_port}/")
            foreign.wait_for_function("window.outcomes")
            foreign.wait_for_load_state("networkidle")
            outcomes = foreign.evaluate("window.outcomes")
            # No frame of another page contains the UI.
            framed = [frame.url for frame in foreign.frames]
            foreign.close()
        finally:
            server.shutdown()
            serving.join()
    # Requests without CORS succeed for the page, but their answers are unreadable.
    assert outcomes[2:] == ["rejected", "rejected"]
    assert f"{ui.address}/" not in framed
    assert ui.materialised() == before
