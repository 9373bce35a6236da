"""The client contacts only one origin, the size of answers is limited, and an id counts as unknown only if the registry
itself reports this."""

from __future__ import annotations

import base64
import gzip
import pickle
import socket
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_assets.decoding.registry import client as clients
from platform_assets.decoding.registry.cache import BadReferences, Registered, SchemaCache, UnknownId
from platform_assets.decoding.registry.client import RegistryClient
from platform_assets.decoding.registry.settings import RegistrySettings
from platform_assets.errors import ConfigurationError, RegistryRefusedError, RegistryUnreachableError, Retryable
from platform_assets.lake.files import files_below
from platform_assets_tests.support.fake_registry import FakeRegistry, fake_registry

SECRET = "hunter2-of-the-registry"


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    """Return a fake registry."""
    with fake_registry() as made:
        yield made


def client(registry: FakeRegistry, pauses: list[float] | None = None) -> RegistryClient:
    """Return a client that does not wait between attempts."""
    kept = [] if pauses is None else pauses
    return RegistryClient(RegistrySettings(registry.url, "user", SECRET), kept.append)


def test_a_schema_comes_with_what_it_refers_to_in_order(registry: FakeRegistry) -> None:
    reference = {"name": "b", "subject": "sub/ject", "version": 3}
    registry.has(
        "/schemas/ids/7", {"schema": '"int"', "references": [reference, {"name": "c", "subject": "c", "version": 1}]}
    )
    registry.has(
        "/subjects/sub%2Fject/versions/3", {"schema": "b!", "references": [{"name": "c", "subject": "c", "version": 1}]}
    )
    registry.has("/subjects/c/versions/1", {"schema": "c!"})
    found = client(registry).schema(7)
    assert found == Registered("AVRO", '"int"', {"c": "c!", "b": "b!"})
    assert list(found.references) == ["c", "b"]
    assert {headers["authorization"] for _, headers in registry.asked} == {
        "Basic dXNlcjpodW50ZXIyLW9mLXRoZS1yZWdpc3RyeQ=="
    }


def test_references_in_a_circle_or_without_end_are_bounded(registry: FakeRegistry) -> None:
    circle = [{"name": "a", "subject": "a", "version": 1}]
    registry.has("/schemas/ids/1", {"schema": "{}", "references": circle})
    registry.has("/subjects/a/versions/1", {"schema": "{}", "references": circle})
    with pytest.raises(BadReferences, match="more than 100 others, or its references form a cycle"):
        client(registry).schema(1)
    assert len(registry.asked) == 101


@pytest.mark.parametrize("subject", ["", ".", "..", "\ud800"])
def test_a_reference_leads_to_no_other_path(registry: FakeRegistry, subject: str) -> None:
    listed = [{"name": "a", "subject": subject, "version": 1}]
    registry.has("/schemas/ids/1", {"schema": "{}", "references": listed})
    with pytest.raises(BadReferences, match="its reference 'a'"):
        client(registry).schema(1)
    assert [path for path, _ in registry.asked] == ["/schemas/ids/1"]


@pytest.mark.parametrize("part", ["groupId", "artifactId", "version"])
def test_a_reference_of_apicurio_leads_to_no_other_path(registry: FakeRegistry, part: str) -> None:
    listed = [{"name": "a", "groupId": "g", "artifactId": "b", "version": "1", part: ".."}]
    registry.has("/apis/registry/v3/ids/contentIds/5", {})
    registry.has("/apis/registry/v3/ids/contentIds/5/references", listed)
    asking = RegistryClient(RegistrySettings(f"{registry.url}/apis/ccompat/v7", "user", SECRET), lambda _: None)
    with pytest.raises(BadReferences, match="its reference 'a'"):
        asking.schema("contentId-5")
    assert len(registry.asked) == 2


def test_an_unknown_id_is_one_only_where_the_registry_says_so(registry: FakeRegistry) -> None:
    with pytest.raises(UnknownId, match="schema id 5: the registry does not have this schema"):
        client(registry).schema(5)
    registry.has("/schemas/ids/6", {"detail": "no such page"}, status=404)
    with pytest.raises(RegistryRefusedError, match="HTTP 404"):
        client(registry).schema(6)
    registry.has("/schemas/ids/7", {"schema": "{}", "references": [{"name": "x", "subject": "gone", "version": 1}]})
    with pytest.raises(BadReferences, match="it refers to /subjects/gone/versions/1, which the registry does not have"):
        client(registry).schema(7)


def test_redirects_are_not_followed(registry: FakeRegistry) -> None:
    with fake_registry() as other:
        other.has("/schemas/ids/1", {"schema": "{}"})
        registry.has("/schemas/ids/1", {}, status=302, Location=other.url + "/schemas/ids/1")
        with pytest.raises(RegistryRefusedError, match="redirect"):
            client(registry).schema(1)
        assert other.asked == []


def test_what_may_be_over_soon_is_tried_again_with_longer_pauses(registry: FakeRegistry) -> None:
    answers: Iterator[tuple[int, dict[str, str], bytes]] = iter(
        [(503, {}, b""), (429, {}, b"{}"), (200, {}, b'{"schema": "x"}')]
    )
    registry.answers["/schemas/ids/1"] = lambda: next(answers)
    pauses: list[float] = []
    assert client(registry, pauses).schema(1).text == "x"
    assert pauses[1] > pauses[0] > 0
    registry.has("/schemas/ids/2", {}, status=500)
    with pytest.raises(RegistryUnreachableError, match="HTTP 500"):
        client(registry).schema(2)
    assert len(registry.asked) == 3 + clients.TRIES


def test_nobody_there_is_retryable_and_shows_no_secret() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        asking = RegistryClient(RegistrySettings(url, "user", SECRET), lambda _: None)
        with pytest.raises(RegistryUnreachableError, match=url) as caught:
            asking.schema(1)
    assert isinstance(caught.value, Retryable)
    shown = [
        repr(asking),
        str(caught.value),
        repr(caught.value),
        repr(caught.value.__dict__),
        repr(RegistrySettings(url, "u", SECRET, SECRET)),
    ]
    assert SECRET not in " ".join(shown)
    assert caught.value.__context__ is None or SECRET not in repr(caught.value.__context__)


@pytest.mark.parametrize("packed", [False, True])
def test_answers_are_bounded(registry: FakeRegistry, packed: bool) -> None:
    content = b'{"schema": "' + b"x" * clients.MOST_BYTES + b'"}'
    headers = {"Content-Encoding": "gzip"} if packed else {}
    registry.answers["/schemas/ids/1"] = lambda: (200, headers, gzip.compress(content) if packed else content)
    with pytest.raises(RegistryRefusedError, match="more than 4194304 bytes"):
        client(registry).schema(1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"schema": 5}',
        b"[" * 100_000,
        b'{"schema":"{}","references":7}',
        b'{"schema":"{}","references":[5]}',
    ],
)
def test_answers_that_are_none_of_a_registry_are_refused(registry: FakeRegistry, content: bytes) -> None:
    registry.answers["/schemas/ids/1"] = lambda: (200, {}, content)
    with pytest.raises(RegistryRefusedError, match="Check SCHEMA_REGISTRY_URL"):
        client(registry).schema(1)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "SCHEMA_REGISTRY_URL is not set"),
        ({"SCHEMA_REGISTRY_URL": f"http://me:{SECRET}@host"}, "move them to SCHEMA_REGISTRY_USER"),
        ({"SCHEMA_REGISTRY_URL": f"ftp://host/{SECRET}"}, "form https://host"),
        ({"SCHEMA_REGISTRY_URL": f"http://host?token={SECRET}"}, "form https://host"),
        ({"SCHEMA_REGISTRY_URL": f"http://[{SECRET}"}, "form https://host"),
        ({"SCHEMA_REGISTRY_URL": "http://host", "SCHEMA_REGISTRY_USER": SECRET}, "set together"),
        (
            {
                "SCHEMA_REGISTRY_URL": "http://host",
                "SCHEMA_REGISTRY_USER": SECRET,
                "SCHEMA_REGISTRY_PASSWORD": SECRET,
                "SCHEMA_REGISTRY_TOKEN": SECRET,
            },
            "and not both",
        ),
    ],
)
def test_settings_that_are_wrong_are_refused_without_their_values(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        RegistrySettings.of(environment)
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize("login", [{"USER": "u", "PASSWORD": SECRET}, {"TOKEN": SECRET}])
def test_a_login_crosses_no_network_unencrypted_unless_a_setting_allows_it(login: dict[str, str]) -> None:
    given = {f"SCHEMA_REGISTRY_{name}": value for name, value in login.items()}
    for harmless in ("https://host", "http://127.0.0.1:8081", "http://localhost:8081", "http://[::1]:8081"):
        RegistrySettings.of({**given, "SCHEMA_REGISTRY_URL": harmless})
    RegistrySettings.of({"SCHEMA_REGISTRY_URL": "http://host"})
    with pytest.raises(ConfigurationError, match="unencrypted") as caught:
        RegistrySettings.of({**given, "SCHEMA_REGISTRY_URL": "http://host"})
    assert SECRET not in repr(caught.value)
    assert "Set SCHEMA_REGISTRY_URL to an address with https://, or PLATFORM_ALLOW_CLEARTEXT_LOGINS=true" in str(
        caught.value
    )
    RegistrySettings.of({**given, "SCHEMA_REGISTRY_URL": "http://host", "PLATFORM_ALLOW_CLEARTEXT_LOGINS": "true"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"SCHEMA_REGISTRY_TOKEN": f"{SECRET}\n"},
        {"SCHEMA_REGISTRY_TOKEN": f"{SECRET} "},
        {"SCHEMA_REGISTRY_TOKEN": f"{SECRET}é"},
        {"SCHEMA_REGISTRY_USER": "u", "SCHEMA_REGISTRY_PASSWORD": f"{SECRET}\r\nHost: x"},
        {"SCHEMA_REGISTRY_USER": f"{SECRET}\n", "SCHEMA_REGISTRY_PASSWORD": "p"},
    ],
)
def test_a_login_that_no_header_can_have_is_refused_without_its_value(
    registry: FakeRegistry, wrong: dict[str, str]
) -> None:
    registry.has("/schemas/ids/1", {"schema": "{}"})
    url = {"SCHEMA_REGISTRY_URL": registry.url}
    with pytest.raises(ConfigurationError, match=r"SCHEMA_REGISTRY_.* to only the (token|secret)") as caught:
        RegistrySettings.of(url | wrong)
    assert SECRET not in repr(caught.value)
    right = dict.fromkeys(wrong, SECRET)
    assert RegistryClient(RegistrySettings.of(url | right)).schema(1).text == "{}"


@pytest.mark.parametrize("token", [f"{SECRET}\n", f"{SECRET}\N{GREEK SMALL LETTER ALPHA}"])
def test_a_header_that_cannot_be_sent_is_in_no_error(registry: FakeRegistry, token: str) -> None:
    with pytest.raises(
        RegistryRefusedError, match="SCHEMA_REGISTRY_USER and SCHEMA_REGISTRY_PASSWORD, or SCHEMA"
    ) as caught:
        RegistryClient(RegistrySettings(registry.url, token=token)).schema(1)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(caught.value.__context__)


def test_a_login_is_sent_as_utf_8(registry: FakeRegistry) -> None:
    registry.has("/schemas/ids/1", {"schema": "{}"})
    RegistryClient(RegistrySettings(registry.url, "ü", "\N{GREEK SMALL LETTER ALPHA}")).schema(1)
    sent = registry.asked[0][1]["authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent).decode() == "ü:\N{GREEK SMALL LETTER ALPHA}"


def test_a_password_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(SECRET + "\n")
    given = {"SCHEMA_REGISTRY_USER": "u", "SCHEMA_REGISTRY_PASSWORD_FILE": str(tmp_path / "password")}
    assert RegistrySettings.of({"SCHEMA_REGISTRY_URL": "https://host", **given}).password == SECRET


def test_settings_come_from_the_environment_and_are_never_pickled(registry: FakeRegistry) -> None:
    found = RegistrySettings.of({"SCHEMA_REGISTRY_URL": "https://host/base/", "SCHEMA_REGISTRY_TOKEN": SECRET})
    assert (found.url, found.token) == ("https://host/base", SECRET)
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(found)
    registry.has("/schemas/ids/1", {"schema": "x"})
    RegistryClient(RegistrySettings(registry.url, token=SECRET)).schema(1)
    assert registry.asked[0][1]["authorization"] == f"Bearer {SECRET}"


def test_a_damaged_file_of_the_cache_is_none(tmp_path: Path) -> None:
    cache = SchemaCache(files_below(tmp_path), "0" * 16, "http://r")
    schema = Registered("JSON", "{}", {"a": "b"})
    assert cache.read(3) is None
    cache.write(3, schema)
    assert cache.read(3) == schema
    (file,) = tmp_path.rglob("3.json")
    for damage in ("", "{}", '{"schemaType": 1, "schema": "", "references": {}}', "[" * 50_000):
        file.write_text(damage)
        assert cache.read(3) is None
