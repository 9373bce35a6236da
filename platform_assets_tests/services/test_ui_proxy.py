"""The proxy in the guide: users need a password, readers can only read, operators can make changes, and pages from
other sites can neither read nor make changes."""

from __future__ import annotations

import base64
import datetime
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from platform_assets.services import dagster_services
from platform_assets.services.home import CHECKOUT
from platform_assets.services.ports import choose_ports
from platform_assets.services.web_guard import HOSTS_VARIABLE
from platform_assets_tests.support.web_server import webserver
from testbed.homes import home_at, service_environment
from testbed.loads import wait_until

CONFIGURATION: Final = CHECKOUT / "infra" / "ui-proxy.conf"
GUIDE: Final = CHECKOUT / "docs" / "guide" / "ui.md"
COMPOSE: Final = CHECKOUT / "infra" / "ui-proxy.yaml"
NGINX: Final = os.environ.get("NGINX_PROGRAM") or shutil.which("nginx")
HOST: Final = "ui.example.com"
MUTATION: Final = """mutation { reportRunlessAssetEvents(eventParams: {
  eventType: ASSET_MATERIALIZATION, assetKey: {path: ["one"]}}) { __typename } }"""
QUERY: Final = "{ version }"


class _Loader(yaml.SafeLoader):
    """A YAML loader that accepts the tags that compose defines."""


def _overriding(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> Any:
    return loader.construct_sequence(node)


_Loader.add_constructor("!override", _overriding)


def test_the_compose_file_publishes_the_proxy_in_place_of_the_web_servers() -> None:
    services: dict[str, Any] = yaml.load(COMPOSE.read_text("utf-8"), _Loader)["services"]
    assert "ports: !override" in COMPOSE.read_text("utf-8")
    assert all(port.startswith(("127.0.0.1:", "${UI_ADDRESS:-127.0.0.1}:")) for port in services["spark"]["ports"])
    assert [port.rsplit(":")[-1] for port in services["spark"]["ports"]] == ["15002", "8443"]
    commands = {name: services[name]["command"] for name in ("webserver", "webserver-read-only")}
    text = CONFIGURATION.read_text("utf-8")
    for name, port in (("webserver", "3000"), ("webserver-read-only", "3001")):
        assert commands[name][:3] == ["python", "-m", "platform_assets.services.webserver"]
        assert ("--read-only" in commands[name]) is (port == "3001")
        assert commands[name][commands[name].index("--host") + 1] == "127.0.0.1"
        assert commands[name][commands[name].index("--port") + 1] == port
        assert services[name]["environment"].keys() == {HOSTS_VARIABLE}
    # A user who is not listed as an operator can only read.
    assert "default 127.0.0.1:3001;" in text
    assert not any("ports" in services[name] for name in services if name != "spark")


def test_the_guide_names_operators_exactly() -> None:
    """In nginx's `map`, ordinary strings ignore case, but the logins of two users may differ only in case."""
    pattern = re.compile(_operators("here:1").removeprefix("~").split(" ")[0])
    assert [name for name in ("ann", "ANN", "Ann", "ann2", "joann") if pattern.search(name)] == ["ann"]
    for text in (GUIDE.read_text("utf-8"), CONFIGURATION.read_text("utf-8")):
        assert "`~^name$`" in text
        assert "ignores case" in text


def _operators(address: str) -> str:
    """Return the guide's file that lists operators, with the address of a web server that allows changes."""
    line: str
    (line,) = re.findall(r"^printf '(.+)\\n' >operators$", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert line.endswith(" 127.0.0.1:3000;")
    return line.replace("127.0.0.1:3000", address)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of an nginx that is configured as in the guide, in front of two web servers. If nginx is not
    installed, skip the test."""
    if NGINX is None:
        pytest.skip("no nginx: install the system's package `nginx`, or name an executable in NGINX_PROGRAM")
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "one.py").write_text(
        "import dagster as dg\n\n@dg.asset\ndef one() -> None: ...\n\ndefs = dg.Definitions([one])\n"
    )
    home = home_at(folder / "home")
    dagster_services.prepare(home)
    environ = service_environment() | {
        "DAGSTER_HOME": str(home.dagster), "PYTHONPATH": str(folder), HOSTS_VARIABLE: HOST,
    }  # fmt: skip
    for name in ("operator", "reader"):
        (folder / name).mkdir()
    with (
        webserver("one", folder / "operator", environ) as operator,
        webserver("one", folder / "reader", environ, "--read-only") as reader,
        _nginx(NGINX, folder, operator.removeprefix("http://"), reader.removeprefix("http://")) as port,
    ):
        yield port


class _nginx:
    """Start nginx with three users: `ann` is an operator; `bob` and `ANN` are not."""

    def __init__(self, program: str, folder: Path, operator: str, reader: str) -> None:
        (self.port,) = choose_ports(1, "UI_PORT", environ={})
        files = folder / "ui-proxy"
        files.mkdir()
        _certificate(files)
        (files / "users").write_text("".join(f"{name}:{{PLAIN}}{name}'s password\n" for name in ("ann", "bob", "ANN")))
        (files / "operators").write_text(f"{_operators(operator)}\n")
        text = CONFIGURATION.read_text("utf-8")
        for old, new in {
            "/tmp/": f"{folder}/", "/etc/ui-proxy": str(files), "127.0.0.1:3001": reader,
            "listen 8443": f"listen 127.0.0.1:{self.port}", "/dev/stderr": f"{folder}/error.log",
            "/dev/stdout": f"{folder}/access.log",
        }.items():  # fmt: skip
            assert old in text
            text = text.replace(old, new)
        (folder / "nginx.conf").write_text(f"daemon off;\nuser {_user()};\n{text}")
        self.command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]

    def __enter__(self) -> int:
        self.process = subprocess.Popen(self.command)
        wait_until("nginx listens", lambda: _listens(self.port) or self.process.poll() is not None)
        assert self.process.poll() is None
        return self.port

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    )


def ask(
    port: int, user: str | None, query: str, *, password: str = "", origin: str = f"https://{HOST}"
) -> tuple[int, str]:
    """Send a GraphQL request as a browser would; return the status and the text of the response."""
    headers = {"Host": HOST, "Origin": origin, "Content-Type": "application/json"}
    if user is not None:
        login = f"{user}:{password or user + chr(39) + 's password'}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    try:
        connection.request("POST", "/graphql", json.dumps({"query": query}), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_nobody_comes_in_without_a_password(proxy: int) -> None:
    assert ask(proxy, None, QUERY)[0] == 401
    assert ask(proxy, "ann", QUERY, password="wrong")[0] == 401


@pytest.mark.parametrize("user", ["bob", "ANN"])
def test_a_reader_reads_and_changes_nothing(proxy: int, user: str) -> None:
    status, text = ask(proxy, user, QUERY)
    assert (status, "version" in text) == (200, True)
    assert "UnauthorizedError" in ask(proxy, user, MUTATION)[1]


def test_an_operator_changes_things_and_a_foreign_page_does_not(proxy: int) -> None:
    status, text = ask(proxy, "ann", MUTATION)
    assert (status, "ReportRunlessAssetEventsSuccess" in text) == (200, True), text
    status, text = ask(proxy, "ann", MUTATION, origin="https://evil.example")
    assert (status, "Origin" in text or "Refused" in text) == (403, True)
