"""What keeps ticks from going well, on the table's page in Dagster: an observation when it begins, changes and ends.

A tick that fails is otherwise to be seen at the sensor alone. What fails in a run is on the page by itself.
"""

from __future__ import annotations

import threading
from typing import Final

import dagster as dg

from platform_assets.errors import PlatformError
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.untrusted import markdown
from platform_assets.orchestration.names import sensor_name, table_key

KIND: Final = "platform_assets/trouble"
"""Of an observation's metadata: the error's class, empty where ticks go well again."""

_known: dict[tuple[str, str], str] = {}
_lock = threading.Lock()


def observe(instance: dg.DagsterInstance, declaration: TopicDeclaration, error: PlatformError | None) -> None:
    """Report how a tick ended where that differs from the one before: by `error`, or well.

    Dagster is asked for what was reported last once a process, so that ticks which go well cost nothing.
    """
    asset, name = table_key(declaration.raw_table), sensor_name(declaration.topic, declaration.together)
    place = (str(instance.root_directory), declaration.topic)
    kind = "" if error is None else type(error).__name__
    with _lock:
        before = _known.get(place)
        if before is None:
            before = _reported(instance, asset)
        if before != kind:
            text = f"Sensor {name} ticks well again." if error is None else f"Sensor {name} fails: {error}"
            instance.report_runless_asset_event(
                dg.AssetObservation(asset, description=markdown(text), metadata={KIND: dg.MetadataValue.text(kind)})
            )
        _known[place] = kind


def _reported(instance: dg.DagsterInstance, asset: dg.AssetKey) -> str:
    """The kind that was reported last; empty without one."""
    for record in instance.fetch_observations(asset, limit=20).records:
        observation = record.asset_observation
        if observation is not None and KIND in observation.metadata:
            return str(observation.metadata[KIND].value)
    return ""
