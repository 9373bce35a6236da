"""Secrets in a variable, or in a file that another variable names: no message shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.secret_files import MOST_BYTES, STORE, secret, take
from platform_assets_tests.support.shell import Shell


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a secret", "a secret"),
        (b"a secret\n", "a secret"),
        (b"a secret\r\n", "a secret"),
        (b" x \n", " x "),
        (b"\xef\xbb\xbfa secret\r\n", "a secret"),
    ],
)
def test_one_end_of_line_is_no_part_of_a_secret(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "mounted"
    file.write_bytes(content)
    assert secret({"NAME_FILE": str(file)}, "NAME") == expected


def test_without_a_file_it_is_the_variable() -> None:
    assert secret({"NAME": "x"}, "NAME") == "x"
    assert secret({"NAME": "", "NAME_FILE": ""}, "NAME") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\xff",
        b"a\n\n",
        b"a\nb\n",
        b"a\x00",
        b"a\x1b",
        "a\x85\u2028".encode(),
        b"x" * (MOST_BYTES + 1),
        None,
    ],
)
def test_a_file_that_cannot_be_used_is_named_by_its_variable_and_each_remedy_helps(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "canary"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match="The file set in NAME_FILE") as caught:
        secret({"NAME_FILE": str(file)}, "NAME")
    assert "canary" not in str(caught.value)
    assert "set NAME instead" in str(caught.value)
    assert secret({"NAME": "x"}, "NAME") == "x"
    file.write_text("the secret alone")
    assert secret({"NAME_FILE": str(file)}, "NAME") == "the secret alone"


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "canary"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero")
    asked = "from platform_assets.secret_files import secret; import sys; secret({'NAME_FILE': sys.argv[1]}, 'NAME')"
    ended = subprocess.run(
        [sys.executable, "-c", asked, place], capture_output=True, text=True, timeout=60, check=False
    )
    said = ended.stderr.splitlines()[-1]
    assert "The file set in NAME_FILE" in said
    assert "is not a regular file" in said
    assert "canary" not in said
    place.rmdir() if kind == "folder" else place.unlink()
    place.write_text("the secret alone")
    assert secret({"NAME_FILE": str(place)}, "NAME") == "the secret alone"


def test_both_are_refused_until_one_is_unset(tmp_path: Path) -> None:
    (tmp_path / "it").write_text("y")
    both = {"NAME": "x", "NAME_FILE": str(tmp_path / "it")}
    with pytest.raises(ConfigurationError, match=r"NAME and NAME_FILE are both set\. Unset one"):
        secret(both, "NAME")
    assert [secret({name: both[name]}, "NAME") for name in both] == ["x", "y"]


def test_a_client_that_reads_the_environment_gets_the_secret_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from the file\n")
    environ = {"AWS_SECRET_ACCESS_KEY_FILE": str(tmp_path / "key"), "AWS_ACCESS_KEY_ID": "id", "AWS_REGION": "r"}
    for _ in range(2):
        take(environ, STORE)
        assert environ == {"AWS_SECRET_ACCESS_KEY": "from the file", "AWS_ACCESS_KEY_ID": "id", "AWS_REGION": "r"}
    with pytest.raises(ConfigurationError, match="The file set in AWS_SESSION_TOKEN_FILE cannot be read"):
        take({"AWS_SESSION_TOKEN_FILE": str(tmp_path / "none")}, STORE)


def test_each_program_that_reads_the_lake_takes_the_stores_secrets_from_files(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "project", {"LAKE_ROOT": str(tmp_path / "lake"), "AWS_ACCESS_KEY_ID_FILE": "/nowhere"})
    said = shell.run("status")
    assert said.exit_code == 1
    assert "The file set in AWS_ACCESS_KEY_ID_FILE cannot be read" in said.output
    for program in (
        ["-m", "platform_assets.services.spark_node", "connect", "--master", "local[1]", "--host", "127.0.0.1"],
        ["-c", "import platform_assets.definitions as d; d.defs()"],
    ):
        environ = {**os.environ, "AWS_ACCESS_KEY_ID_FILE": "/nowhere", "PLATFORM_HOME": str(tmp_path / "home")}
        ended = subprocess.run(
            [sys.executable, *program], env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert "The file set in AWS_ACCESS_KEY_ID_FILE cannot be read" in ended.stderr


@pytest.mark.parametrize("control", ["\n", "\r", "\0", "\x1b", "\x7f", "\x85", "\u2028", "\udcff"])
def test_a_secret_with_control_characters_is_refused_without_its_value(control: str) -> None:
    with pytest.raises(ConfigurationError, match="NAME holds a control character") as caught:
        secret({"NAME": f"canary{control}x"}, "NAME")
    assert "canary" not in repr(caught.value)
    assert secret({"NAME": "canary"}, "NAME") == "canary"
