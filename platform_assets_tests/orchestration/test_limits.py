"""Topics with more windows than Dagster's UI supports: a new topic is refused; a topic that already runs continues."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from platform_assets.components.declared import too_many_windows
from platform_assets.components.yaml_check import Declared
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration import planning, status
from testbed.samples import recorded

NOW = datetime(2026, 11, 22, 12, 30, tzinfo=UTC)
LONG = TopicDeclaration("clicks", "*/3 * * * *", datetime(2011, 1, 1, tzinfo=UTC))
FILE = Path("/defs/clicks/defs.yaml")


def test_a_start_long_ago_is_refused_before_the_first_cut_and_its_remedy_works(tmp_path: Path) -> None:
    (mistake,) = too_many_windows([Declared(LONG, FILE, 3, 5)], Ledger(Lake.at(tmp_path)), NOW)
    assert (mistake.file, mistake.line) == (FILE, 5)
    assert "2,786,170 windows" in mistake.message
    later = re.search(r"such as (\S+) ", mistake.message)
    assert later is not None
    mended = replace(LONG, start=datetime.fromisoformat(later[1]))
    assert too_many_windows([Declared(mended, FILE, 3, 5)], Ledger(Lake.at(tmp_path)), NOW) == ()
    longer = replace(LONG, schedule="0 0 * * *")
    assert too_many_windows([Declared(longer, FILE, 3, 5)], Ledger(Lake.at(tmp_path)), NOW) == ()


def test_the_limit_itself_is_allowed(tmp_path: Path) -> None:
    minutes = TopicDeclaration("clicks", "* * * * *", NOW - timedelta(minutes=planning.WINDOW_LIMIT))
    assert planning.windows_until(minutes, NOW) == planning.WINDOW_LIMIT
    assert too_many_windows([Declared(minutes, FILE, 3, 5)], Ledger(Lake.at(tmp_path)), NOW) == ()
    assert (
        too_many_windows([Declared(minutes, FILE, 3, 5)], Ledger(Lake.at(tmp_path)), NOW + timedelta(minutes=1)) != ()
    )


def test_a_table_that_runs_goes_on_and_status_warns(tmp_path: Path) -> None:
    recorded(tmp_path, LONG.topic, [{0: 0}, {0: 10}])
    ledger = Ledger(Lake.at(tmp_path))
    assert too_many_windows([Declared(LONG, FILE, 3, 5)], ledger, NOW) == ()
    (table,) = status.collect([LONG], ledger, None, None, (), NOW).tables
    assert table.warning is not None
    assert "2,786,170 windows" in table.warning
    (small,) = status.collect([replace(LONG, schedule="0 0 * * *")], ledger, None, None, (), NOW).tables
    assert small.warning is None
