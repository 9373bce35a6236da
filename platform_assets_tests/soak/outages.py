"""Outages as a user meets them: a live producer, the real daemon, a service or disk that is unavailable for minutes,
and no intervention.

The output of `platform-assets status` during each outage is recorded, because users see this output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, get_args

from platform_assets.model.declaration import EngineName
from platform_assets.services.platform import Service
from platform_assets_tests.soak import proof
from platform_assets_tests.soak.disk import Disk, small_disk
from platform_assets_tests.soak.embedded import Answer, Embedded
from platform_assets_tests.soak.live import LiveProducer, create

OutageName = Literal["spark", "broker", "both", "disk"]
OUTAGES: Final[tuple[OutageName, ...]] = get_args(OutageName)
_SERVICES: Final[dict[OutageName, tuple[Service, ...]]] = {
    "spark": ("spark",), "broker": ("kafka",), "both": ("kafka", "spark"), "disk": (),
}  # fmt: skip
_DISK_MEGABYTES: Final = 256
_BOUND: Final = 900.0
"""Maximum number of seconds until everything is loaded after a service is back. A failed window is requested again
after at most ten minutes."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Output of a command at the time `at`, during an outage."""

    at: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Outage:
    """One outage that lasted `minutes`, and the number of seconds until recovery. `anomalies` is empty if everything
    was verified."""

    name: OutageName
    engine: EngineName
    minutes: float
    records: int
    windows: int
    healed_after: float
    observed: tuple[Observed, ...]
    anomalies: tuple[str, ...]

    def line(self) -> str:
        """Return a Markdown table row."""
        codes = ", ".join(str(seen.answer.code) for seen in self.observed)
        return (
            f"| {self.name} | {self.engine} | {self.minutes:g} | {self.records:,} | {self.windows} | {codes} "
            f"| {self.healed_after:.0f} | {'; '.join(self.anomalies) or 'none'} |"
        )

    def markdown(self) -> str:
        """Return a readable report: the outage, the output of `status`, and the findings."""
        lines = [
            f"## {self.name}: {self.minutes:g} minutes, engine {self.engine}", "",
            f"{self.records:,} records in {self.windows} windows; all loaded {self.healed_after:.0f} s after the outage ended; "
            f"{'; '.join(self.anomalies) or 'no findings in history, deep audit and leftovers'}.",
        ]  # fmt: skip
        for seen in self.observed:
            lines += ["", f"### {seen.at}: exit code {seen.answer.code}", "", "```", seen.answer.text.rstrip(), "```"]
        return "\n".join(lines) + "\n"


HEADER: Final = (
    "| outage | engine | minutes | records | windows | exit codes of status | recovery, s | anomalies |\n"
    "|---|---|--:|--:|--:|---|--:|---|"
)


def run(
    name: OutageName,
    minutes: float,
    root: Path,
    *,
    engine: EngineName = "connector",
    before: float = 1.5,
    say: Callable[[str], None] = print,
) -> Outage:
    """Cause one outage on a platform below `root`. The outage lasts `minutes`, and begins `before` minutes after the
    first record.

    Raises AssertionError if not all windows are loaded in time after the outage.
    """
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(root / "disk", _DISK_MEGABYTES)) if name == "disk" else None
        if name == "disk" and disk is None:
            raise RuntimeError("the disk cannot be filled, because no tmpfs can be mounted here: run this as root")
        platform = Embedded(root / "platform", (disk.path if disk else root) / "lake")
        topic = f"outage-{name}"
        platform.declare(topic, datetime.now(UTC) - timedelta(minutes=1), engine, sensor_interval_seconds=10)
        stack.enter_context(platform.running(("kafka", "spark")))
        create(platform.bootstrap, topic, 2)
        platform.start("dagster-daemon")
        observed: list[Observed] = []

        def look(at: str) -> None:
            observed.append(Observed(at, platform.command("status")))
            say(f"{datetime.now(UTC):%H:%M:%S} {name}: {at}: `status` exited with code {observed[-1].answer.code}")

        with LiveProducer(platform.bootstrap, topic, 2).sending() as producer:
            time.sleep(before * 60)
            look("before")
            with _outage(platform, _SERVICES[name], disk):
                for part in (1, 2, 3):
                    time.sleep(minutes * 20)
                    look(f"minute {minutes * part / 3:.1f} of {minutes:g}")
            ended = time.monotonic()
            look("just after")
            # The records that the producer buffered meanwhile are sent, and the window after them closes.
            time.sleep(60)
        proof.healed(platform, [topic], _BOUND)
        took = time.monotonic() - ended
        look("healed")
        found = proof.anomalies(platform, topic, producer.sends)
        if observed[-1].answer.code:
            found.append(f"`status` exited with code {observed[-1].answer.code} although everything is loaded")
        windows = len(platform.ledger.windows(topic))
        return Outage(name, engine, minutes, producer.sent, windows, took, tuple(observed), tuple(found))


@contextmanager
def _outage(platform: Embedded, services: Sequence[Service], disk: Disk | None) -> Iterator[None]:
    with ExitStack() as stack:
        if disk is not None:
            stack.enter_context(disk.full())
        for service in services:
            platform.kill(service)
        yield
    for service in services:
        platform.start(service)
