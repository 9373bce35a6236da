"""All errors that the platform raises, with one base class.

Three mix-ins, and nothing else, tell a caller how to react:

* `Retryable`: nothing changed and the same call may succeed later (a broker out of reach, a lost race).
* `Terminal`: the same call fails again until somebody makes the change that the message describes.
* `UnknownOutcome`: the call may or may not have taken effect. Running it again is safe, because every write of the
  platform is an overwrite keyed by offsets or a compare-and-set.

Each message names the value, the place and the next step. No message contains the value of a client setting, because it
could be a secret. Messages quote records, brokers and registries, and are logged by Dagster and Spark. For this reason,
`str` shows control characters as escapes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final


def printable(text: object) -> str:
    """Return `text` on one line, with each character that is not printable as an escape.

    These are control characters, including ESC and line ends, and characters that change the text direction or have no
    width.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


class PlatformError(Exception):
    """Root of all errors of the platform.

    Errors are passed between processes (runs, Spark's workers), so each error can be pickled, whatever arguments its
    class takes. Unpickling restores the error's message and fields without calling `__init__`.

    Attributes:
        has_lines: true if the line breaks in the message are the platform's own, so a terminal may show them.
    """

    has_lines: ClassVar[bool] = False

    def __str__(self) -> str:
        text = super().__str__()
        return "\n".join(map(printable, text.split("\n"))) if self.has_lines else printable(text)

    def __reduce__(self) -> tuple[Callable[..., PlatformError], tuple[object, ...], dict[str, Any]]:
        return _restored, (type(self), *self.args), self.__dict__


def _restored(kind: type[PlatformError], *args: object) -> PlatformError:
    return kind.__new__(kind, *args)  # args are what `str` shows; pickle then sets the fields


class Retryable(PlatformError):
    """Nothing was changed; the same call may succeed later."""


class Terminal(PlatformError):
    """The same call fails again until somebody does what the message says."""


class UnknownOutcome(PlatformError):
    """The call may or may not have taken effect; running it again is safe."""


# --- declarations and configuration -----------------------------------------------------------------------------


class ConfigurationError(Terminal):
    """A setting, a YAML field or an argument is missing or wrong."""


class WindowKeyError(ConfigurationError, ValueError):
    """A string is not a window key."""

    def __init__(self, key: object) -> None:
        self.key = key
        several = (
            ". `platform-assets load`, `platform-assets replay` and `platform-assets audit --windows` take a range "
            "A..B; elsewhere, name each window"
            if ".." in str(key)
            else ""
        )
        super().__init__(
            f"{key!r} is not a window key: a key is the window's start in UTC, YYYY-MM-DD-HH:MM, such as "
            f"2026-01-31-14:00{several}"
        )


class DeclarationsError(ConfigurationError):
    """The YAML in the definitions folder has mistakes; the message lists each with its file, line and fix."""

    has_lines = True

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(map(printable, mistakes))
        number = f"{len(self.mistakes)} mistakes" if len(self.mistakes) > 1 else "a mistake"
        super().__init__("\n".join([f"{number} in the definitions; nothing was done.", *self.mistakes]))


class GivenServiceError(ConfigurationError):
    """A service that an environment variable sets does not answer."""

    def __init__(self, service: str, variable: str, cause: str) -> None:
        self.service, self.variable, self.cause = service, variable, cause
        super().__init__(
            f"{service}, set by {variable}, does not answer: {cause}. Correct {variable}, or unset it to use the "
            "embedded one."
        )


class TopicNameError(ConfigurationError):
    """A topic's name breaks Kafka's naming rules; the name is not used in any path or request."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"{topic!r} is not a legal Kafka topic name: use 1 to 249 of the characters a-z A-Z 0-9 . _ -, "
            "but not just '.' or '..'"
        )


class ThrowawayInstanceError(ConfigurationError):
    """A run uses a temporary Dagster instance, so everything that the run reports is lost when the run ends."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            "DAGSTER_HOME is not set, so this run uses a temporary Dagster instance, which has no record of other loads "
            "and is "
            'deleted when the run ends. Nothing was loaded. Run `eval "$(platform-assets env)"` in this shell and start '
            f"the run again, or use `platform-assets load {table} WINDOW`."
        )


# --- windows ----------------------------------------------------------------------------------------------------


class WindowError(Terminal):
    """A window cannot be sealed or loaded as requested."""


class UnknownWindowError(WindowError):
    """A key does not name a window of the topic."""

    def __init__(self, topic: str, key: str, reason: str) -> None:
        self.topic, self.key = topic, key
        super().__init__(f"{key!r} is not a window of topic {topic!r}: {reason}")


class WindowOpenError(WindowError):
    """The end of the window is still in the future."""

    def __init__(self, topic: str, key: str, closes_at: str) -> None:
        self.topic, self.key, self.closes_at = topic, key, closes_at
        super().__init__(
            f"window {key} of topic {topic!r} is still open: it closes at {closes_at}. Load it after that."
        )


class WindowBeforeStartError(WindowError):
    """The window is before the topic's first edge."""

    def __init__(self, topic: str, key: str, start: str) -> None:
        self.topic, self.key, self.start = topic, key, start
        super().__init__(
            f"window {key} of topic {topic!r} is before the topic's first window boundary, {start}. Older records "
            "are in the first window, which starts at the log start; there is nothing to load before it."
        )


# --- broker -----------------------------------------------------------------------------------------------------


class BrokerUnreachableError(Retryable):
    """No broker answered in time."""

    def __init__(self, doing: str, seconds: float, reason: str) -> None:
        self.doing, self.seconds = doing, seconds
        super().__init__(
            f"no Kafka broker answered within {seconds:g} s while {doing}: {reason}. Nothing was changed. Check "
            "KAFKA_BOOTSTRAP_SERVERS and that a broker is running (`platform-assets status`), then run it again."
        )


class BrokerRefusedError(Terminal):
    """A broker answered and refused the request. If the user lacks a right, `right` names it."""

    def __init__(self, doing: str, reason: str, right: str = "") -> None:
        self.doing, self.reason, self.right = doing, reason, right
        remedy = f"Grant the KAFKA_* user {right}" if right else "Check the KAFKA_* client settings"
        super().__init__(
            f"the Kafka broker refused a request while {doing}: {reason.rstrip('.')}. Nothing was changed. {remedy}."
        )


class TopicMissingError(Terminal):
    """The broker answers but does not have the topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic!r} does not exist on the broker. Nothing was changed. Create it, or correct `topic` in "
            "its defs.yaml."
        )


class TopicRecreatedError(Terminal):
    """The topic's name now has a different topic id from the one in the ledger."""

    def __init__(self, topic: str, recorded_id: str, found_id: str) -> None:
        self.topic, self.recorded_id, self.found_id = topic, recorded_id, found_id
        super().__init__(
            f"topic {topic!r} was re-created: the ledger's offsets belong to topic id {recorded_id}, but the broker "
            f"now has id {found_id}, with offsets that start from 0 again. Nothing is cut or loaded until an operator "
            "decides; the tables keep what was loaded. To continue with the new topic, run `platform-assets "
            "accept-generation "
            f'{topic} --reason "…"`, '
            "which lists what is lost."
        )


class ClusterChangedError(Terminal):
    """The brokers belong to a different cluster from the one where the topic's newest cut was taken."""

    def __init__(self, topic: str, recorded_id: str, found_id: str) -> None:
        self.topic, self.recorded_id, self.found_id = topic, recorded_id, found_id
        super().__init__(
            f"topic {topic!r} is on another cluster: the ledger's offsets were taken from cluster id {recorded_id}, "
            f"but the brokers now have cluster id {found_id}. Nothing is cut or loaded until an operator decides. If "
            "KAFKA_BOOTSTRAP_SERVERS is wrong, correct it. If the topic has moved and each offset stands for the "
            "same "
            f'record as before, run `platform-assets accept-cluster {topic} --reason "…"`. If the offsets have changed, run '
            f'`platform-assets accept-generation {topic} --reason "…"`, which continues at the start of the new log.'
        )


class PartitionsAbsentError(Terminal):
    """The topic has fewer partitions on these brokers than the ledger has sealed offsets for."""

    def __init__(self, topic: str, servers: str, absent: Sequence[int], number: int) -> None:
        self.topic, self.absent = topic, tuple(absent)
        named = f"partition {absent[0]}" if len(absent) == 1 else f"partitions {', '.join(map(str, absent))}"
        super().__init__(
            f"topic {topic!r} has {number} partition{'' if number == 1 else 's'} on the brokers at {servers}, but "
            f"the ledger also has sealed offsets of {named}: this is not the same log on another cluster. Set "
            f"KAFKA_BOOTSTRAP_SERVERS to a cluster whose topic has {named}. Or, to continue with the log on these brokers, run "
            "`platform-assets accept-generation "
            f'{topic} --reason "…"`, which '
            "lists what is lost."
        )


class TruncationError(Terminal):
    """The log lost recorded offsets from `found` on, or now has other records at these offsets, as leader epoch `epoch`
    shows."""

    def __init__(self, topic: str, partition: int, recorded: int, found: int, epoch: int | None = None) -> None:
        self.topic, self.partition, self.recorded, self.found, self.epoch = topic, partition, recorded, found, epoch
        seen = f"now ends at offset {found}, before offset {recorded}, which a cut recorded"
        if epoch is not None:
            seen = (
                f"has a cut at offset {recorded} under leader epoch {epoch}, but that epoch now ends at offset {found}"
            )
        super().__init__(
            f"topic {topic!r} partition {partition} {seen}: the log was truncated (by an unclean leader election or a "
            f"restored broker). Offsets [{found}, {recorded}) may now hold different records. If the brokers cannot recover "
            "the lost "
            f'records, run `platform-assets accept-generation {topic} --reason "…"`, which lists what is lost and '
            "continues from there."
        )


# --- schema registry --------------------------------------------------------------------------------------------


class RegistryUnreachableError(Retryable):
    """The schema registry did not answer."""

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"the schema registry at {url} did not answer: {reason}. Nothing was changed. Check SCHEMA_REGISTRY_URL "
            "and that the registry is running, then run it again. Schemas that were already read are stored in the lake, "
            "so decoding with them does not need the registry."
        )


class RegistryRefusedError(Terminal):
    """The server at the URL refuses requests, or does not answer like a schema registry."""

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"the schema registry at {url} cannot be used: {reason}. Nothing was changed. Check SCHEMA_REGISTRY_URL, "
            "including its path, and the credentials (SCHEMA_REGISTRY_USER and SCHEMA_REGISTRY_PASSWORD, or "
            "SCHEMA_REGISTRY_TOKEN)."
        )


class RegistryChangedError(Terminal):
    """A registry returns a different schema for an id from the schema with which this lake has decoded values."""

    def __init__(self, url: str, number: int | str, known_from: str, known: str, found: str) -> None:
        self.url, self.number, self.known_from, self.known, self.found = url, number, known_from, known, found
        super().__init__(
            f"schema {number} of the registry at {url} has changed: its fingerprint is {found}, but this lake has "
            f"decoded values with a schema whose fingerprint is {known}, read from {known_from}. The registry "
            f"was re-created or restored, or "
            "SCHEMA_REGISTRY_URL points to another registry. Nothing was changed. Import the previous schemas with their "
            "ids, or correct SCHEMA_REGISTRY_URL. If no record needs the previous schema, run `platform-assets "
            f"forget-schemas {number}` and load the window again."
        )


class SchemaNotRegisteredError(Terminal):
    """A subject of the registry does not have the schema of published records, and does not get it."""

    def __init__(self, url: str, subject: str, reason: str) -> None:
        self.url, self.subject, self.reason = url, subject, reason
        super().__init__(
            f"the schema of the records is not registered in subject {subject!r} of the registry at {url}: {reason}. Nothing "
            "was sent. Register it there, or declare `register: true`; if the subject has another schema, declare that one "
            "as `schema`, or change the subject's compatibility."
        )


class PublishedSchemaChangedError(Terminal):
    """The schema of published records has another id than in records that were sent, or the keys' schema has changed."""

    def __init__(self, topic: str, side: str, reason: str, remedy: str) -> None:
        self.topic, self.side, self.reason = topic, side, reason
        super().__init__(
            f"published/{topic}: the schema of each {side} cannot be used: {reason}. Nothing was sent. {remedy}, or delete the "
            "topic and create it again, which publishes everything again."
        )


class SchemaCompilerError(Retryable):
    """The Protobuf schema compiler did not finish, for a reason other than the schema."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"protoc, which compiles a registered schema, did not finish: {reason}. Nothing was changed. Check that "
            "the machine has free memory, can start more processes and has space in its temporary folder, then run it again."
        )


# --- evidence ---------------------------------------------------------------------------------------------------


class UnstableEndError(Retryable):
    """Evidence was requested for offsets past the last stable offset, where transactions are still open."""

    def __init__(self, topic: str, partition: int, end: int, last_stable: int) -> None:
        self.topic, self.partition, self.end, self.last_stable = topic, partition, end, last_stable
        super().__init__(
            f"topic {topic!r} partition {partition} is stable only up to offset {last_stable}; offsets "
            f"[{last_stable}, {end}) may still be committed or aborted. Request offsets below {last_stable}, or try "
            "again once the open transactions have ended."
        )


class EmptyAnswersError(Retryable):
    """A broker keeps returning no records below the last stable offset, and nothing proves that there are no records."""

    def __init__(self, topic: str, partition: int, offset: int, end: int, seconds: float) -> None:
        self.topic, self.partition, self.offset, self.end, self.seconds = topic, partition, offset, end, seconds
        super().__init__(
            f"topic {topic!r} partition {partition}: for {seconds:g} s the broker returned no records from offset "
            f"{offset} on, although offsets up to {end} are stable, and no later batch shows that the records there were "
            "compacted away. Tiered storage that is too slow can cause this. Nothing was changed. Run it again; if "
            "this persists, check the broker's log and its remote storage (remote.fetch.max.wait.ms). If the "
            "brokers are older than Kafka 3.6 and compaction removed all records at the end of this partition, nothing "
            "proves the removal until another record is written to the partition."
        )


class DamagedBatchError(Terminal):
    """A record batch from the broker is damaged. `window` is the window that is being loaded."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str, window: str = "") -> None:
        self.topic, self.partition, self.offset, self.reason, self.window = topic, partition, offset, reason, window
        otherwise = f'`platform-assets accept-loss raw/{topic} {window} --reason "…"`, then load the window again.'
        super().__init__(
            f"the record batch of topic {topic!r} partition {partition} at offset {offset} is damaged: {reason}. "
            "Nothing was changed. Check the leader's disk and network. If another replica has the batch intact, "
            "make that replica the leader, then try "
            "again." + (f" If no replica has it intact, leave its records out: run {otherwise}" if window else "")
        )

    def of_window(self, window: str) -> DamagedBatchError:
        """Return this error for a load of `window`; the message adds how to leave the batch out."""
        return DamagedBatchError(self.topic, self.partition, self.offset, self.reason, window)

    def of_loaded_window(self) -> DamagedBatchError:
        """Return this error for a load of a window that already has rows: first, the rows of the table or of its past
        versions are kept."""
        return self.of_window("")


class BatchTooLargeError(Terminal):
    """A record batch exceeds a limit on the size of an unpacked batch, so it was not opened. `window` is the window
    that is being loaded."""

    def __init__(
        self, topic: str, partition: int, start: int, end: int, reason: str, variable: str, window: str = ""
    ) -> None:
        self.topic, self.partition, self.start, self.end = topic, partition, start, end
        self.reason, self.variable, self.window = reason, variable, window
        otherwise = f'`platform-assets accept-loss raw/{topic} {window} --reason "…"`, then load the window again.'
        super().__init__(
            f"the record batch of topic {topic!r} partition {partition} at offsets [{start}, {end}) {reason}, the "
            f"limit that {variable} sets. It was not opened, and nothing was changed. To load its records, raise "
            f"{variable} in the environment of the platform, then try again: loading needs about five times as much "
            "memory as the largest batch has bytes."
            + (f" To leave these records out, run {otherwise}" if window else "")
        )

    def of_window(self, window: str) -> BatchTooLargeError:
        """Return this error for a load of `window`; the message adds how to leave the batch out."""
        return BatchTooLargeError(self.topic, self.partition, self.start, self.end, self.reason, self.variable, window)

    def of_loaded_window(self) -> BatchTooLargeError:
        """Return this error for a window with rows in the table: records that a higher limit would load must not be
        accepted as lost."""
        return self.of_window("")


# --- ledger -----------------------------------------------------------------------------------------------------

REPAIR_LEDGER: Final = (
    "The ledger was edited: restore _ledger from a backup, or move it away and run `platform-assets rebuild-ledger`."
)
"""The fix if the ledger contradicts itself or the table. rebuild-ledger only adds what is missing and does not correct
entries, so the ledger must be moved away first."""


class LedgerConflictError(Retryable):
    """Another process recorded the edge first, and the cut that it recorded could not be read yet."""


class LedgerLostError(Terminal):
    """The tables have loads that the ledger, which was lost or rolled back, does not have."""

    def __init__(self, table: str, detail: str) -> None:
        self.table = table
        super().__init__(
            f"the ledger is lost or older than table {table}: {detail}. Nothing is cut or loaded. Run "
            "`platform-assets rebuild-ledger` to restore it from the tables' own commits."
        )


class LedgerNewerError(Terminal):
    """A later release wrote the ledger in a form that this release would misread."""

    def __init__(self, place: str, found: int, known: int) -> None:
        self.place, self.found, self.known = place, found, known
        super().__init__(
            f"the ledger at {place} has version {found}, written by a later release; this release supports versions up "
            f"to {known}. Nothing was changed. Upgrade this installation too. To return to this release permanently, "
            "restore `_ledger` from a backup taken before the upgrade, and run `platform-assets rebuild-ledger`."
        )


class LedgerCorruptError(Terminal):
    """The ledger contradicts itself, or contradicts facts from the caller that never change."""


# --- lake and loads ---------------------------------------------------------------------------------------------


class SparkUnreachableError(Retryable):
    """The Spark Connect server does not answer."""

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        super().__init__(
            f"the Spark Connect server at {address} does not answer: {reason}. Nothing was changed. Start it "
            "(`platform-assets up`) or correct SPARK_REMOTE, then run it again."
        )


class LakeUnavailableError(Retryable):
    """The lake's file system or object store failed temporarily; nothing was changed."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        where = (
            "AWS_ENDPOINT_URL and the network path to the store"
            if _STORE in place
            else "the disk or the mount that LAKE_ROOT is on"
        )
        super().__init__(
            f"the lake does not answer at {place}: {reason}. Nothing was changed, so run it again; if this persists, "
            f"check {where}."
        )


_STORE: Final = "s3://"


def access_to(place: str) -> str:
    """Return the names of the settings to correct when the lake at `place` refuses access."""
    if _STORE not in place:
        return "its permissions"
    return (
        "the store's permissions, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of this "
        "process (for Spark, of its "
        "server)"
    )


class LakeNotWritableError(Terminal):
    """A folder of the lake is not writable."""

    def __init__(self, folder: str, reason: str) -> None:
        self.folder, self.reason = folder, reason
        full = "No space left" in reason or "quota" in reason.lower()
        remedy = "Free some space on its disk" if full else f"Correct LAKE_ROOT or {access_to(folder)}"
        super().__init__(f"the lake cannot be written at {folder}: {reason}. {remedy}.")


class LoadError(Terminal):
    """The window could not be loaded correctly; the table is unchanged."""


class OffsetsExpiredError(LoadError):
    """Kafka no longer has offsets that the window needs."""

    def __init__(
        self, topic: str, window: str, lost: Iterable[tuple[int, int, int]], remedy: str, why: str = ""
    ) -> None:
        self.topic, self.window, self.lost = topic, window, tuple(lost)
        super().__init__(
            f"window {window} of topic {topic!r} cannot be read in full: Kafka no longer holds "
            f"{ranges_text(self.lost)} ({why or 'retention or a delete-records call'}). The table was not changed. "
            f"{remedy}"
        )


class UnreadableTimestampError(LoadError):
    """Records have timestamps that Spark's reader cannot represent."""

    def __init__(self, table: str, window: str, records: Sequence[tuple[int, int, int]]) -> None:
        self.table, self.window, self.records = table, window, tuple(records)
        named = ", ".join(f"partition {p} offset {o} (timestamp {t} ms)" for p, o, t in self.records[:20])
        more = f" and {len(self.records) - 20} more" if len(self.records) > 20 else ""
        super().__init__(
            f"window {window} of {table} cannot be loaded: Spark cannot represent the timestamps of these records: {named}{more}. The "
            "table was not changed. To accept the loss of just these records, run "
            f'`platform-assets accept-loss {table} {window} --reason "…"`, then load the window again.'
        )


class TimestampOverflowError(LoadError):
    """Spark found a timestamp that it cannot represent; the record with this timestamp is not known yet."""

    def __init__(self, topic: str, window: str) -> None:
        self.topic, self.window = topic, window
        super().__init__(f"window {window} of topic {topic!r} contains a timestamp that Spark cannot represent")


class TimestampShiftedError(LoadError):
    """Spark's connector has shifted timestamps, as it does with timestamps before the calendar reform of 1582."""

    def __init__(self, table: str, window: str, oldest: int) -> None:
        self.table, self.window, self.oldest = table, window, oldest
        super().__init__(
            f"window {window} of {table} cannot be read correctly by Spark's connector: it treats timestamps before "
            f"1582-10-15 as Julian calendar dates and shifts them by days (the oldest became {oldest} ms since 1970). "
            "The table was not changed. The columnar engine reads them correctly: set `engine: auto` or "
            "`engine: columnar` in the topic's YAML, and load the window again."
        )


class OffsetsVanishedError(LoadError):
    """Offsets that existed when the load began could not be read."""

    def __init__(self, topic: str, window: str, detail: str) -> None:
        self.topic, self.window = topic, window
        super().__init__(
            f"offsets of window {window} of topic {topic!r} disappeared while the window was being read: "
            f"{detail.rstrip('.')}. The table was not changed. Load the window again: the load looks up what Kafka still "
            "has, and lists any loss."
        )


class WorkerLostError(Retryable):
    """A Spark worker process ended during a load."""

    def __init__(self, topic: str, window: str, reading: Iterable[tuple[int, int, int]], reason: str) -> None:
        self.topic, self.window, self.reading, self.reason = topic, window, tuple(reading), reason
        super().__init__(
            f"a Spark worker ended while it read {ranges_text(self.reading)} of window {window} of topic {topic!r} "
            f"({reason}). The table was not changed, so run it again; if this happens again, check the workers' memory "
            "and Spark's log."
        )


class MergingLostError(Retryable):
    """Spark ended a file merge job before all files were merged."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        first = next((line for line in reason.splitlines() if line.strip()), reason)[:500]
        super().__init__(
            f"Spark stopped merging files of {table}: {first}. Files that were already merged stay merged, and no "
            "other files were changed. Run it again; if this happens again, check the workers' memory and Spark's log."
        )


class WindowExpiredError(LoadError):
    """The window is past the topic's `keep`, so its rows were removed and are not loaded again."""

    def __init__(self, table: str, window: str, keep: str, raw: str = "") -> None:
        self.table, self.window, self.keep = table, window, keep
        super().__init__(
            f"window {window} of {table} has expired: upkeep has removed its rows, because the topic's YAML says `keep: {keep}`. "
            f"Nothing was loaded. To have it again, lengthen or remove `keep`, then run `platform-assets load {raw or table} "
            f"{window}`. To look at records that Kafka still has, run `platform-assets replay {raw or table} {window} --into NAME`."
        )


class ExpiredForGoodError(LoadError):
    """The rows of an expired window were to be restored, but no longer exist."""

    def __init__(self, table: str, window: str, rows: int) -> None:
        self.table, self.window, self.rows = table, window, rows
        super().__init__(
            f"window {window} of {table} has expired, and its {rows:,} rows cannot be restored: neither Kafka nor any version of the "
            "table has all of them. Nothing was changed; the window stays expired. If you need the rows, restore them from a "
            "backup made before."
        )


class FilesLostError(LoadError):
    """Data files that the table's log lists cannot be read."""

    def __init__(self, table: str, window: str, detail: str) -> None:
        self.table, self.window, self.detail = table, window, detail
        super().__init__(
            f"data files of window {window} of {table} are missing or damaged: {detail}. Materialize the window to "
            "repair it."
        )


class LostForGoodError(LoadError):
    """`lost` rows of a damaged window exist neither in Kafka nor in any data file that can still be read.

    `gone` lists `(partition, start, end)` ranges of the window that have no row; some of these offsets may never have
    had one.
    """

    def __init__(
        self,
        table: str,
        window: str,
        rows: int,
        cause: str,
        *,
        left: int = 0,
        gone: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self.table, self.window, self.cause = table, window, cause
        self.lost, self.gone = rows - left, tuple(gone)
        lost = f"{self.lost:,} of its {_rows(rows)}" if left else f"its {_rows(rows)}"
        verb = "is" if self.lost == 1 else "are"
        what = ranges_text(self.gone) if self.gone else "them"
        super().__init__(
            f"window {window} of {table} is damaged and {lost} {verb} lost for good, unless you have a backup: "
            f"neither Kafka nor any data file that can still be read has {what}. Kafka cannot restore the window: "
            f"{cause.rstrip('.')}. "
            f'Without a backup, run `platform-assets accept-loss {table} {window} --reason "…"`: the remaining rows become the '
            "whole window, and the offsets without a row are listed."
        )


class UnprovedRowsError(LoadError):
    """A window has no receipt, and a load might not restore the rows that the table has for this window."""

    def __init__(self, table: str, window: str, held: int | None, found: int | None, offsets: str) -> None:
        self.table, self.window, self.held, self.found = table, window, held, found
        rows = "rows" if held is None else _rows(held)
        source = "" if found is None else f" returns {_rows(found)}"
        lost = f"{' and' if source else ''} no longer has {offsets}" if offsets else ""
        super().__init__(
            f"window {window} of {table} was not loaded, because the table has {rows} of this window "
            "that a load might not restore. The table was not changed. The ledger has no "
            "receipt for these rows, no version of the table that can "
            f"still be read proves which rows were loaded, and Kafka{source}{lost}. Restore the ledger from a backup. Without "
            "one, run "
            f'`platform-assets accept-loss {table} {window} --reason "…"`: the rows in Kafka and the data files become '
            "the window, and the offsets without a row are listed."
        )


class UnrecordedLoadError(UnprovedRowsError):
    """A rebuilt ledger found the rows of a window but not the load that wrote them. In addition, either Kafka has more
    records, or the rows are now damaged.

    `kafka` describes what Kafka has of the window. `new` lists `(partition, start, end)` ranges that Kafka has and the
    table lacks; it is set only if the table has all rows that the ledger found.
    """

    def __init__(
        self,
        table: str,
        window: str,
        generation: int,
        rows: int,
        *,
        kafka: str = "",
        new: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self.table, self.window, self.held, self.found, self.new = table, window, rows, None, tuple(new)
        rebuilt = "When the ledger was rebuilt, the table's log no longer had the load of this window"
        accept = (
            f'`platform-assets accept-loss {table} {window} --reason "…"`: the rows in Kafka and the data files become '
            "the window"
        )
        if self.new:
            named, more = self.new[:_NAMED], len(self.new) - _NAMED
            options = " ".join(f"--offsets {p}:{start}-{end}" for p, start, end in named)
            erase = f'`platform-assets erase {table} --generation {generation} {options} --reason "…"`'
            rest = " (the next load lists the other ranges)" if more > 0 else ""
            text = (
                f"Kafka has records of this window that the table lacks: {ranges_text(self.new, _NAMED)}. {rebuilt}, "
                f"so the ledger recorded the {_rows(rows)} that the table contained then. Nothing shows whether the other records "
                f"were erased or deleted. If they were erased, run {erase}, so that no load brings them back{rest}. "
                f"If not, run {accept}."
            )
        else:
            text = (
                f"the data files of the window are damaged or were changed, no past version of the table has the {_rows(rows)} "
                f"that the ledger records, and Kafka {kafka}. {rebuilt}, so nothing proves which rows the window "
                f"had. Restore the table from a backup. Without one, run {accept}, and the offsets without a row are "
                "listed."
            )
        self.detail = text
        LoadError.__init__(self, f"window {window} of {table} was not loaded, and the table was not changed: {text}")


class DamagedRowsError(UnprovedRowsError):
    """Kafka and the data files have at least as many rows of a damaged window as were loaded, but nothing proves that
    they are the same rows."""

    def __init__(self, table: str, window: str, rows: int, found: int, cause: str) -> None:
        self.table, self.window, self.held, self.found = table, window, rows, found
        LoadError.__init__(
            self,
            f"window {window} of {table} is damaged and was not restored. The table was not changed. Kafka and the "
            f"data files have {_rows(found)} of this window, but its receipt does not prove that these are the {_rows(rows)} "
            f"that were loaded. Kafka cannot restore the window: {cause.rstrip('.')}. Restore the table from a "
            "backup. Without one, run "
            f'`platform-assets accept-loss {table} {window} --reason "…"`: the rows in Kafka and the data files become '
            "the window, and the offsets without a row are listed.",
        )


_NAMED: Final = 10
"""Maximum number of ranges that a message lists."""


class ReloadDiffersError(LoadError):
    """A re-load read different records from those that the ledger lists for the window."""

    def __init__(self, topic: str, window: str, detail: str) -> None:
        self.topic, self.window, self.detail = topic, window, detail
        super().__init__(f"re-load of window {window} of topic {topic!r} refused; the table was not changed: {detail}")


class ConcurrentLoadError(Retryable):
    """Another run committed the same window first, or changed the table's columns in the meantime."""

    def __init__(self, table: str, window: str) -> None:
        self.table, self.window = table, window
        super().__init__(
            f"another run committed window {window} of {table} first, or changed the table's columns. This commit was "
            "refused, so the table holds the window once. Run it again: the new run compares the window with what was committed."
        )


class TableRefusedError(LoadError):
    """delta-rs, which commits to every table, cannot write this one."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(
            f"table {table} cannot be committed to: {reason}. Nothing was changed. If somebody has enabled a Delta "
            "feature that delta-rs cannot write (row tracking, clustering, in-commit timestamps, type widening), "
            "drop it with `ALTER TABLE … DROP FEATURE`, then load the window again."
        )


class SchemaChangeError(LoadError):
    """The declared columns of a decoded table differ from the existing ones by more than additions."""

    def __init__(
        self, table: str, changes: Sequence[str], held: str, rows: int = 0, windows: int = 0, version: int | None = None
    ) -> None:
        self.table, self.changes, self.held, self.version = table, tuple(changes), held, version
        kept = (
            ""
            if version is None
            else f" Version {version} of the table keeps these rows until `platform-assets vacuum` deletes the files of that version."
        )
        gone = (
            f"That removes its {rows:,} rows in {windows:,} windows, until each window is decoded again with the new "
            f"declaration; records that the declaration cannot decode become dead letters.{kept}"
            if rows
            else "The table has no rows."
        )
        super().__init__(
            f"table {table} cannot take rows with the currently declared columns: {'; '.join(self.changes)}. Nothing "
            "was changed. Either declare these columns as the table has them (you may add new columns), or start the table "
            f"over with the declared columns. {gone} To start it over, add `replaces: {held}` to `decode:` in the topic's "
            "YAML, and materialize its windows again."
        )


class ReplacedRowsError(LoadError):
    """The replacement columns cannot hold some rows of the table. `fewer` has the numbers of rows before and after, by
    window."""

    def __init__(
        self, table: str, held: str, fewer: Mapping[str, tuple[int, int]], *, tried: int, rows: int, windows: int
    ) -> None:
        self.table, self.held, self.fewer, self.tried = table, held, dict(fewer), tried
        named = "; ".join(
            f"window {key} has {before:,} rows in the table and would have {after:,}"
            for key, (before, after) in self.fewer.items()
        )
        others = windows - tried
        super().__init__(
            f"table {table} was not started over, because the declared columns cannot hold some rows of "
            f"{len(self.fewer):,} of the {tried:,} windows that were tried: {named}. In all, the table has {rows:,} rows "
            f"in {windows:,} windows{f'; the result for the other {others:,} is not known' if others else ''}. "
            "Nothing was changed. To keep these rows, leave the previous columns as they were, and only add new "
            "columns. To turn these and all similar rows into dead letters instead, set this in the topic's YAML: "
            f"`replaces: {{columns: {held}, lost_rows: accepted}}`."
        )


class RepairOffsetError(ConfigurationError):
    """A repair declares a value for a record that is not in the repair's window."""

    def __init__(self, raw: str, window: str, partition: int, offset: int) -> None:
        self.raw, self.window, self.partition, self.offset = raw, window, partition, offset
        super().__init__(
            f"repairs: window {window} of {raw} has no offset {offset} in partition {partition}: correct the entry, or "
            "remove it from `decode:` in the topic's YAML; `platform-assets dead-letters` shows window, partition "
            "and offset"
        )


class NotLoadedError(Retryable):
    """The window cannot be decoded before it is loaded into the raw table."""

    def __init__(self, table: str, raw: str, window: str) -> None:
        self.table, self.raw, self.window = table, raw, window
        super().__init__(
            f"window {window} of {table} is made from {raw}, but that window of {raw} is not loaded yet. Nothing was changed. Run "
            f"`platform-assets load {raw} {window}`, or materialize that partition. Then run this again."
        )


class DecodingDiffersError(LoadError):
    """The same declaration decodes the same records into different rows than the last time."""

    def __init__(self, table: str, window: str, detail: str) -> None:
        self.table, self.window, self.detail = table, window, detail
        super().__init__(
            f"window {window} of {table} was decoded again and gave different rows, although its records and the "
            f"declaration are the same: {detail}. The tables were not changed. Either this release decodes values "
            "differently, or the ledger was edited. To accept the new rows, raise `revision:` in `decode:` of the topic's "
            "YAML and load the window again."
        )


class DecodingUnsupportedError(LoadError):
    """Spark's workers cannot decode records."""

    def __init__(self, table: str, window: str, reason: str) -> None:
        self.table, self.window, self.reason = table, window, reason
        super().__init__(
            f"window {window} of {table} cannot be loaded: Spark's workers cannot decode it ({reason}). The tables "
            "were not changed. Install this release of platform-assets in the Python environment of Spark's workers, then load "
            "the window again."
        )


@dataclass(frozen=True, slots=True)
class UnerasedReplay:
    """A replay that may still hold records that are being erased. `place` is its folder, and `windows` those whose data
    files cannot be read, if that is the cause. `is_passing` is true if the cause may pass by itself."""

    place: str
    cause: str
    windows: tuple[str, ...] = ()
    is_passing: bool = False


class ErasureUnfinishedError(Retryable):
    """Some windows still hold records that are being erased. Loads no longer read those records."""

    def __init__(
        self,
        table: str,
        windows: Sequence[str],
        cause: str,
        *,
        keys_forgotten: bool = False,
        replays: Mapping[str, UnerasedReplay] | None = None,
        expired: Collection[str] = (),
    ) -> None:
        """`expired` are those of the windows that have expired, and so cannot be loaded again."""
        self.table, self.windows, self.cause, self.replays = table, tuple(windows), cause, dict(replays or {})
        window, reason = self.windows[0], '--reason "…"'
        load = (
            f"Load each window again (`platform-assets load {table} {window}`). If a load reports that rows are lost, run "
            f"`platform-assets accept-loss {table} {window} {reason}`."
        )
        if window in expired:
            load = (
                f"{window} has expired: delete its rows from the topic's tables with the program that brought them back, "
                "such as Spark."
            )
        also = f" The records are also not erased yet from {_unerased(table, self.replays)}." if self.replays else ""
        super().__init__(
            f"records of {table} are not erased yet in windows {_few_windows(windows)}: {cause} {load}{also} Then run "
            f"`platform-assets erase {table} {reason}`, {_again(keys_forgotten)}. The other windows are done."
        )


class UnreadableFilesLeftError(Retryable):
    """Records are erased, except that some files of past versions could not be read and may hold such records."""

    def __init__(self, table: str, files: Mapping[str, Sequence[str]]) -> None:
        self.table, self.files = table, {name: tuple(paths) for name, paths in sorted(files.items())}
        some = "; ".join(
            f"{name}: {', '.join(paths[:3])}" + (f" and {len(paths) - 3:,} more" if len(paths) > 3 else "")
            for name, paths in self.files.items()
        )
        vacuum = ", ".join(f"`platform-assets vacuum {name}`" for name in self.files)
        super().__init__(
            f"records of {table} may not be erased completely: these files cannot be read, and may hold rows of windows that "
            f"expired: {some}. A program is writing them now, or ended before they were complete. Wait until programs that "
            "write the table have ended, then run `platform-assets erase` again with the same keys. If the files are still "
            f"there, delete them with {vacuum} once they are older than the table's retention, then erase again. "
            "Everything else is done."
        )


class ReplayErasureUnfinishedError(Terminal):
    """Records are erased from the tables of a topic, but some replays may still hold them."""

    def __init__(self, table: str, replays: Mapping[str, UnerasedReplay], *, keys_forgotten: bool = False) -> None:
        self.table, self.replays = table, dict(replays)
        super().__init__(
            f"records of {table} are not erased yet from {_unerased(table, self.replays)}. Then run `platform-assets "
            f'erase {table} --reason "…"`, {_again(keys_forgotten)}. {table} itself and all other tables are done.'
        )


def _again(keys_forgotten: bool) -> str:
    return "with the same keys, because they were not kept" if keys_forgotten else "which continues the erasure"


def _few_windows(windows: Sequence[str]) -> str:
    return ", ".join(windows[:3]) + (f" and {len(windows) - 3:,} more" if len(windows) > 3 else "")


def _unerased(table: str, replays: Mapping[str, UnerasedReplay]) -> str:
    """Return each replay with its cause and what to do, without a full stop at the end."""
    return ". The records are also not erased yet from ".join(
        _unerased_replay(table, name, found) for name, found in sorted(replays.items())
    )


def _unerased_replay(table: str, name: str, found: UnerasedReplay) -> str:
    delete = f"delete the folder {found.place}, which nothing else uses"
    if found.windows:
        several = len(found.windows) > 3
        named = f"{found.windows[0]}..{found.windows[-1]}" if several else " ".join(found.windows)
        delete = (
            f"run `platform-assets replay {table} {named} --into {name}`, which repairs these windows if Kafka still has their "
            f"records, or {delete}"
        )
    elif found.is_passing:
        delete = f"if this happens again, {delete}"
    return f"replays/{name}: {found.cause.rstrip('.')}. {delete[0].upper()}{delete[1:]}"


class RowsWithoutWindowError(ConfigurationError):
    """A table has rows of no window that the ledger knows, so the records in them cannot be erased."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        super().__init__(f"{problem}. Nothing was changed. {remedy}")


class PastVersionsKeptError(Terminal):
    """An erasure was requested in a bucket that keeps past versions of deleted files."""

    def __init__(self, root: str) -> None:
        self.root = root
        super().__init__(
            f"the bucket of {root} keeps past versions of its files, so erased records would stay in it. Nothing was "
            "erased. Give the bucket a lifecycle rule that deletes past versions (NoncurrentVersionExpiration) soon enough "
            "for the erasure request, and confirm that with `--past-versions-expire`, or in the job with "
            "`past_versions_expire: true`"
        )


class CommitOutcomeUnknownError(UnknownOutcome):
    """The outcome of a commit, or of writing files for a commit, is unknown."""

    def __init__(self, table: str, window: str, reason: str) -> None:
        self.table, self.window = table, window
        super().__init__(
            f"the connection broke while window {window} of {table} was being loaded ({reason}). The window may or "
            "may not be in the table. Run it again: the new run checks that, and leaves the window loaded exactly "
            "once."
        )


# --- state tables -----------------------------------------------------------------------------------------------


class NoChangesError(Retryable):
    """A state cannot be made before its table of changes exists."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"state/{topic} is made from changes/{topic}, which does not exist yet. Nothing was changed. Load and decode a "
            "window of the topic, then fold again."
        )


class ChangesOutdatedError(Retryable):
    """A state cannot be made while changes have yet to be made again."""

    def __init__(self, topic: str, cause: str) -> None:
        self.topic, self.cause = topic, cause
        super().__init__(
            f"state/{topic} cannot be made now: {cause}. Its rows were left as they are. The topic's sensor makes these "
            "changes again; fold after that."
        )


class StateOutdatedError(Retryable):
    """A state cannot be compared before it is made from all changes."""

    def __init__(self, topic: str, cause: str, *, is_damaged: bool = False) -> None:
        self.topic, self.cause = topic, cause
        why = "" if is_damaged else "the next fold makes it from all changes: "
        super().__init__(
            f"state/{topic} cannot be compared, because {why}{cause}. Run "
            f"`platform-assets fold {topic}{' --rebuild' if is_damaged else ''}`, then compare again."
        )


class ConcurrentFoldError(Retryable):
    """Another commit changed a table of a state while a fold was being computed."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"another commit changed {table} while this fold was being computed. This fold's commit was refused, so the "
            "table is as the other commit left it. Fold again: the new fold starts from there."
        )


class FoldOutcomeUnknownError(UnknownOutcome):
    """The outcome of a fold's commit is unknown."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(
            f"the connection broke while a fold was being committed to {table} ({reason}). The fold may or may not be in "
            "the table. Fold again: the new fold checks that, and applies each window once."
        )


class StateErasureUnfinishedError(Retryable):
    """A topic's state still holds records that are being erased, in its present files or in past ones."""

    def __init__(self, topic: str, cause: str = "", *, left: Sequence[str] = ()) -> None:
        self.topic, self.cause, self.left = topic, cause, tuple(left)
        because, fix = cause, "Fix this cause"
        held = [f"{kind}/{topic}" for kind in left or ("state", "state_deleted")]
        if left:
            what = "history: true" if list(left) == ["history"] else "state"
            because = f"{topic} no longer declares `{what}`, so these rows cannot be made again"
            fix = f"Declare `{what}` again, or delete the folder{'s' if held[1:] else ''} {' and '.join(held)}"
        super().__init__(
            f"the erased records may still be in the files of {' or '.join(held)}: "
            f"{because.rstrip('.')}. {fix}, then run `platform-assets erase {topic}` again: it continues this erasure, "
            "replays included."
        )


# --- derived tables ----------------------------------------------------------------------------------------------


class InputMissingError(Retryable):
    """A table from which a derived table is made does not exist yet."""

    def __init__(self, table: str, source: str) -> None:
        self.table, self.source = table, source
        kind, _, topic = source.partition("/")
        fix = f"Run `platform-assets fold {topic}` first" if kind.startswith("state") else f"Load {source} first"
        super().__init__(
            f"{table} is made from {source}, which has no rows yet. Nothing was changed. {fix}; the sensor then requests the next run."
        )


class DerivedQueryError(Terminal):
    """Spark refused or failed the query of a derived table."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(
            f"the query of {table} failed: {reason}. The table was not changed. Correct `sql` in its defs.yaml."
        )


class ConcurrentDerivationError(Retryable):
    """Another commit to the derived table came first."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"another commit to {table} came first, so this run's commit was refused. The table holds the other commit's rows. Run it "
            "again: the new run begins from them."
        )


class DerivationUnknownError(UnknownOutcome):
    """It is unknown whether a commit to a derived table was made."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(
            f"the connection broke while {table} was being written ({reason}). The commit may or may not have been made. Run it "
            "again: the new run looks at the table's newest commit."
        )


class DerivedRowsLostError(Retryable):
    """Rows that a derived table's commit was to keep were not written completely."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(
            f"the rows of {table} that stay as they are were not copied completely: {reason}. Nothing was changed. Run it again."
        )


# --- migration to flat tables -----------------------------------------------------------------------------------


class MigrationDamageError(Terminal):
    """A table to be migrated has rows that differ from those that its loads wrote."""

    def __init__(self, table: str, windows: Sequence[str]) -> None:
        self.table, self.windows = table, tuple(windows)
        some = ", ".join(windows[:3]) + (f" and {len(windows) - 3} more" if len(windows) > 3 else "")
        super().__init__(
            f"{table} was not migrated: the rows of {some} differ from those that were loaded, or their files cannot be "
            f"read. Load these windows again (`platform-assets load {table} {' '.join(windows[:3])}`) to restore the rows. "
            "Then migrate again: files that are already copied are not copied again."
        )


class MigrationBusyError(Retryable):
    """Each time, another commit came before the commit of the migration."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"{table} was not migrated: other writers kept committing to it. Migrate again when fewer loads are "
            "running: files that are already copied are not copied again."
        )


class MigrationOutcomeUnknownError(UnknownOutcome):
    """The outcome of a migration's commit is unknown."""

    def __init__(self, table: str, reason: str) -> None:
        self.table = table
        super().__init__(
            f"the connection broke while the commit of the migration of {table} was being written ({reason}). The "
            "table has the old or the new layout, with the same rows. Migrate again to find out which."
        )


# --- dead letters on Kafka --------------------------------------------------------------------------------------


class SendingInterruptedError(Retryable):
    """Not all dead letters were sent to a topic, or the outcome of the last sends is unknown.

    Attributes:
        fenced: true if another sender has taken over.
        timed_out: true if the transaction was open for longer than its limit.
    """

    def __init__(
        self, source: str, target: str, doing: str, reason: str, *, fenced: bool = False, timed_out: bool = False
    ) -> None:
        self.source, self.target, self.fenced, self.timed_out = source, target, fenced, timed_out
        why = "another sender has taken over" if fenced else reason
        text = (
            f"dead letters of topic {source!r} were not all sent to topic {target!r}: {doing} failed ({why}). "
            "Dead letters that Kafka committed are recorded as sent. Run it again to send the others; none is sent twice."
        )
        super().__init__(
            f"{text} If this repeats, check the brokers and the connection to them." if timed_out else text
        )


class SendingRefusedError(Terminal):
    """A broker refused to take dead letters. If the user lacks a right, `right` names it. `is_invalid` is true if Kafka
    found a record invalid, rather than too large."""

    def __init__(self, source: str, target: str, reason: str, right: str = "", *, is_invalid: bool = False) -> None:
        self.source, self.target, self.right = source, target, right
        if right:
            remedy = f"Grant the KAFKA_* user {right}"
        elif is_invalid:
            remedy = (
                f"If topic {target!r} has cleanup.policy=compact, it takes no record without a key: name a topic that is not "
                "compacted"
            )
        else:
            remedy = f"Raise max.message.bytes of topic {target!r}"
        super().__init__(
            f"the Kafka broker refused to store dead letters of topic {source!r} in topic {target!r}: {reason.rstrip('.')}. "
            f"{remedy}, then run it again: no dead letter is sent twice."
        )


# --- published topics -------------------------------------------------------------------------------------------


class PublishingInterruptedError(Retryable):
    """Not all rows were published, or the outcome of the last transaction is unknown.

    Attributes:
        fenced: true if another publisher of the topic has taken over.
        again: false if the same run cannot continue, because the topic is another one now.
        timed_out: true if the transaction was open for longer than its limit.
    """

    def __init__(
        self,
        topic: str,
        doing: str,
        reason: str,
        *,
        fenced: bool = False,
        again: bool = True,
        timed_out: bool = False,
    ) -> None:
        self.topic, self.doing, self.reason, self.fenced, self.again = topic, doing, reason, fenced, again
        self.timed_out = timed_out
        why = "another publisher has taken over" if fenced else reason.rstrip(".")
        text = (
            f"published/{topic}: {doing} failed ({why}). What Kafka committed is recorded in the same transaction. Publish "
            "again to continue from there; no record is sent twice."
        )
        remedy = (
            " If this repeats, declare a smaller `transaction_rows`, or a longer `transaction_timeout_seconds`, and check "
            "the connection to the brokers."
        )
        super().__init__(text + (remedy if timed_out else ""))


class PublishingRefusedError(Terminal):
    """A broker refused records for a published topic, with the error `reason`.

    If the user lacks a right, `right` names it. `is_invalid` is true if Kafka found a record invalid, rather than too
    large.
    """

    def __init__(self, topic: str, reason: str, right: str = "", *, is_invalid: bool = False) -> None:
        self.topic, self.right, self.is_invalid = topic, right, is_invalid
        if right:
            remedy = f"Grant the KAFKA_* user {right}"
        elif is_invalid:
            remedy = (
                f"If topic {topic!r} has cleanup.policy=compact, each record needs a key: publish a key that no row lacks, or to a "
                "topic that is not compacted"
            )
        else:
            remedy = f"Raise max.message.bytes of topic {topic!r}"
        super().__init__(
            f"published/{topic}: the Kafka broker refused to store a record: {reason.rstrip('.')}. {remedy}, then publish again: "
            "no record is sent twice."
        )


class PublishingBlockedError(Terminal):
    """A blocking check of the table failed after the sensor requested the run, and nothing more was published."""

    def __init__(self, topic: str, table: str, checks: Sequence[str]) -> None:
        self.topic, self.table, self.checks = topic, table, checks
        super().__init__(
            f"published/{topic}: a check of {table} fails: {', '.join(checks)}. Follow that check's remedy, and the sensor requests "
            f"another run; or, to publish the rows as they are, run `platform-assets publish {topic}`."
        )


class PublishingProgressLostError(Terminal):
    """The topic that records which rows were published no longer has that information."""

    def __init__(self, topic: str, progress_topic: str, cause: str) -> None:
        self.topic, self.progress_topic = topic, progress_topic
        super().__init__(
            f"published/{topic}: topic {progress_topic!r} records which rows were sent, but {cause}. Publishing would send rows "
            f"again, so nothing was sent. Delete topic {topic!r} and create it again, or publish to a topic of another name: "
            "then publish again, and the new topic gets all rows once."
        )


class PublishedLoadUnknownError(Terminal):
    """The progress names a load of a window that the lake does not have: the lake was restored from before."""

    def __init__(self, topic: str, window: str, load_id: str) -> None:
        self.topic, self.window, self.load_id = topic, window, load_id
        super().__init__(
            f"published/{topic}: load {load_id} of window {window} was published, but the lake does not have it, as after a restore. "
            "The windows since then may have other records, so nothing was sent. If only the ledger was lost, run "
            f"`platform-assets rebuild-ledger`. Otherwise, delete topic {topic!r} and create it again, or publish the table to a new "
            "topic: it gets all rows once."
        )


class UnpublishableRowError(Terminal):
    """A row has a value that JSON does not have, described by `what`."""

    def __init__(self, topic: str, table: str, column: str, what: str) -> None:
        self.topic, self.table, self.column = topic, table, column
        super().__init__(
            f"published/{topic}: column {column!r} of {table} has {what}, which JSON cannot represent. Declare "
            "`non_finite: null` to publish null instead, or leave out the column."
        )


class UnpublishableValueError(UnpublishableRowError):
    """A row has a value that does not fit into the schema of published records."""

    def __init__(self, topic: str, table: str, row: str, column: str, what: str) -> None:
        self.topic, self.table, self.row, self.column = topic, table, row, column
        PlatformError.__init__(
            self,
            f"published/{topic}: column {column} of {table} {what}, in the row {row}. This row and later ones were not sent. "
            "Declare a `schema` that has this value (for Avro), leave out the column, or correct the row.",
        )


class UnpublishableTextError(UnpublishableRowError):
    """A row has a text that is not UTF-8, which Spark allows, and readers of records cannot decode."""

    def __init__(self, topic: str, table: str, row: str, column: str) -> None:
        self.topic, self.table, self.row, self.column = topic, table, row, column
        PlatformError.__init__(
            self,
            f"published/{topic}: column {column!r} of {table} has a text that is not UTF-8, in the row {row}, so readers could not "
            "decode it. Nothing of this window or version was sent. In a query, write "
            f"`make_valid_utf8({column})`, which replaces the wrong bytes, or `CAST({column} AS BINARY)`, which keeps all of them; or "
            "leave out the column.",
        )


class UnpublishableTombstoneError(UnpublishableRowError):
    """A record without a value has no column for the key of the published record."""

    def __init__(self, topic: str, table: str, column: str) -> None:
        self.topic, self.table, self.column = topic, table, column
        PlatformError.__init__(
            self,
            f"published/{topic}: {table} has records without a value, and their keys have no column {column!r} of the same type, "
            "so consumers could not tell what they delete. Decode the records' keys with this column (`decode: key`) and load "
            "the table again with `--stale`, or publish another key, for example `key: key`.",
        )


class PublishedRowsLostError(Terminal):
    """The rows of a load that was published, or is being published, are no longer in the lake."""

    def __init__(self, topic: str, table: str, window: str, load_id: str, cause: str) -> None:
        self.topic, self.table, self.window, self.load_id = topic, table, window, load_id
        super().__init__(
            f"published/{topic}: window {window} of {table} was loaded again, and the rows of its load {load_id}, to which the new "
            f"rows have to be compared, can no longer be read: {cause}. Restore them from a backup, or publish the table to "
            "a new topic."
        )


def _rows(number: int) -> str:
    return f"{number:,} row" + ("" if number == 1 else "s")


def ranges_text(ranges: Iterable[tuple[int, int, int]], limit: int = 10) -> str:
    """Describe `(partition, start, end)` ranges, end exclusive, for a message; beyond `limit` ranges, only give their
    number."""
    listed = list(ranges)
    text = ", ".join(f"partition {p} offsets [{start}, {end})" for p, start, end in listed[:limit])
    return text + (f" and {len(listed) - limit} more ranges" if len(listed) > limit else "")
