"""`platform-assets audit`: outcome, exit code, spans, JSON and terminal output, without a broker or Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from rich.console import Console

from platform_assets.checks.audit import EXIT_CODES, Audit, audit
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.cli.audit_table import print_audit, progress
from platform_assets.cli.main import main
from platform_assets.errors import ConfigurationError
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Span
from platform_assets_tests.support import answers, tables
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.tables import DOUBLED, LOST_ROWS, LOST_WINDOW, key
from testbed import samples

NOW = datetime(2026, 1, 3, tzinfo=UTC)
# The command searches the project's own tables.
TOPIC = "flights"

pytestmark = [
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    # Warnings of Dagster itself while it loads components.
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
]


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("seeded")
    tables.sound(root / "sound", TOPIC)
    tables.torn(root / "torn", TOPIC)
    return root


@pytest.fixture
def lake(seeded: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a copy of a lake that contains anomalies."""
    return lambda name: Path(shutil.copytree(seeded / name, tmp_path / "lake"))


def evaluation(root: Path, **changes: Any) -> Evaluation:
    return answers.unanswered(root, TOPIC, **changes)


def outcomes(found: Audit) -> dict[str, str]:
    return {c.check: c.outcome for c in found.checks}


def test_table_in_order_is_proved_without_asking_anybody(lake: Callable[[str], Path]) -> None:
    found = audit(evaluation(lake("sound")), NOW)

    assert (found.outcome, found.exit_code, found.reasons) == ("proved", 0, ())
    assert outcomes(found) == dict.fromkeys(CHECKS, "proved")
    assert found.heatmap is not None
    assert found.heatmap.windows == tables.WINDOWS


def test_ruined_table_is_not_and_the_worst_comes_first(lake: Callable[[str], Path]) -> None:
    found = audit(evaluation(lake("torn")), NOW)

    assert (found.outcome, found.exit_code) == ("anomalies", 1)
    expected = {"no_gaps": "anomalies", "no_duplicates": "anomalies", "every_offset_accounted_for": "undecided"}
    assert outcomes(found) | expected == outcomes(found)
    assert (found.worst[0].window, found.worst[0].offsets) == (key(LOST_WINDOW), 300)
    assert {w.window for w in found.worst} == {key(n) for n in (LOST_WINDOW, LOST_ROWS, DOUBLED)}


def test_what_several_checks_find_is_listed_once(lake: Callable[[str], Path]) -> None:
    found = audit(evaluation(lake("torn")), NOW)
    twice = replace(found, checks=found.checks * 2)

    assert [(w.window, w.kind, w.offsets, w.where) for w in twice.worst] == [
        (w.window, w.kind, w.offsets, w.where) for w in found.worst
    ]


def test_a_missing_result_outweighs_no_anomaly_and_says_why(lake: Callable[[str], Path]) -> None:
    found = audit(evaluation(lake("sound")), NOW, deep=True)

    assert (found.outcome, found.exit_code) == ("undecided", 2)
    assert outcomes(found)[DEEP_AUDIT.name] == "undecided"
    assert len(found.reasons) == 1
    assert "sc://nowhere does not answer: connection refused" in found.reasons[0]


def test_span_leaves_what_lies_outside_alone(lake: Callable[[str], Path]) -> None:
    root = lake("torn")

    def of(text: str) -> Audit:
        return audit(evaluation(root, span=Span.parse(text)), NOW)

    assert of(f"..{key(DOUBLED - 1)}").outcome == "proved"
    assert of(f"{key(DOUBLED + 1)}..{key(LOST_ROWS - 1)}").outcome == "proved"
    around = of(key(LOST_ROWS))
    assert {w.window for w in around.worst} == {key(LOST_ROWS)}
    assert around.heatmap is not None
    assert around.heatmap.windows == 1
    assert of(f"{key(DOUBLED)}..").outcome == "anomalies"


def test_span_without_a_window_has_no_result(lake: Callable[[str], Path]) -> None:
    found = audit(evaluation(lake("sound"), span=Span.parse("2031-01-01-00:00..")), NOW)

    assert (found.outcome, found.reasons) == ("undecided", ("the ledger contains no sealed window to audit",))


def test_lake_without_a_ledger_has_no_result(tmp_path: Path) -> None:
    assert audit(evaluation(tmp_path), NOW).outcome == "undecided"


def test_broken_table_log_has_no_result_and_the_other_checks_go_on(lake: Callable[[str], Path]) -> None:
    root = lake("sound")
    for entry in (root / "raw" / TOPIC / "_delta_log").glob("*.json"):
        entry.write_text("not JSON")

    found = audit(evaluation(root), NOW)
    assert found.exit_code == EXIT_CODES["undecided"]
    assert len(found.checks) == len(CHECKS)
    assert found.reasons


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("2026-01-01-00:00..2026-01-02-00:00", Span("2026-01-01-00:00", "2026-01-02-00:00")),
        ("2026-01-01-00:00..", Span("2026-01-01-00:00", None)),
        ("..2026-01-01-00:00", Span(None, "2026-01-01-00:00")),
        ("2026-01-01-00:00", Span("2026-01-01-00:00", "2026-01-01-00:00")),
    ],
)
def test_span_is_read(text: str, span: Span) -> None:
    assert Span.parse(text) == span


@pytest.mark.parametrize("text", ["", "..", "yesterday..", "2026-01-02-00:00..2026-01-01-00:00", "2026-1-1-0:0"])
def test_span_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"form|YYYY-MM-DD-HH:MM"):
        Span.parse(text)


def test_span_bounds_are_inclusive() -> None:
    span = Span.parse(f"{key(1)}..{key(3)}")

    assert [n for n in range(5) if key(n) in span] == [1, 2, 3]


def test_json_is_documented_whole_and_serialisable(lake: Callable[[str], Path]) -> None:
    found = json.loads(json.dumps(audit(evaluation(lake("torn")), NOW).to_json()))

    assert list(found) == ["version", "table", "at", "outcome", "reasons", "deep", "windows", "checks"]
    assert (found["version"], found["table"], found["outcome"]) == (1, f"raw/{TOPIC}", "anomalies")
    assert found["windows"]["count"] == tables.WINDOWS
    assert found["windows"]["by_state"]["FAILING"] == 3
    gaps = next(c for c in found["checks"] if c["check"] == "no_gaps")
    assert [f["ranges"] for f in gaps["findings"] if f["window"] == key(LOST_ROWS)] == [[[1240, 1260]]]
    assert gaps["figures"]["windows_loaded"] == tables.WINDOWS - tables.WAITING


def test_what_engine_loaded_how_many_windows_is_told(lake: Callable[[str], Path]) -> None:
    root = lake("sound")
    earlier = audit(evaluation(root), NOW)
    loaded = tables.WINDOWS - tables.WAITING
    assert earlier.to_json()["windows"]["by_engine"] == {"not recorded": loaded}
    assert "; loaded: " not in printed(earlier)

    ledger = Ledger(Lake.at(root))
    known = ledger.receipts(TableRef.raw(TOPIC), [key(n) for n in range(3)]).values()
    engines = ("columnar", "connector", "columnar")
    ledger.record_receipts([replace(r, kind="proof", engine=e) for r, e in zip(known, engines, strict=True)])
    now = audit(evaluation(root), NOW)
    assert now.to_json()["windows"]["by_engine"] == {"columnar": 2, "connector": 1, "not recorded": loaded - 3}
    assert f"; loaded: 2 by columnar, 1 by connector, {loaded - 3} not recorded" in printed(now)


# --- terminal -------------------------------------------------------------------------------------------------------


def printed(found: Audit, width: int = 140) -> str:
    console = Console(width=width, record=True, color_system=None)
    with console.capture() as capture:
        print_audit(found, console)
    return capture.get()


def test_terminal_shows_outcome_heatmap_worst_windows_and_remedy(lake: Callable[[str], Path]) -> None:
    text = printed(audit(evaluation(lake("torn")), NOW))

    assert text.startswith(f"raw/{TOPIC}: ANOMALIES FOUND")
    assert "p0 ███m█X████a██████m██X█m███X███"[:9] in text
    assert "X 3 FAILING" in text
    assert "✕ no_gaps: 4 gaps in 2 windows." in text
    assert "p1 [1240, 1260)" in text
    assert f"What to do: Materialize partition {key(LOST_WINDOW)}" in text


def test_terminal_is_short_where_all_is_well(lake: Callable[[str], Path]) -> None:
    lines = printed(audit(evaluation(lake("sound")), NOW)).splitlines()

    assert lines[0] == f"raw/{TOPIC}: PROVED"
    assert len(lines) == 1 + tables.PARTITIONS + 2 + len(CHECKS)
    assert lines[1] == "p0 ███m██████a██████m██████m███··"


def test_progress_off_a_terminal_is_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 6.0, 6.0, 7.0])
    monkeypatch.setattr("platform_assets.cli.audit_table.time.monotonic", lambda: next(clock))
    console = Console(force_terminal=False)
    with console.capture() as capture, progress(console) as show:
        show("too soon")
        show("window [1] of 3")
        show("too soon again")

    assert capture.get() == "window [1] of 3\n"


# --- command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLATFORM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    monkeypatch.setenv("LAKE_ROOT", str(tmp_path / "lake"))
    return lambda *arguments: CliRunner().invoke(main, ["audit", *arguments])


def test_command_exits_0_where_all_is_proved(lake: Callable[[str], Path], command: Callable[..., Result]) -> None:
    lake("sound")

    result = command(f"raw/{TOPIC}", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["outcome"] == "proved"


def test_command_exits_1_where_anomalies_are_found(lake: Callable[[str], Path], command: Callable[..., Result]) -> None:
    lake("torn")

    result = command(f"raw/{TOPIC}")
    assert result.exit_code == 1, result.output
    assert "ANOMALIES FOUND" in result.stdout


@pytest.mark.parametrize("kind", ["decoded", "dead_letters"])
def test_command_of_decoded_tables_exits_0_and_1(tmp_path: Path, command: Callable[..., Result], kind: str) -> None:
    topic = DecodedTopic(tmp_path / "lake", TOPIC)
    (window,) = topic.load([order(1), b"broken"])
    topic.decode()
    result = command(f"{kind}/{TOPIC}", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["windows"]["count"] == 1
    DeltaTable(topic.root / kind / TOPIC).delete("kafka_partition = 0")

    result = command(f"{kind}/{TOPIC}")
    assert result.exit_code == 1, result.output
    assert f"decoded/{TOPIC}: ANOMALIES FOUND" in result.stdout
    assert f"Materialize partition {window} of decoded/{TOPIC}" in result.stdout


def test_command_of_decoded_tables_exits_2_without_a_server_to_read_with(
    tmp_path: Path, command: Callable[..., Result]
) -> None:
    topic = DecodedTopic(tmp_path / "lake", TOPIC)
    topic.load([order(1)])
    topic.decode()
    result = command(f"decoded/{TOPIC}", "--deep")
    assert result.exit_code == 2, result.output
    assert "no Spark Connect server: run `platform-assets up`" in result.stdout


def test_command_exits_2_and_says_what_it_would_have_needed(
    lake: Callable[[str], Path], command: Callable[..., Result]
) -> None:
    root = lake("sound")
    window = samples.loaded(root, Ledger(Lake.at(root)).windows(TOPIC)[-2], {0: [2800]}, holes=None)
    assert window.missing

    result = command(f"raw/{TOPIC}")
    assert result.exit_code == 2, result.output
    assert "COULD NOT TELL" in result.stdout
    assert "KAFKA_BOOTSTRAP_SERVERS" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["raw/nothing"], "'raw/nothing' is not a table of this project"),
        ([f"raw/{TOPIC}", "--windows", "yesterday"], "--windows"),
    ],
)
def test_command_exits_2_for_what_it_cannot_look_at(
    command: Callable[..., Result], arguments: list[str], said: str
) -> None:
    result = command(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr


def test_command_is_bounded_to_the_windows_asked_for(
    lake: Callable[[str], Path], command: Callable[..., Result]
) -> None:
    lake("torn")

    assert command(f"raw/{TOPIC}", "--windows", f"..{key(DOUBLED - 1)}").exit_code == 0
    assert command(f"raw/{TOPIC}", "--windows", key(DOUBLED)).exit_code == 1


def test_check_that_cannot_read_its_table_is_undecided(
    lake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(e: Evaluation) -> NoReturn:
        raise ConfigurationError("no such thing")

    broken = {name: replace(c, evaluate=refuses) if name == "no_gaps" else c for name, c in CHECKS.items()}
    monkeypatch.setattr("platform_assets.checks.audit.CHECKS", broken)

    found = audit(evaluation(lake("sound")), NOW)
    assert outcomes(found)["no_gaps"] == "undecided"
    assert found.reasons == ("no such thing",)
    assert found.checks[0].headline == "Could not tell: no such thing"
