"""Ids of the schemas with which records are published, as a registry gives them and as the lake remembers them.

Records name their schema by its id. So the lake keeps, for each published topic, the id of each schema that records
name. A registry that gives a known schema another id has been created again or is another one: publishing is refused,
instead of sending records that readers of the earlier registry cannot read. If the registry does not answer, the known
id is used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from platform_assets.decoding.registry.cache import BadReferences, Registered, UnknownId
from platform_assets.decoding.registry.client import HURRIED, PATIENT, RegistryClient
from platform_assets.decoding.registry.settings import RegistrySettings
from platform_assets.errors import PublishedSchemaChangedError, RegistryRefusedError, RegistryUnreachableError
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake.location import Lake
from platform_assets.model.logs import logger
from platform_assets.model.publishing import PublishDeclaration, Side
from platform_assets.windows.publish.forms import is_same, renumbered

_log = logger(__name__)

MAGIC: Final = b"\0"
_VERSION: Final = 1
_ENDING: Final = ".schemas"


@dataclass(frozen=True, slots=True)
class Known:
    """Ids of the schemas of one topic that records may name, by side and fingerprint, in order of first use. `texts` are
    the fingerprints of the schemas that the registry returned for them, by id in decimal digits."""

    topic_id: str = ""
    ids: Mapping[Side, Mapping[str, int]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    def of(self, side: Side) -> Mapping[str, int]:
        """Return the ids of a side."""
        return self.ids.get(side, {})


def known(lake: Lake, topic: str, topic_id: str) -> Known:
    """Return the ids that are known for the topic with this id."""
    content = lake.published.read(topic + _ENDING)
    document = {} if content is None else json.loads(content)
    if document.get("topic_id") != topic_id:
        return Known(topic_id)
    sides: tuple[Side, ...] = ("key", "value")
    found: dict[Side, Mapping[str, int]] = {side: document[side] for side in sides if side in document}
    return Known(topic_id, found, document.get("texts", {}))


def _remember(lake: Lake, topic: str, found: Known) -> None:
    document: dict[str, Any] = {"version": _VERSION, "topic_id": found.topic_id, "texts": dict(found.texts)}
    document.update({str(side): dict(ids) for side, ids in found.ids.items()})
    lake.published.write(topic + _ENDING, json.dumps(document, separators=(",", ":")).encode())


def is_unused(cluster: Cluster, topic: str) -> bool:
    """Return True if nothing was ever sent to a topic."""
    state = cluster.topic(topic)
    ends = cluster.high_watermarks(state)
    return set(ends) == set(state.partitions) and not any(end.offset for end in ends.values())


def head_of(number: int) -> bytes:
    """Return the bytes before a datum whose schema has this id."""
    return MAGIC + number.to_bytes(4, "big")


@dataclass(frozen=True)
class SchemaIds:
    """Finds the ids for the published topic with the id `topic_id`. `client` makes a client for the registry. If
    nothing was ever sent to the topic, `is_unused` returns True: then no record names an id."""

    declaration: PublishDeclaration
    lake: Lake
    topic_id: str
    client: Callable[..., RegistryClient] = RegistryClient
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    is_unused: Callable[[], bool] = lambda: False

    def heads(self, schemas: Mapping[Side, Registered], *, send: bool) -> dict[Side, bytes]:
        """Return what records have before their data, by side, for the sides with these schemas. With `send`, the registry
        confirms each id, and the lake remembers it; without, a known id is used as it is, and nothing is registered.

        Raises PublishedSchemaChangedError, SchemaNotRegisteredError, RegistryUnreachableError (retryable),
        RegistryRefusedError, ConfigurationError and LakeNotWritableError.
        """
        before = known(self.lake, self.declaration.topic, self.topic_id)
        if send and before.ids and self.is_unused():
            before = Known(self.topic_id)
        texts = dict(before.texts)
        ids: dict[Side, dict[str, int]] = {side: dict(before.of(side)) for side in ("key", "value") if before.of(side)}
        found: dict[Side, bytes] = {}
        for side, schema in schemas.items():
            if not self.declaration.sides[side].registry:
                continue
            number = ids.get(side, {}).get(schema.fingerprint)
            if number is None or send:
                number = self._confirmed(side, schema, ids.get(side, {}), texts, send=send)
            ids.setdefault(side, {})[schema.fingerprint] = number
            found[side] = head_of(number)
        if send and ids != before.ids:
            _remember(self.lake, self.declaration.topic, Known(self.topic_id, ids, texts))
        return found

    def _confirmed(
        self, side: Side, schema: Registered, ids: Mapping[str, int], texts: dict[str, str], *, send: bool
    ) -> int:
        d = self.declaration
        pinned = ids.get(schema.fingerprint)
        if side == "key" and ids and pinned is None:
            raise PublishedSchemaChangedError(
                d.topic, side,
                f"it is another one than that of the keys that were sent, which has id {[*ids.values()][-1]}, so later records "
                "would not replace or delete earlier ones",
                "Declare the earlier schema as `schema`, publish to another topic",
            )  # fmt: skip
        settings = RegistrySettings.of(self.environ)
        client = self.client(settings, patience=PATIENT if pinned is None else HURRIED)
        try:
            # First, so that no schema is registered that cannot be used.
            lost = self._check_earlier(side, client, settings, ids, texts, schema) if pinned is None else set()
            number = client.id_of(d.subject_of(side), schema, register=send and d.sides[side].register)
            if pinned is None or number != pinned:
                found = self._check(client, settings, number, schema)
                if pinned is None:
                    texts[str(number)] = found
        except RegistryUnreachableError as e:
            if pinned is None:
                raise
            _log.warning("%s: %s The known id %d is used.", d.name, e, pinned)
            return pinned
        finally:
            client.close()
        if number in lost:
            raise self._other_registry(
                side, f"the registry at {settings.url} gives it id {number}, by which records name another"
            )
        if pinned is not None and number != pinned:
            raise self._other_registry(
                side, f"the registry at {settings.url} gives it id {number}, but records name it by id {pinned}"
            )
        if ids and pinned is None:
            _log.warning("%s: the schema of the %s has changed: later records have id %d", d.name, side, number)
        return number

    def _other_registry(self, side: Side, reason: str) -> PublishedSchemaChangedError:
        return PublishedSchemaChangedError(
            self.declaration.topic, side, reason,
            "The registry was created again or restored, or SCHEMA_REGISTRY_URL points to another one: import the schemas "
            "with their ids, or correct the address",
        )  # fmt: skip

    def _check_earlier(
        self,
        side: Side,
        client: RegistryClient,
        settings: RegistrySettings,
        ids: Mapping[str, int],
        texts: Mapping[str, str],
        schema: Registered,
    ) -> set[int]:
        """Make sure that the registry still has the earlier schemas of a side, and that readers of these can read `schema`.
        Return the ids that it does not have."""
        lost: set[int] = set()
        for number in dict.fromkeys(ids.values()):
            try:
                found = client.schema(number)
            except (UnknownId, BadReferences):
                lost.add(number)
                continue
            if texts.get(str(number), found.fingerprint) != found.fingerprint:
                reason = f"the registry at {settings.url} has another schema with id {number} than that of the records"
                raise self._other_registry(side, reason)
            if (name := renumbered(found, schema)) is not None:
                raise PublishedSchemaChangedError(
                    self.declaration.topic, side,
                    f"field {name} would have another number than in records that were sent, so readers would confuse fields",
                    "Declare `columns` in their earlier order, with new ones at the end, publish to another topic",
                )  # fmt: skip
        return lost

    def _check(self, client: RegistryClient, settings: RegistrySettings, number: int, schema: Registered) -> str:
        """Make sure that the registry's schema with this id is `schema`. Return its fingerprint."""
        try:
            found = client.schema(number)
        except (UnknownId, BadReferences) as e:
            raise RegistryRefusedError(
                settings.url, f"it does not return the schema to which it gave id {number}"
            ) from e
        if not is_same(schema, found):
            raise RegistryRefusedError(
                settings.url, f"its schema with id {number} is not the one for which it gave this id"
            )
        return found.fingerprint
