"""Which requests pass, decided without a server."""

from __future__ import annotations

import pytest

from infra.errors import ConfigurationError
from infra.web_guard import HOSTS_VARIABLE, AllowedHosts, refusal

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
        # What the proxy makes of Host.
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


def test_a_link_from_another_site_opens_a_page() -> None:
    assert status("GET", "/runs/1", (b"sec-fetch-site", b"cross-site"), (b"accept", b"text/html")) is None


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
