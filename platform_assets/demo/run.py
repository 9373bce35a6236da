"""`make demo`: streams the data, lets the platform load it, proves that the tables match it, and leaves the UI open."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from platform_assets.demo import downstream, state, summary, waiting
from platform_assets.demo.dataset import SOURCES, TopicName, load
from platform_assets.demo.display import Counters, Display
from platform_assets.demo.producing import Streams, open_streams
from platform_assets.errors import ConfigurationError, PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.services import brokers, platform
from platform_assets.services.errors import ServiceEndedError
from platform_assets.services.home import Home
from platform_assets.services.platform import KAFKA_ADDRESS, LAKE_ROOT, SERVICES, Service, UpOptions
from platform_assets.services.project import DEFS_VARIABLE
from platform_assets.services.supervisor import signals_end_in_order

if TYPE_CHECKING:
    from platform_assets.demo.waiting import TopicView

LIVE_SECONDS: Final = 80.0
"""Duration of the data's live part, in seconds."""

DAGSTER: Final[tuple[Service, ...]] = ("dagster-webserver", "dagster-daemon")


def run_demo(home: Home, once: bool, *, live_seconds: float = LIVE_SECONDS, display: Display | None = None) -> int:
    """Run the demo on the data folder `home`. A second run continues where the first run ended.

    Args:
        home: the data folder.
        once: end after the proof is printed, instead of leaving the UI open until Ctrl-C.
        live_seconds: duration of the data's live part.
        display: shows the progress; on standard output by default.

    Returns:
        0 if every table is exact and every check has passed, otherwise 1; 130 if the demo was interrupted before that.
    """
    shown = display or Display()
    try:
        with signals_end_in_order(), state.exclusive_demo(home.root), _log_file(home):
            return _Demo(home, shown, live_seconds).run(once)
    except PlatformError as error:
        shown.show(f"The demo failed: {error}")
        shown.show(f"Logs: {home.logs}")
        return 1
    except KeyboardInterrupt:
        shown.show("Interrupted. Run the demo again to continue from here.")
        return 130


@dataclass(frozen=True, slots=True)
class _Demo:
    home: Home
    display: Display
    live_seconds: float

    def run(self, once: bool) -> int:
        self._introduce()
        _check_declared()
        start = state.remembered_start(self.home.root)
        setting = state.start_setting(start)
        with self._services(setting) as started, ThreadPoolExecutor(1, "demo-data") as pool:
            # Reading the data takes as long as the broker needs to come up.
            data = [pool.submit(load, topic) for topic in SOURCES]
            self._up(("kafka",), started)
            for reading in data:
                reading.result()
            client = ClientSettings.from_environment({**os.environ, **self._environment()})
            passed = self._stream_and_prove(client, start, started)
            if not once:
                self._leave_open()
            return 0 if passed else 1

    def _stream_and_prove(self, client: ClientSettings, start: datetime, started: set[Service]) -> bool:
        stop = threading.Event()
        totals: dict[str, int] = {topic: len(load(topic)) for topic in SOURCES}
        self.display.show("Streaming the data, beginning with the half hour before the demo first started.")
        with ExitStack() as stack:
            # Counting continues with the live part, so the streams report to the current display.
            teller = _Teller()
            with self.display.counters(totals) as counters, teller.to(counters):
                streams = stack.enter_context(open_streams(client, start, stop=stop, on_sent=teller.sent))
                if any(streams.missing.values()):
                    streams.send_backlog()
            # The platform starts after the backlog, so that it cuts the backlog's windows by timestamp look-up.
            self._up(SERVICES, started)
            self.display.show(f"Dagster UI: {self._ui()}")
            self.display.show(
                "The sensors seal each one-minute window once it has closed, runs load it, and checks verify it."
            )
            with self.display.counters(totals) as counters, teller.to(counters):
                views = self._follow(client, streams, stop, counters)
        self.display.show("Everything is loaded. What is made from the tables follows.")
        made = self._follow_downstream(client)
        self.display.show("Comparing the tables with the data and with the topics, row by row.")
        lake, cluster = self._lake(), Cluster.connect(client)
        results = [summary.collect(client, Ledger(lake), topic, views[topic]) for topic in SOURCES]
        compared = list(downstream.compared(lake, client, cluster))
        faults = [f"{view.name}: {fault}" for view in made for fault in view.faults]
        return summary.print_results(self.display.console, results, compared, faults)

    def _follow_downstream(self, client: ClientSettings) -> Sequence[downstream.View]:
        """Wait until the derived tables, the state and the published topic have everything; return their final views."""
        import dagster as dg

        with dg.DagsterInstance.from_config(str(self.home.dagster)) as instance:
            ledger, cluster = Ledger(self._lake()), Cluster.connect(client)
            return downstream.follow(
                lambda: downstream.look(ledger, cluster, instance),
                alive=self._check_alive,
                report=self.display.detail,
                patience=waiting.STALLED_SECONDS,
            )

    def _follow(
        self, client: ClientSettings, streams: Streams, stop: threading.Event, counters: Counters
    ) -> Mapping[TopicName, TopicView]:
        """Send the live records, wait until everything is loaded and checked, and return the final view of each topic."""
        # Dagster is slow to import, and nothing needs it before this point.
        import dagster as dg

        from platform_assets.components.declared import declarations
        from platform_assets.demo.waiting import Observer

        with (
            dg.DagsterInstance.from_config(str(self.home.dagster)) as instance,
            ThreadPoolExecutor(1, "demo-live") as pool,
        ):
            live: Future[None] = pool.submit(streams.send_live, self.live_seconds)
            try:
                observer = Observer(
                    Ledger(self._lake()), Cluster.connect(client), instance, datetime.now(UTC), declarations()
                )
                return waiting.follow(
                    live, look=observer.look, alive=self._check_alive, counters=counters, explain=self._explain
                )
            finally:
                stop.set()

    def _introduce(self) -> None:
        self.display.show(
            "This demo streams data about flights from New York City in 2013, about their planes and about the "
            "weather to three Kafka topics. The platform loads each record into lake tables, exactly once."
        )
        self.display.show(f"Data folder: {self.home.root}")

    @contextmanager
    def _services(self, setting: str) -> Iterator[set[Service]]:
        """Publish the demo's start to Dagster. At the end of the block, stop the services that were started in the
        block."""
        running = self._running()
        if state.publish_start(self.home, setting) and running.keys() & set(DAGSTER):
            # They were started before the demo, and have read the definitions with another start.
            platform.down(self.home, services=DAGSTER, report=self.display.detail)
        started = state.left_services(self.home.root, running)
        if started:
            self.display.detail(f"services taken over from a demo that was killed: {', '.join(sorted(started))}")
        try:
            yield started
        finally:
            with _interrupts_ignored():
                ending = [service for service in platform.ALL_SERVICES if service in started]
                if ending:
                    self.display.show("Ending the services that this demo started.")
                    platform.down(self.home, services=ending, report=self.display.detail)
                state.remember_services(self.home.root, {})

    def _up(self, services: tuple[Service, ...], started: set[Service]) -> None:
        before = self._running()
        own = {service: pid for service, pid in before.items() if service in started}
        # `kafka` stands for all brokers of the home.
        starting = {*services, *(brokers.formatted(self.home) if "kafka" in services else ())} - {*before}
        state.remember_services(self.home.root, own | dict.fromkeys(starting))
        platform.up(self.home, UpOptions(services=services), report=self.display.detail)
        after = self._running()
        started.update(service for service in after if service not in before)
        state.remember_services(self.home.root, {service: after.get(service) for service in started})

    def _running(self) -> dict[Service, int | None]:
        return {s.service: s.pid for s in platform.running_state(self.home) if s.status == "running"}

    def _environment(self) -> dict[str, str]:
        found = platform.environment(self.home)
        if KAFKA_ADDRESS not in found:
            raise ConfigurationError(
                f"no broker is running, and none is configured: set {KAFKA_ADDRESS}, or run the demo again."
            )
        return found

    def _check_alive(self) -> None:
        for service in platform.running_state(self.home):
            if service.status == "dead":
                raise ServiceEndedError(service.service, service.log or "")

    def _ui(self) -> str:
        addresses = {s.service: s.address for s in platform.running_state(self.home)}
        return addresses.get("dagster-webserver") or "your own Dagster (DAGSTER_HOME is set)"

    def _lake(self) -> Lake:
        return Lake.at(self._environment()[LAKE_ROOT])

    def _explain(self, topic: TopicName, view: TopicView) -> str:
        parts = [f"Topic {topic}: {waiting.progress(view)}"]
        parts += [f"the run for {run.windows} failed: {self._ui()}/runs/{run.run_id}" for run in view.failed[:1]]
        parts += view.check_faults
        logs = [self.home.log_file(service) for service in DAGSTER]
        return ", ".join(parts) + f". See {' and '.join(map(str, logs))}."

    def _leave_open(self) -> None:
        self.display.show(
            f"The platform is still running; its UI: {self._ui()}. Press Ctrl-C to stop the platform, and run `make demo` to continue."
        )
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            self.display.show()


def _check_declared() -> None:
    """Raise ConfigurationError, before anything starts, unless the definitions are valid and declare the demo's topics."""
    from platform_assets.components import declared, yaml_check

    folder = declared.defs_folder()
    found = yaml_check.judge(folder)
    declared.refuse(found.mistakes)
    missing = sorted(set(SOURCES) - {d.declaration.topic for d in found.declared})
    if missing:
        given = os.environ.get(DEFS_VARIABLE)
        back = "restore the file with `git checkout -- platform_assets/defs/flights`"
        raise ConfigurationError(
            f"the demo's topics {', '.join(missing)} are not declared under {folder}. This source tree declares them "
            f"in flights/defs.yaml: {f'unset {DEFS_VARIABLE} for the demo' if given else back}."
        )


class _Teller:
    """Passes counts of sent rows to the current display, and keeps them for the next display."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._sent: dict[TopicName, int] = {}
        self._counters: Counters | None = None

    def sent(self, topic: TopicName, rows: int) -> None:
        """Count rows that have arrived in a topic."""
        with self._mutex:
            self._sent[topic] = self._sent.get(topic, 0) + rows
            if self._counters is not None:
                self._counters.advance(topic, rows)

    @contextmanager
    def to(self, counters: Counters) -> Iterator[None]:
        """Pass counts to `counters` until the end of the block. Begin with the counts so far."""
        with self._mutex:
            self._counters = counters
            for topic, rows in self._sent.items():
                counters.advance(topic, rows)
        try:
            yield
        finally:
            with self._mutex:
                self._counters = None


@contextmanager
def _log_file(home: Home) -> Iterator[None]:
    """Send the log messages of libraries to a file, so that they do not disturb the display of progress."""
    home.prepare()
    handler = logging.FileHandler(home.log_file("demo"), mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore interrupts, because a second Ctrl-C while services are being stopped would leave some services running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
