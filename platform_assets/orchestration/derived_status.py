"""The row of `platform-assets status` for a derived table, built from the tables' logs and from Dagster's records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorState

from platform_assets.errors import PlatformError
from platform_assets.lake import delta_log, derived_table
from platform_assets.lake.derived_table import Made
from platform_assets.lake.location import Folder, Lake
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.derived import DerivedDeclaration
from platform_assets.orchestration import dagster_records, derived_definitions, health, names
from platform_assets.orchestration.derived_definitions import asset_key
from platform_assets.orchestration.health import CheckStatus
from platform_assets.windows.derive import freshness, query
from platform_assets.windows.derive.checking import EQUALS_REBUILD
from platform_assets.windows.derive.query import Query


@dataclass(frozen=True, slots=True)
class InputStatus:
    """An input of a derived table: the `version` that the table's rows were computed from, and the `newest` one.

    `version` is None before the first run and if the query did not read the input then; `newest` is None if the input has no rows
    yet. `is_behind` is also true if the input was replaced by another copy, or has seen an erasure that the rows have not.
    """

    table: str
    version: int | None
    newest: int | None
    is_behind: bool


@dataclass(frozen=True, slots=True)
class DerivedStatus:
    """A derived table. The field names are also those of the JSON and must not change.

    `groups` counts the groups that the last run with a commit replaced; it is None if that run computed all rows. `committed_at` is
    the time of that commit (ISO 8601, UTC). `run_id` has the first 8 characters of Dagster's id of its run, or `command`, and random
    digits. Both are None before the first commit. `query_changed` is true if that run computed the rows by another query. `problems`
    says what keeps the table from being brought up to date. `error` explains why nothing else is known.
    """

    table: str
    rows: int
    groups: int | None
    inputs: tuple[InputStatus, ...]
    committed_at: str | None
    run_id: str | None
    checks: tuple[CheckStatus, ...]
    query_changed: bool = False
    problems: tuple[str, ...] = ()
    error: str | None = None

    @property
    def healthy(self) -> bool:
        """True if nothing prevents runs and no check fails; a warning does not count as a failure."""
        return self.error is None and not self.problems and not any(c.failed for c in self.checks)


def collect(
    tables: Sequence[DerivedDeclaration],
    topics: Iterable[TopicDeclaration],
    lake: Lake,
    instance: dg.DagsterInstance | None,
    states: Mapping[str, InstigatorState],
) -> tuple[DerivedStatus, ...]:
    """Return the status of each derived table. Facts that cannot be determined are reported in the table's row; nothing is raised."""
    blocking = [key for topic in topics for key in _blocking_of_topic(topic)]
    blocking += [key for each in tables for key in check_keys(each, blocking=True)]
    found = []
    for each in tables:
        checks = health.latest_checks(instance, check_keys(each))
        try:
            found.append(_collect(each, lake, instance, states, checks, blocking))
        except PlatformError as e:
            found.append(DerivedStatus(each.table.name, 0, None, (), None, None, checks, error=str(e)))
    return tuple(found)


def check_keys(declaration: DerivedDeclaration, *, blocking: bool = False) -> list[dg.AssetCheckKey]:
    """Return the checks of a derived table; with `blocking`, only those that block what is made from it while they fail."""
    wanted = [e.name for e in declaration.expect if not blocking or e.severity == "error"]
    return [dg.AssetCheckKey(asset_key(declaration.table), name) for name in (EQUALS_REBUILD, *wanted)]


def _blocking_of_topic(topic: TopicDeclaration) -> Iterator[dg.AssetCheckKey]:
    yield from names.blocking_keys(topic)
    yield from names.blocking_changes(topic)
    if topic.state is not None:
        yield from names.blocking_state(topic)


def _collect(
    declaration: DerivedDeclaration,
    lake: Lake,
    instance: dg.DagsterInstance | None,
    states: Mapping[str, InstigatorState],
    checks: tuple[CheckStatus, ...],
    blocking: Sequence[dg.AssetCheckKey],
) -> DerivedStatus:
    parsed = query.parsed(declaration)
    made, newer = freshness.up_to_date(lake, declaration)
    newest = freshness.input_versions(lake, parsed)
    before = {} if made is None else made.derivation.inputs
    query_changed = made is not None and made.derivation.declaration != declaration.digest
    inputs = tuple(
        InputStatus(name, version, now, name in newer and not (query_changed and version == now))
        for name, now in newest.items()
        for version in [before[name].version if name in before else None]
    )
    has_past_files = made is not None and freshness.has_past_files(lake, made)
    died = None
    if instance is not None and made is not None:
        died = derived_definitions.died_before_checks(instance, declaration.table, made)
    derivation = None if made is None else made.derivation
    return DerivedStatus(
        table=declaration.table.name,
        rows=0 if derivation is None else derivation.whole.rows,
        groups=None if derivation is None or derivation.because else int(derivation.groups.get("count", 0)),
        inputs=inputs,
        committed_at=None if made is None else _committed_at(lake.table(declaration.table), made),
        run_id=None if derivation is None else derivation.run_id,
        checks=checks,
        query_changed=query_changed,
        problems=(
            *([_past_files(declaration)] if has_past_files else ()),
            *_problems(
                declaration,
                parsed,
                lake,
                instance,
                states,
                blocking,
                is_behind=bool(newer) or has_past_files,
                died=died,
            ),
        ),
    )


def _past_files(declaration: DerivedDeclaration) -> str:
    command = f"`platform-assets derive {declaration.table.short}`"
    return f"{freshness.PAST_FILES}. The next run deletes them; to do so now, run {command}"


def _committed_at(folder: Folder, made: Made) -> str | None:
    """Return the time of a commit; None if its entry in the log has been removed by now."""
    handle = folder.delta()
    with folder.reading():
        commits = handle.history(handle.version() - made.version + 1)
    at = next((commit["timestamp"] for commit in commits if commit.get("version") == made.version), None)
    return None if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds")


def _problems(
    declaration: DerivedDeclaration,
    parsed: Query,
    lake: Lake,
    instance: dg.DagsterInstance | None,
    states: Mapping[str, InstigatorState],
    blocking: Sequence[dg.AssetCheckKey],
    *,
    is_behind: bool,
    died: str | None,
) -> Iterator[str]:
    folder = lake.table(declaration.table)
    command = f"`platform-assets derive {declaration.table.short}`"
    if delta_log.exists(folder) and derived_table.newest(folder)[1]:
        yield (
            "the newest rows are not from a run of this table: another writer changed the table. The next run computes all rows; "
            f"to do so now, run {command}"
        )
    if died is not None and not is_behind:
        yield (
            f"run {died} failed before it had checked the newest rows, so the results of the checks are those of earlier rows; the "
            f"sensor requests another run. The run's log says why, or run {command}"
        )
    if instance is None or not (is_behind or died):
        return
    sensor = health.sensor(instance, states, derived_definitions.sensor_name(declaration.table))
    if sensor is not None and not sensor.running:
        yield f"its sensor {sensor.name} is stopped, so no run is requested: start it in the UI under Automation"
    keys = {asset_key(each) for each in parsed.inputs}
    failing = [key for key in blocking if key.asset_key in keys and dagster_records.blocked_by(instance, [key])]
    if failing:
        listed = ", ".join(f"{key.asset_key.to_user_string()} {key.name}" for key in failing)
        yield f"no run is requested, because a blocking check of an input failed: {listed}. Follow that check's remedy"
    elif is_behind and (run := _failed(instance, declaration)) is not None:
        yield f"the last run, {run}, failed; the sensor requests it again. Its log says why, or run {command}"


def _failed(instance: dg.DagsterInstance, declaration: DerivedDeclaration) -> str | None:
    """Return the id of the newest run that the sensor requested, if it failed."""
    tags = {derived_definitions.TAG: derived_definitions.run_tag(declaration.table)}
    runs = instance.get_runs(dg.RunsFilter(tags=tags), limit=1)
    return runs[0].run_id if runs and runs[0].status == dg.DagsterRunStatus.FAILURE else None
