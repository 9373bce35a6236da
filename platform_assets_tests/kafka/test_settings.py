"""Client settings: only settings known to be safe are accepted, and no message shows a value."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.kafka.settings import BATCH_VARIABLES, BatchLimits, ClientSettings, _jaas_quoted

SECRET = "s3cr3t-canary"
SASL = {
    "KAFKA_BOOTSTRAP_SERVERS": "a:1,b:2",
    "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
    "KAFKA_SASL_USERNAME": "alice",
    "KAFKA_SASL_PASSWORD": SECRET,
    "KAFKA_SSL_CA_LOCATION": "/etc/ca.pem",
    "HOME": "/home/alice",
}
BEARER = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.client.id": "loader",
    "sasl.oauthbearer.client.secret": 'a" b="\\',
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
}


def test_settings_come_from_the_environment_by_the_usual_rule() -> None:
    settings = ClientSettings.from_environment(SASL)
    assert settings.bootstrap_servers == "a:1,b:2"
    assert settings.options == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": SECRET,
        "ssl.ca.location": "/etc/ca.pem",
    }
    assert ClientSettings.from_environment(SASL, "c:3").librdkafka()["bootstrap.servers"] == "c:3"


def test_other_variables_that_begin_with_kafka_are_left_alone() -> None:
    """Some machines set KAFKA_HOME, KAFKA_OPTS or KAFKA_HEAP."""
    settings = ClientSettings.from_environment({"KAFKA_HOME": "/opt", "KAFKA_HEAP": "1g", "KAFKA_PORT": "1"}, "a:1")
    assert settings.options == {}


@pytest.mark.parametrize(
    "name",
    [
        "KAFKA_SASL_OAUTHBEARER_JWKS_ENDPOINT_URL", "KAFKA_SASL_OAUTHBEARER_METHOD", "KAFKA_SASL_USERNAME_FILE",
        "KAFKA_SASL_JAAS_CONFIG", "KAFKA_SASL_LOGIN_CALLBACK_HANDLER_CLASS",
        "KAFKA_SSL_ENGINE_FACTORY_CLASS", "KAFKA_SSL_PASSWORD", "KAFKA_SECURITY_PROVIDERS", "KAFKA_CLIENT_DNS_LOOKUP",
    ],
)  # fmt: skip
def test_a_setting_that_is_not_known_to_be_safe_is_refused_without_its_value(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ClientSettings.from_environment({name: SECRET}, "a:1")
    assert name in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("options", [{"group.id": "x"}, {"plugin.library.paths": "/x"}, {"enable.auto.commit": "true"}])
def test_options_outside_the_list_are_refused_however_they_come(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="not allowed"):
        ClientSettings("a:1", options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"security.protocol": SECRET}, "KAFKA_SECURITY_PROTOCOL must be one of"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": SECRET}, "KAFKA_SASL_MECHANISM must be one of"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "KAFKA_SASL_MECHANISM must be one of"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "KAFKA_SASL_OAUTHBEARER_CLIENT_ID must be set",
        ),
        (
            {**BEARER, "sasl.oauthbearer.token.endpoint.url": f"file:///{SECRET}"},
            "TOKEN_ENDPOINT_URL is not the address",
        ),
        (
            {**BEARER, "sasl.oauthbearer.token.endpoint.url": f"https://{SECRET}:x@host"},
            "TOKEN_ENDPOINT_URL is not the address",
        ),
        (
            {**BEARER, "sasl.oauthbearer.extensions": f"a={SECRET}\x01auth=Bearer"},
            "EXTENSIONS holds a control character",
        ),
        ({**BEARER, "sasl.oauthbearer.extensions": f"1={SECRET}"}, "EXTENSIONS is not valid"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.password": SECRET}, "KAFKA_SASL_USERNAME"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.username": SECRET}, "KAFKA_SASL_PASSWORD"),
    ],
)
def test_a_value_that_cannot_work_is_refused_and_not_shown(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        ClientSettings("a:1", options)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["KAFKA_BATCH_MAX_BYTE", "KAFKA_BATCH_MAX_BYTES_", "KAFKA_BATCH_BYTES", "KAFKA_BATCH_"]
)
def test_a_misspelt_limit_is_refused_with_the_names_of_the_limits(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ClientSettings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "a:1", name: SECRET})
    text = str(caught.value)
    assert text.startswith(f"{name} is not a setting for limits on record batches. Use one of ")
    assert SECRET not in text
    named = re.findall(r"KAFKA_BATCH_MAX_[A-Z]+\b", text.removeprefix(name))
    assert named == sorted(BATCH_VARIABLES.values())
    limits = ClientSettings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "a:1", **dict.fromkeys(named, "7")}).limits
    assert limits == BatchLimits(7, 7, 7)


@pytest.mark.parametrize("servers", ["", "  "])
def test_no_broker_is_an_error_that_names_the_variable(servers: str) -> None:
    with pytest.raises(ConfigurationError, match="set KAFKA_BOOTSTRAP_SERVERS"):
        ClientSettings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": servers})


def test_no_secret_is_in_a_repr_or_a_traceback() -> None:
    settings = ClientSettings.from_environment(SASL)
    assert SECRET not in f"{settings!r} {settings}"
    with pytest.raises(ConfigurationError) as refused:
        ClientSettings(settings.bootstrap_servers, {**settings.options, "nonsense": SECRET})
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_the_java_client_gets_the_same_in_its_own_words() -> None:
    assert ClientSettings.from_environment(SASL).java() == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="alice" password="{SECRET}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/ca.pem",
    }


def test_a_password_cannot_break_out_of_its_quotes() -> None:
    """The password appears only in double quotes, the form that Kafka's redaction matches."""
    options = {"security.protocol": "sasl_ssl", "sasl.username": "a", "sasl.password": 'x" y="\\'}
    java = ClientSettings("a:1", options).java()
    assert java["sasl.mechanism"] == "PLAIN"
    assert java["sasl.jaas.config"].endswith('username="a" password="x\\" y=\\"\\\\";')
    assert _jaas_quoted('a\r\n"; b') == '"a\\r\\n\\"; b"'


@pytest.mark.parametrize("control", ["\n", "\r", "\0", "\x7f", "\x85", "\u2028", "\udcff"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_no_line_end_or_control_character_gets_into_login_settings(
    mechanism: str, control: str, tmp_path: Path
) -> None:
    login = {
        "PLAIN": ["KAFKA_SASL_USERNAME", "KAFKA_SASL_PASSWORD"],
        "OAUTHBEARER": [f"KAFKA_SASL_OAUTHBEARER_{name}" for name in ("CLIENT_ID", "CLIENT_SECRET", "SCOPE")],
    }[mechanism]
    right = {
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_SASL_MECHANISM": mechanism,
        "KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": "https://host/token",
        **dict.fromkeys(login, "canary"),
    }
    assert "canary" in ClientSettings.from_environment(right, "a:1").java()["sasl.jaas.config"]
    for name in login:
        wrong = {**right, name: f'canary"{control} other="x'}
        with pytest.raises(ConfigurationError, match=f"{name} holds a control .* Set {name} to") as caught:
            ClientSettings.from_environment(wrong, "a:1")
        assert "canary" not in repr(caught.value)
    if not control.isascii():
        return
    (tmp_path / "mounted").write_text(f"canary{control}x")
    in_file = {**right, login[1]: "", f"{login[1]}_FILE": str(tmp_path / "mounted")}
    with pytest.raises(ConfigurationError, match=f"{login[1]}_FILE holds a control") as caught:
        ClientSettings.from_environment(in_file, "a:1")
    assert "canary" not in repr(caught.value)


def test_mutual_tls_and_an_endpoint_check_that_is_off() -> None:
    options = {
        "security.protocol": "SSL",
        "ssl.key.location": "/k.pem",
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "none",
        "client.id": "me",
        "client.rack": "a",
    }
    java = ClientSettings("a:1", options).java()
    assert java == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/k.pem",
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "",
        "client.id": "me",
        "client.rack": "a",
    }
    assert ClientSettings("a:1", options).librdkafka() == {"bootstrap.servers": "a:1", **options}


def test_limits_of_batches_are_taken_from_the_environment() -> None:
    given = {"KAFKA_BATCH_MAX_BYTES": "1000", "KAFKA_BATCH_MAX_HEADERS": " 7 ", "KAFKA_BATCH_MAX_RECORDS": ""}
    limits = ClientSettings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "a:1", **given}).limits
    assert limits == BatchLimits(bytes=1_000, headers=7)
    assert limits.records == BatchLimits().records


@pytest.mark.parametrize(
    "value", ["0", "-1", "1e6", "many", "1073741825", pytest.param("9" * 5_000, id="long"), "\u0663"]
)
def test_a_limit_of_batches_that_is_no_number_is_refused_by_its_variable(value: str) -> None:
    with pytest.raises(ConfigurationError, match="KAFKA_BATCH_MAX_RECORDS must be a number from 1 to 1073741824"):
        ClientSettings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "a:1", "KAFKA_BATCH_MAX_RECORDS": value})


def test_a_mechanism_that_is_not_named_is_the_same_for_each_client() -> None:
    settings = ClientSettings("a:1", {"security.protocol": "sasl_ssl", "sasl.username": "u", "sasl.password": "p"})
    assert settings.librdkafka()["sasl.mechanism"] == settings.java()["sasl.mechanism"] == settings.mechanism == "PLAIN"
    assert "sasl.mechanism" not in ClientSettings("a:1").librdkafka()


def test_each_client_gets_a_login_by_token_in_its_own_words() -> None:
    settings = ClientSettings(
        "a:1", {**BEARER, "sasl.oauthbearer.scope": "kafka", "sasl.oauthbearer.extensions": "x=1,y=2"}
    )
    assert settings.librdkafka()["sasl.oauthbearer.method"] == "oidc"
    java = settings.java()
    assert java["sasl.mechanism"] == "OAUTHBEARER"
    assert java["sasl.oauthbearer.token.endpoint.url"] == "https://login.example/token"
    assert java["sasl.jaas.config"].endswith(
        'OAuthBearerLoginModule required clientId="loader" clientSecret="a\\" b=\\"\\\\" scope="kafka" '
        'extension_x="1" extension_y="2";'
    )


@pytest.mark.parametrize(
    ("protocol", "servers", "refused"),
    [
        ("SASL_PLAINTEXT", "broker.example:9092", True),
        ("SASL_PLAINTEXT", "127.0.0.1:1,10.0.0.5:9092", True),
        ("SASL_PLAINTEXT", "127.0.0.1.example:1", True),
        ("SASL_PLAINTEXT", "[2001:db8::1]:9092", True),
        ("SASL_PLAINTEXT", "127.0.0.1:1,localhost:2,[::1]:3,127.8.8.8", False),
        ("SASL_SSL", "broker.example:9092", False),
        ("PLAINTEXT", "broker.example:9092", False),
    ],
)
def test_a_login_crosses_no_network_unencrypted_unless_a_setting_allows_it(
    protocol: str, servers: str, refused: bool
) -> None:
    given = {**SASL, "KAFKA_SECURITY_PROTOCOL": protocol, "KAFKA_BOOTSTRAP_SERVERS": servers}
    if not refused:
        assert ClientSettings.from_environment(given).bootstrap_servers == servers
        return
    with pytest.raises(ConfigurationError, match="unencrypted") as caught:
        ClientSettings.from_environment(given)
    assert SECRET not in str(caught.value)
    # Follow each remedy in the message.
    assert "KAFKA_SECURITY_PROTOCOL=SASL_SSL" in str(caught.value)
    ClientSettings.from_environment({**given, "KAFKA_SECURITY_PROTOCOL": "SASL_SSL"})
    assert "PLATFORM_ALLOW_CLEARTEXT_LOGINS=true" in str(caught.value)
    ClientSettings.from_environment({**given, "PLATFORM_ALLOW_CLEARTEXT_LOGINS": "true"})


def test_a_client_secret_is_sent_to_no_endpoint_unencrypted_unless_a_setting_allows_it() -> None:
    given = {"KAFKA_" + name.upper().replace(".", "_"): value for name, value in BEARER.items()}
    endpoint = "KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL"
    ClientSettings.from_environment({**given, endpoint: "http://127.0.0.1:1/token"}, "a:1")
    with pytest.raises(ConfigurationError, match="client secret would cross the network unencrypted"):
        ClientSettings.from_environment({**given, endpoint: "http://login.example/token"}, "a:1")
    allowed = {"PLATFORM_ALLOW_CLEARTEXT_LOGINS": "true", endpoint: "http://login.example/token"}
    ClientSettings.from_environment({**given, **allowed}, "a:1")


def test_secrets_may_be_in_files_and_are_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    given = {name: value for name, value in SASL.items() if name != "KAFKA_SASL_PASSWORD"}
    given["KAFKA_SASL_PASSWORD_FILE"] = str(file)
    for password in (SECRET, "another one"):
        file.write_text(password + "\n")
        assert ClientSettings.from_environment(given).options["sasl.password"] == password
