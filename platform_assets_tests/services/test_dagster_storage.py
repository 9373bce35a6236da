"""Storage for the runs and events of the embedded Dagster: SQLite, or PostgreSQL at an address that is in no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_assets.services import dagster_services, postgres_storage
from platform_assets.services.dagster_services import POSTGRES_VARIABLE
from platform_assets.services.errors import ConfigurationError
from platform_assets_tests.support.shell import Shell
from testbed.homes import home_at

PASSWORD = "canary-of-the-store-0815"
NOBODY_THERE = f"postgresql://dagster:{PASSWORD}@127.0.0.1:1/postgres"
"""PostgreSQL address at which no server listens."""


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the waits of several seconds between Dagster's six connection attempts; no test depends on these waits."""
    monkeypatch.setattr("dagster_postgres.utils.calculate_delay", lambda **_: 0.0)


def test_the_address_is_in_no_file_and_in_no_message(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    with pytest.raises(ConfigurationError, match=r"its storage does not answer: .*refused") as refused:
        dagster_services.prepare(home, {POSTGRES_VARIABLE: NOBODY_THERE})
    assert PASSWORD not in str(refused.value)
    assert refused.value.__cause__ is None
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [home.dagster / "dagster.yaml"]
    assert f"env: {POSTGRES_VARIABLE}" in files[0].read_text()
    assert PASSWORD not in files[0].read_text()

    # A command that uses Dagster reports the error in one line too.
    shell = Shell(tmp_path / "project", {"DAGSTER_HOME": str(home.dagster), "LAKE_ROOT": str(tmp_path / "lake")})
    for url, reason in ((None, "DAGSTER_POSTGRES_URL"), (NOBODY_THERE, "refused")):
        said = shell.run("prune-runs", DAGSTER_POSTGRES_URL=url)
        assert said.exit_code == 1
        assert reason in said.output
        assert "Traceback" not in said.output
        assert PASSWORD not in said.output

    # Follow the remedies in the message, one after the other.
    with pytest.raises(ConfigurationError, match="which is not set: set it, or remove `storage` from the file"):
        dagster_services.prepare(home, {})
    (home.dagster / "dagster.yaml").write_text(dagster_services.INSTANCE_FILE.read_text())
    dagster_services.prepare(home, {})
    assert (home.dagster / "history" / "runs.db").exists()


def test_settings_of_an_earlier_release_get_the_present_names_of_modules(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    home.dagster.mkdir(parents=True)
    settings = home.dagster / "dagster.yaml"
    now = dagster_services.INSTANCE_FILE.read_text()
    settings.write_text("# own\n" + now.replace("module: platform_assets.services.", "module: infra."))
    assert "module: infra.run_launcher" in settings.read_text()
    dagster_services.prepare(home, {})
    assert settings.read_text() == "# own\n" + now


def test_settings_of_before_are_not_changed_and_the_lines_are_named(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    home.dagster.mkdir(parents=True)
    settings = home.dagster / "dagster.yaml"
    settings.write_text("telemetry:\n  enabled: false\n")
    with pytest.raises(ConfigurationError, match="add these lines to the file") as refused:
        dagster_services.prepare(home, {POSTGRES_VARIABLE: NOBODY_THERE})
    assert settings.read_text() == "telemetry:\n  enabled: false\n"
    lines = str(refused.value).split("unset the variable")[1]
    settings.write_text(settings.read_text() + lines)
    with pytest.raises(ConfigurationError, match="its storage does not answer"):
        dagster_services.prepare(home, {POSTGRES_VARIABLE: NOBODY_THERE})


def test_an_address_that_is_none_is_not_shown(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    with pytest.raises(ConfigurationError) as refused:
        dagster_services.prepare(home, {POSTGRES_VARIABLE: f"{PASSWORD} is no address"})
    assert PASSWORD not in str(refused.value)


def test_the_address_may_be_in_a_file_and_the_remedies_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, file = home_at(tmp_path / "home"), tmp_path / "address"
    home.dagster.mkdir(parents=True)
    given = {f"{POSTGRES_VARIABLE}_FILE": str(file)}
    with pytest.raises(ConfigurationError, match=f"The file set in {POSTGRES_VARIABLE}_FILE cannot be read"):
        dagster_services.prepare(home, given)
    file.write_text(NOBODY_THERE + "\n")
    settings = home.dagster / "dagster.yaml"
    # A file of an earlier release, which reads only the variable.
    settings.write_text(dagster_services.INSTANCE_FILE.read_text() + dagster_services._STORAGE)
    with pytest.raises(ConfigurationError, match=r"Replace `storage` in that file with these lines") as refused:
        dagster_services.prepare(home, given)
    lines = str(refused.value).split("instead:")[1]
    for text in (dagster_services.INSTANCE_FILE.read_text() + lines, None):
        settings.write_text(text) if text else settings.unlink()
        with pytest.raises(ConfigurationError, match=r"its storage does not answer: .*refused") as refused:
            dagster_services.prepare(home, given)
        assert PASSWORD not in str(refused.value)
        assert PASSWORD not in settings.read_text()
    # The storage class accepts the variable too, and reports an error without either.
    with pytest.raises(ConfigurationError, match=r"its storage does not answer: .*refused"):
        dagster_services.prepare(home, {POSTGRES_VARIABLE: NOBODY_THERE})
    monkeypatch.delenv(POSTGRES_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match=rf"neither {POSTGRES_VARIABLE} nor {POSTGRES_VARIABLE}_FILE is set"):
        postgres_storage.PostgresStorage.from_config_value(None, {})


def test_each_connection_has_the_password_of_that_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "address"
    monkeypatch.setenv(f"{POSTGRES_VARIABLE}_FILE", str(file))
    password = postgres_storage._Password()
    for now in ("first", "a%20second"):
        file.write_text(f"postgresql://dagster:{now}@127.0.0.1:1/postgres")
        assert password.get_token() == now.replace("%20", " ")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError,
        match=r"`pip install dagster-postgres==\S+ 'psycopg2-binary>=\S+' 'sqlalchemy<\S+'`, or unset the variable",
    ):
        dagster_services.prepare(home_at(tmp_path / "home"), {POSTGRES_VARIABLE: NOBODY_THERE})


def test_another_address_has_dagster_started_again_and_is_not_kept() -> None:
    before = dagster_services.fingerprint(dagster_services.storage_environment({POSTGRES_VARIABLE: NOBODY_THERE}))
    assert PASSWORD not in before
    assert dagster_services.changed(before, {}) == POSTGRES_VARIABLE
