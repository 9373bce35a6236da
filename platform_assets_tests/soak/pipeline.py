"""Kafka to Kafka through the lake: a topic is loaded and decoded by windows of a minute, filtered and aggregated by a
derived table, and published to another topic, while runs are killed with SIGKILL.

Declarations, daemon and runs are those of a user. A read_committed consumer must find each aggregate of the producer's
notes once, with its value, and soon after the window's end. Next to it, Structured Streaming does the same with its sink
for Kafka, and the process that runs it is killed as often (`peer`).
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, get_args

import psutil
import yaml

from platform_assets.orchestration.derived_definitions import TAG
from platform_assets.services import platform as services
from platform_assets_tests.soak.embedded import Embedded
from platform_assets_tests.soak.live import create
from platform_assets_tests.soak.request_log import (
    LEAST_STATUS,
    MINUTE,
    PARTITIONS,
    SCHEMA,
    Judgment,
    Key,
    Lags,
    Read,
    Reader,
    Row,
    SteadyProducer,
    end_of_minute,
    judge,
)

Kill = Literal["load", "derive", "publish", "sending"]
"""What is killed, at a random moment: a run that loads and decodes, one that derives, or one that publishes; `sending`
is a run that publishes, as soon as a consumer of uncommitted records sees the first one."""
KILLS: Final[tuple[Kill, ...]] = get_args(Kill)
TABLE: Final = "failed_requests"
_LONGEST: Final[Mapping[Kill, float]] = {"load": 5.0, "derive": 8.0, "publish": 3.0}
"""Latest moment of a kill, in seconds after the run has started."""
_INTERVAL: Final = 2
"""Seconds between two ticks of each sensor."""
_BOUND: Final = 900.0
_RUN_WITHIN: Final = 30.0
_POLL: Final = 0.3
_TOPIC_OF_RESULTS: Final = "results"

HEADER: Final = (
    "| seed | by | records | records/s | kills | aggregates | doubled | lost | foreign | wrong | lag, s: p50 | max | first | last "
    "| keeps up | other findings |\n|--:|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|---|"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one contender did with the records. `late` is the largest delay of the producer, in seconds; `findings` are
    audits that failed."""

    seed: int
    by: str
    rate: int
    minutes: float
    records: int
    kills: Mapping[str, int]
    aggregates: int
    judgment: Judgment
    lags: Lags
    late: float
    findings: tuple[str, ...] = ()

    @property
    def anomalies(self) -> tuple[str, ...]:
        """Everything that must not be."""
        found = [f"{self.judgment.anomalies} aggregates are not right"] if self.judgment.anomalies else []
        found += list(self.judgment.examples)
        if not self.lags.keeps_up:
            found.append("it does not keep up")
        return (*found, *self.findings)

    def line(self) -> str:
        """Return a Markdown table row."""
        lags, j = self.lags.to_json(), self.judgment
        kills = ", ".join(f"{n} × {kind}" for kind, n in sorted(self.kills.items())) or "none"
        each = (
            self.seed, self.by, f"{self.records:,}", f"{self.rate:,}", kills, f"{self.aggregates:,}", j.doubled, j.lost,
            j.foreign, j.wrong, *(lags.get(name, "") for name in ("p50", "max", "first", "last")),
            "yes" if self.lags.keeps_up else "no", "; ".join(self.findings) or "none",
        )  # fmt: skip
        return f"| {' | '.join(map(str, each))} |"

    def to_json(self) -> str:
        """Return everything in one line."""
        j = self.judgment
        fields = {
            "scenario": "pipeline", "seed": self.seed, "by": self.by, "rate": self.rate, "minutes": self.minutes,
            "records": self.records, "kills": dict(self.kills), "aggregates": self.aggregates, "doubled": j.doubled,
            "lost": j.lost, "foreign": j.foreign, "wrong": j.wrong, "lag_seconds": self.lags.to_json(),
            "lags": [round(lag, 1) for lag in self.lags.seconds.values()], "keeps_up": self.lags.keeps_up,
            "producer_late_seconds": round(self.late, 1), "findings": list(self.findings),
        }  # fmt: skip
        return json.dumps(fields)


@dataclass
class Course:
    """What both contenders have in common: the source topic, the topic of results, when to kill, and who watches."""

    rng: random.Random
    platform: Embedded
    name: str
    rate: int
    minutes: float
    kills: int
    say: Callable[[str], None]
    done: Counter[str] = field(default_factory=Counter)
    first_of_batch: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    broken: list[BaseException] = field(default_factory=list)
    _arriving: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for topic in (self.source, self.results):
            create(self.platform.bootstrap, topic, PARTITIONS)

    @property
    def source(self) -> str:
        """The topic of requests."""
        return f"{self.name}-requests"

    @property
    def results(self) -> str:
        """The topic of aggregates."""
        return f"{self.name}-{_TOPIC_OF_RESULTS}"

    def plan(self) -> list[tuple[float, Kill]]:
        """Return when to look for which run to kill, in seconds after the start: one in each part of the time that begins
        with the end of the first window."""
        kinds: list[Kill] = []
        while len(kinds) < self.kills:
            some = list(KILLS)
            self.rng.shuffle(some)
            kinds += some
        part = (self.minutes - 1) * MINUTE / max(self.kills, 1)
        return [(MINUTE + part * (n + 0.8 * self.rng.random()), kind) for n, kind in enumerate(kinds[: self.kills])]

    def run(
        self, kill: Callable[[Kill], bool], expected: Callable[[SteadyProducer], dict[Key, Row] | None]
    ) -> tuple[SteadyProducer, list[Read], dict[Key, Row]]:
        """Send, kill, and read until every aggregate has arrived; then for more than a window, since a record may come
        twice. `kill` tries to kill something and tells if it did. `expected` returns the aggregates, or None if they are not
        known yet. Raises AssertionError if aggregates are missing for too long."""
        _until_next_minute()
        producer = SteadyProducer(self.platform.bootstrap, self.source, self.rate, round(self.minutes * MINUTE))
        committed = Reader(self.platform.bootstrap, self.results, seen=self._arrived)
        unfinished = Reader(
            self.platform.bootstrap, self.results, committed=False, seen=lambda read: self.first_of_batch.set()
        )
        with ExitStack() as stack:
            for each in (committed, unfinished):
                stack.enter_context(each.reading())
            stack.enter_context(producer.sending())
            stack.enter_context(self._killing(kill))
            self._wait("all records are sent", lambda: producer.is_done, self.minutes * MINUTE + 120)
            self.say(f"{self.name}: {producer.total:,} records are sent; {len(committed.read)} aggregates have arrived")
            wanted: dict[Key, Row] = {}

            def complete() -> bool:
                if not wanted:
                    wanted.update(expected(producer) or {})
                return bool(wanted) and len({each.key for each in committed.read}) >= len(wanted)

            with suppress(_Late):  # The judge says what is missing.
                self._wait("all aggregates have arrived", complete, _BOUND)
            time.sleep(MINUTE + 30)
        return producer, list(committed.read), wanted

    def _arrived(self, read: Read) -> None:
        window = "" if read.parsed is None else read.parsed[0][0]
        if window and window not in self._arriving:
            self._arriving.add(window)
            self.say(
                f"{self.name}: window {window}: first aggregate {read.at - end_of_minute(window):.1f} s after its end"
            )

    def _wait(self, what: str, reached: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            if self.broken:
                raise self.broken[0]
            if time.monotonic() > deadline:
                raise _Late(what)
            time.sleep(1)

    @contextmanager
    def _killing(self, kill: Callable[[Kill], bool]) -> Iterator[None]:
        def work() -> None:
            began = time.monotonic()
            try:
                for at, kind in self.plan():
                    if self.ended.wait(max(at - (time.monotonic() - began), 0)):
                        return
                    while not kill(kind):
                        if self.ended.is_set():
                            return
                    self.done[kind] += 1
                    self.say(f"{self.name}: {time.monotonic() - began:.0f} s: SIGKILL, {kind}")
            except BaseException as e:
                self.broken.append(e)
                raise

        thread = threading.Thread(target=work, name="kills")
        thread.start()
        try:
            yield
        finally:
            self.ended.set()
            thread.join()


class _Late(AssertionError):
    """Something took too long."""


def _until_next_minute() -> None:
    """Wait for the start of a minute, so that windows are full."""
    time.sleep(MINUTE - time.time() % MINUTE)


# --- the platform -----------------------------------------------------------------------------------------------------


def declared(source: str, results: str, start: datetime) -> str:
    """Return the YAML of the pipeline."""
    component = "platform_assets.components."
    often = {"sensor_interval_seconds": _INTERVAL}
    topic = {
        "topic": source, "window": "* * * * *", "start": start.isoformat(), "deep_audit_running": False,
        "decode": {"value": {"format": "json", "schema": SCHEMA}}, **often,
    }  # fmt: skip
    sql = f"""
        SELECT r.window, r.service, count(*) AS failures, sum(r.bytes) AS bytes, max(r.number) AS last
        FROM decoded.`{source}` r WHERE r.status >= {LEAST_STATUS} GROUP BY r.window, r.service"""
    derived = {"table": TABLE, "by": "window", "sql": sql, **often}
    published = {
        "topic": results, "table": f"derived/{TABLE}", "key": {"format": "json", "columns": ["window", "service"]},
        "value": {"format": "json", "columns": list(Row._fields)}, **often,
    }  # fmt: skip
    named = (("TopicTable", topic), ("DerivedTable", derived), ("PublishedTopic", published))
    return yaml.safe_dump_all([{"type": component + name, "attributes": each} for name, each in named])


def by_platform(course: Course, seed: int) -> Outcome:
    """Let the platform do it. Kafka and Spark must be running."""
    platform = course.platform
    start = datetime.now(UTC).replace(second=0, microsecond=0)
    folder = platform.root / "defs" / course.name
    folder.mkdir()
    (folder / "defs.yaml").write_text(declared(course.source, course.results, start))
    platform.start("dagster-daemon")

    def expected(producer: SteadyProducer) -> dict[Key, Row] | None:
        windows = platform.ledger.windows(course.source)
        ranges = {w.key: {p: (r.start, r.end) for p, r in w.ranges.items()} for w in windows}
        found = producer.notes().by_ranges(ranges)
        return found if sum(row.failures for row in found.values()) == producer.notes().failures else None

    producer, read, wanted = course.run(lambda kind: _kill_run(course, kind), expected)
    ends = {w.key: w.window.end.timestamp() for w in platform.ledger.windows(course.source)}
    findings = []
    for table in (
        f"raw/{course.source}",
        f"decoded/{course.source}",
        f"derived/{TABLE}",
        f"published/{course.results}",
    ):
        answer = platform.command("audit", table)
        if answer.code:
            findings.append(f"`audit {table}` exited with code {answer.code}: {answer.text}")
    services.down(platform.home, services=("dagster-daemon",), report=course.say)
    return outcome(course, seed, "platform", producer, read, wanted, ends, findings)


def outcome(
    course: Course,
    seed: int,
    by: str,
    producer: SteadyProducer,
    read: Sequence[Read],
    wanted: Mapping[Key, Row],
    ends: Mapping[str, float],
    findings: Sequence[str] = (),
) -> Outcome:
    """Judge what was read, and return the outcome. `ends` has the ends of windows, in seconds since 1970."""
    lags = Lags.of(read, ends)
    return Outcome(
        seed, by, course.rate, course.minutes, producer.total, course.done, len(wanted), judge(wanted, read), lags,
        producer.latest, tuple(findings),
    )  # fmt: skip


def _kill_run(course: Course, kind: Kill) -> bool:
    """Wait for a run of a kind, and kill its process at a random moment. Return False if it ended before, or none came
    for some time."""
    wanted, process = "publish" if kind == "sending" else kind, None
    with course.platform.instance() as instance:
        until = time.monotonic() + _RUN_WITHIN
        while process is None and time.monotonic() < until and not course.ended.wait(_POLL):
            runs = course.platform.live_runs(instance)
            process = next((process for run, process in runs if _kind_of(run) == wanted), None)
    if process is None:
        return False
    course.first_of_batch.clear()
    with suppress(psutil.NoSuchProcess):
        if kind != "sending":
            course.ended.wait(course.rng.uniform(0, _LONGEST[kind]))
        else:
            while not course.first_of_batch.wait(_POLL / 100):
                if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                    return False
        if process.status() != psutil.STATUS_ZOMBIE:
            process.kill()
            return True
    return False


def _kind_of(run: Any) -> Kill:
    if TAG in run.tags:
        return "derive"
    return "publish" if run.job_name.endswith("_publish_job") else "load"


def run(
    seed: int,
    minutes: float,
    root: Path,
    *,
    rate: int = 10_000,
    kills: int | None = None,
    peer: bool = True,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Run both contenders, one after the other, with a platform below `root`; without `peer`, only the platform. There is a
    kill for each minute if `kills` is None."""
    from platform_assets_tests.soak.pipeline_peer import by_structured_streaming

    platform = Embedded(root, root / "lake")
    found = []
    with platform.running(("kafka", "spark")):

        def course(name: str) -> Course:
            number = round(minutes) if kills is None else kills
            return Course(random.Random(seed), platform, f"{name}-{seed}", rate, minutes, number, say)

        found.append(by_platform(course("lake"), seed))
        say(found[-1].to_json())
        if peer:
            found.append(by_structured_streaming(course("peer"), seed, root))
            say(found[-1].to_json())
    return found
