"""The sensor that finds new topics for a pattern, adds them to the file next to `defs.yaml`, and reloads the code.

Definitions depend only on that file. Until the code location is loaded again, the sensor reports which topics are
waiting for this.
"""

# No postponed annotations here, because Dagster reads the annotations of the functions below.
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import dagster as dg

from platform_assets.components import found_topics
from platform_assets.errors import ConfigurationError
from platform_assets.model.logs import logger
from platform_assets.model.untrusted import line, markdown
from platform_assets.orchestration.names import topic_key
from platform_assets.orchestration.resources import KafkaResource
from platform_assets.services import platform

_log = logger(__name__)

_INTERVAL_SECONDS: Final = 60
_NAMED: Final = 10
_BY_HAND: Final = "To load the new topics, reload the code location (in the UI: Deployment, Reload) or restart it."


def sensor_name(pattern: str) -> str:
    """Return the name of the sensor for a pattern."""
    return f"topics_by_pattern_{sha256(pattern.encode()).hexdigest()[:6]}"


def build_definitions(
    pattern: str, wanted: Callable[[Iterable[str]], tuple[str, ...]], folder: Path, left_out: Mapping[str, str]
) -> dg.Definitions:
    """Build the sensor for one pattern. `wanted` selects the pattern's topics, and `folder` contains the file of found
    topics. `left_out` maps topics that cannot be defined to the reasons; the sensor reports these reasons."""

    @dg.sensor(
        name=sensor_name(pattern),
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        target=None,
        description=markdown(f"Looks for topics that match {pattern} and are not declared yet."),
    )
    def _sensor(context: dg.SensorEvaluationContext, kafka: KafkaResource) -> dg.SkipReason:
        repository = context.repository_def
        declared = set() if repository is None else repository.asset_graph.get_all_asset_keys()
        there = wanted(kafka.cluster().topics())
        new = [name for name in there if name not in left_out and topic_key(name) not in declared]
        omitted = [left_out[name] for name in there if name in left_out]
        return dg.SkipReason(line("; ".join([taken_up(new, folder, reload), *omitted[:_NAMED]])))

    return dg.Definitions(sensors=[_sensor])


def taken_up(new: list[str], folder: Path, reload: Callable[[], str]) -> str:
    """Add the topics in `new` to the file in `folder`, call `reload` to reload the code, and describe what was done."""
    if not new:
        return "every topic that matches is declared"
    named = ", ".join(new[:_NAMED]) + (f" and {len(new) - _NAMED} more" if len(new) > _NAMED else "")
    where = f"new: {named}. They are in {folder / found_topics.FILE}."
    try:
        if set(new) <= set(found_topics.read(folder)):
            return f"{where} {_BY_HAND}"
        found_topics.add(folder, new)
    except ConfigurationError as e:
        return f"new: {named}. {e}"
    return f"{where} {reload()}"


def reload() -> str:
    """If the UI that `platform-assets up` started is running, make it reload its code. Return a sentence that says what
    was done, or what remains to be done."""
    try:
        asked = platform.reload()
    except ConfigurationError as e:
        _log.warning("%s", e)
        return _BY_HAND
    return (
        "The code location is being reloaded; the new topics will be loaded within a minute or two."
        if asked
        else _BY_HAND
    )
