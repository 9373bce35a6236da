"""The searches of the canary scenario find planted strings, and report nothing else."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import dagster as dg
import pytest

from platform_assets.model.untrusted import code, line, lines, markdown
from platform_assets.services.process import MARK_VARIABLE
from platform_assets_tests.soak import hostile, judges
from platform_assets_tests.soak.judges import Secret
from platform_assets_tests.soak.pages import _is_live
from testbed import postgres

SECRET = Secret("the password", "s3cret-of-the-canary", frozenset({"one"}))


@pytest.mark.parametrize(
    "held", [b"s3cret-of-the-canary", base64.b64encode(b"s3cret-of-the-canary"), b"s3cret-of-the-canary".hex().encode()]
)
def test_a_secret_is_found_in_each_file_but_private_ones(tmp_path: Path, held: bytes) -> None:
    private = tmp_path / "security"
    private.mkdir()
    for path in (private / "kept", tmp_path / "data"):
        path.write_bytes(b"..." + held + b"...")
        path.chmod(0o600)
    found = judges.files(tmp_path, [SECRET], [private])
    assert (found.files, found.found) == (2, ("data holds the password",))
    (private / "kept").chmod(0o644)
    assert len(judges.files(tmp_path, [SECRET], [private]).found) == 2


@pytest.mark.parametrize("attack", hostile.CONTROLS)
def test_what_a_terminal_acts_on_is_found_in_text_alone(tmp_path: Path, attack: str) -> None:
    (tmp_path / "service.log.1").write_text(f"before {attack} after\n")
    (tmp_path / "rows.parquet").write_text(attack)
    (found,) = judges.files(tmp_path, [], []).found
    assert found.startswith("service.log.1 holds ")
    assert judges.acts_in(line(attack)) is None
    assert judges.acts_in("2026-01-01 a line\n\tanother one, grüße\n") is None


def test_a_forged_line_is_found() -> None:
    assert judges.acts_in(f"failed: \n{hostile.FORGED}") is not None
    assert judges.acts_in(lines(hostile.TEXT.replace("\n", " "))) is None


@pytest.mark.parametrize("attack", [*hostile.MARKUP[:5], hostile.MARKUP[6]])
def test_live_markdown_is_found_in_a_stored_event(attack: str) -> None:
    def event(text: str) -> object:
        return {"event": json.dumps({"metadata": [{"entry_data": {"md_str": text}}], "step": {"description": text}})}

    assert len([*judges.live_markdown(event(attack))]) >= 2
    for shown in (markdown, code):
        assert [*judges.live_markdown(event(f"{shown(attack)} ![strip](data:image/svg+xml;base64,PHN2Zy8+)"))] == []


@pytest.mark.cluster
@pytest.mark.skipif(postgres.programs() is None, reason=postgres.HOW)
@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_secrets_and_live_markdown_are_found_in_dagsters_rows() -> None:
    with TemporaryDirectory(prefix="judges-") as name:
        root = Path(name)
        root.chmod(0o755)
        with postgres.server(root) as server:
            url = server.database("dagster")
            home = root / "home"
            home.mkdir()
            storage = {"postgres": {"postgres_url": url}}
            (home / "dagster.yaml").write_text(json.dumps({"storage": storage, "telemetry": {"enabled": False}}))
            with dg.DagsterInstance.from_config(str(home)) as instance:

                def report(text: str) -> None:
                    metadata = {"said": dg.MarkdownMetadataValue(text)}
                    instance.report_runless_asset_event(dg.AssetObservation("a", description=text, metadata=metadata))

                report(markdown(hostile.TEXT))
                assert judges.rows(url, [SECRET]).found == ()
                report(hostile.MARKUP[0])
                report(SECRET.value)
                looked = judges.rows(url, [SECRET])
    found = " ".join(looked.found)
    assert looked.files >= 3
    for each in ("holds the password", "live Markdown in md_str: image", "live Markdown in description: image"):
        assert each in found


def test_a_picture_with_a_script_is_found() -> None:
    made = base64.b64encode(b"<svg><text onload='x'/><script/></svg>").decode()
    assert [*judges.live(f"![strip](data:image/svg+xml;base64,{made})")] == [
        "script in a picture",
        "onload in a picture",
    ]


def test_a_process_has_the_secrets_of_its_service_alone() -> None:
    environment = {**os.environ, MARK_VARIABLE: "0123abcd", "PASSWORD": SECRET.value}
    program = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert judges.processes({"0123abcd": "one"}, [SECRET]).found == ()
        who = f"the environment of process {process.pid}"
        assert judges.processes({"0123abcd": "other"}, [SECRET]).found == (f"{who} (other) holds the password",)
        assert judges.processes({}, [SECRET]).found == (f"{who} (no service) holds the password",)
        process.communicate(b"\n")


@pytest.mark.parametrize(
    ("url", "live"),
    [
        ("http://127.0.0.1:1/assets/raw/www.t0pic.example", False),
        ("data:image/svg+xml;base64,AAAA", False),
        ("https://docs.dagster.io/x", False),
        ("javascript:void(0)", True),
        ("http://127.0.0.1:1/graphql?query=mutation%20c4n4ry", True),
        ("https://canary.example/", True),
        ("https://docs.dagster.io.example/", True),
    ],
)
def test_an_address_is_live_if_it_leads_elsewhere_or_was_made_by_a_stranger(url: str, live: bool) -> None:
    assert _is_live(url, "127.0.0.1:1") is live
