"""A soak: for some minutes, everything that can die, freeze or be cut off does so at random. After that, all services
return, and the result is verified.

There are proxies between the client, the broker and Spark. Two producers and upkeep run all the time. The result is
judged by the same checker as that of the random histories.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import psutil

from platform_assets.model.declaration import EngineName
from platform_assets.services.platform import Service
from platform_assets_tests.soak import proof
from platform_assets_tests.soak.embedded import Embedded
from platform_assets_tests.soak.live import LiveProducer, TransactionalProducer, create
from platform_assets_tests.soak.proxy import Proxy
from platform_assets_tests.soak.reader import Reader
from platform_assets_tests.soak.upkeeps import Upkeeps

PARTITIONS: Final = 3
_LONGEST: Final = 10.0
"""Maximum number of seconds for which a part is down, frozen or cut off."""
_BOUND: Final = 900.0
"""Maximum number of seconds until everything is loaded. A failed window is requested again after at most ten minutes.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a storm that lasted `seconds`: its actions, counted by kind, and its findings. `healed_after` is in
    seconds."""

    seed: int
    engine: EngineName
    seconds: float
    done: Mapping[str, int]
    sends: Mapping[str, int]
    windows: int
    runs: int
    healed_after: float
    versions_read: int
    orphans: int
    anomalies: tuple[str, ...]

    def line(self) -> str:
        """Return a Markdown table row."""
        done = ", ".join(f"{n} × {kind}" for kind, n in sorted(self.done.items()))
        sends = ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(self.sends.items()))
        return (
            f"| {self.seed} | {self.engine} | {self.seconds:.0f} | {done} | {sends} | {self.windows} | {self.runs} "
            f"| {self.healed_after:.0f} | {self.versions_read} | {self.orphans} | {'; '.join(self.anomalies) or 'none'} |"
        )


HEADER: Final = (
    "| seed | engine | seconds | done | records sent | windows | runs | recovery, s | versions read | orphan files | anomalies |\n"
    "|--:|---|--:|---|---|--:|--:|--:|--:|--:|---|"
)


def run(seed: int, seconds: float, root: Path, engine: EngineName, *, rate: int = 100) -> Outcome:
    """Run one storm on a platform below `root`. Raises AssertionError if the platform does not recover in time."""
    rng = random.Random(seed)
    topic = f"storm-{seed}"
    with ExitStack() as stack:
        kafka, spark = (stack.enter_context(Proxy(0).serving()) for _ in range(2))
        platform = Embedded(
            root,
            root / "lake",
            properties={"advertised.listeners": f"CLIENTS://127.0.0.1:{kafka.port}"},
            instance_settings={"run_monitoring": {"poll_interval_seconds": 2}},
        )
        start = datetime.now(UTC) - timedelta(minutes=1)
        platform.declare(topic, start, engine, sensor_interval_seconds=1, max_windows_per_run=2)
        stack.enter_context(platform.running(("kafka", "spark")))
        kafka.target = platform.record("kafka").ports[0]
        spark.target = platform.record("spark").ports[0]
        platform.reach_by(kafka.port, spark.port)
        create(platform.bootstrap, topic, PARTITIONS)
        platform.start("dagster-daemon")
        live = LiveProducer(platform.bootstrap, topic, PARTITIONS, rate)
        transactions = TransactionalProducer(platform.bootstrap, topic, PARTITIONS, random.Random(rng.random()))
        with Reader(proof.table_of(platform, topic)).reading() as reader:
            upkeeps = Upkeeps(platform)
            with live.sending(), transactions.sending(), upkeeps.working():
                done = _Storm(platform, kafka, spark, upkeeps, rng).blow(seconds)
            healed_after = proof.healed(platform, [topic], _BOUND)
            upkeeps.at_rest()
        sends = [*live.sends, *transactions.sends]
        orphans = len(proof.orphans(platform, topic))
        windows = platform.ledger.windows(topic)
        # Counted in the table, since the outcome of some sends is unknown; the history shows that the table is
        # complete.
        held = proof.records_by_window(windows, ((r.partition, r.offset) for r in proof.rows(platform, topic)))
        found = proof.anomalies(platform, topic, sends) + reader.wrong(held) + upkeeps.anomalies
        done += Counter({f"upkeep {outcome}": number for outcome, number in upkeeps.outcomes.items()})
        with platform.instance() as instance:
            runs = instance.get_runs_count()
        return Outcome(
            seed, engine, seconds, done, Counter(s.outcome for s in sends), len(windows), runs,
            healed_after, reader.versions, orphans, tuple(found),
        )  # fmt: skip


@dataclass
class _Storm:
    platform: Embedded
    kafka: Proxy
    spark: Proxy
    upkeeps: Upkeeps
    rng: random.Random

    def blow(self, seconds: float) -> Counter[str]:
        """Cause one fault after another for `seconds`. At the end, everything that was taken away is back."""
        deeds: Mapping[str, Callable[[], bool]] = {
            "SIGKILL of a run": self._kill_run,
            "SIGKILL of the code server": self._kill_code_server,
            "SIGKILL of a worker": self._kill_worker,
            "SIGKILL of Spark": lambda: self._kill("spark"),
            "SIGKILL of the broker": lambda: self._kill("kafka"),
            "SIGKILL of the daemon": lambda: self._kill("dagster-daemon"),
            "SIGKILL of upkeep": self.upkeeps.kill,
            "SIGSTOP of Spark": lambda: self._freeze("spark"),
            "SIGSTOP of the broker": lambda: self._freeze("kafka"),
            "SIGSTOP of a run": self._freeze_run,
            "cut connections": self._cut,
            "refused connections": self._refuse,
            "stalled connections": self._stall,
            "slow connections": self._slow,
        }
        done: Counter[str] = Counter()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self.rng.uniform(0.5, 5))
            kind = self.rng.choice(list(deeds))
            done[kind] += deeds[kind]()
        return +done

    def _pause(self) -> None:
        time.sleep(self.rng.uniform(0.1, _LONGEST))

    def _kill(self, service: Service) -> bool:
        self.platform.kill(service)
        self._pause()
        self.platform.start(service)
        return True

    def _freeze(self, service: Service) -> bool:
        with self.platform.frozen(service):
            self._pause()
        return True

    def _kill_one(self, found: list[psutil.Process]) -> bool:
        with suppress(psutil.NoSuchProcess):
            if found:
                self.rng.choice(found).kill()
                return True
        return False

    def _kill_run(self) -> bool:
        return self._kill_one([psutil.Process(pid) for pid in self.platform.run_processes()])

    def _kill_worker(self) -> bool:
        return self._kill_one(self.platform.workers())

    def _kill_code_server(self) -> bool:
        return self._kill_one(self.platform.code_servers())

    def _freeze_run(self) -> bool:
        with suppress(psutil.NoSuchProcess):
            for pid in self.platform.run_processes()[:1]:
                process = psutil.Process(pid)
                process.suspend()
                self._pause()
                process.resume()
                return True
        return False

    def _proxy(self) -> Proxy:
        return self.rng.choice((self.kafka, self.spark))

    def _cut(self) -> bool:
        self._proxy().cut()
        return True

    def _refuse(self) -> bool:
        with self._proxy().refusing():
            self._pause()
        return True

    def _stall(self) -> bool:
        with self._proxy().stalled():
            self._pause()
        return True

    def _slow(self) -> bool:
        with self._proxy().slowed(self.rng.uniform(0.01, 0.3)):
            self._pause()
        return True
