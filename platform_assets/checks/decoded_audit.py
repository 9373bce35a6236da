"""`platform-assets audit decoded/<topic>`: check that each raw row is a decoded row or a dead letter, either by
receipts or by reading both tables again. Tables are not changed. If reading proves that a window is intact, the proof
is recorded in the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, TypeVar

from platform_assets.checks import decoded
from platform_assets.checks.audit import Audit, CheckOutcome
from platform_assets.checks.decoded import Windows
from platform_assets.checks.decoded_files import TableFiles, difference
from platform_assets.checks.findings import CheckResult, Finding, FindingKind, counted, foreign_ids
from platform_assets.checks.other_readers import disagreements
from platform_assets.checks.registry import DEEP_AUDIT
from platform_assets.engines.batching import batched_windows
from platform_assets.errors import FilesLostError, PlatformError, Retryable
from platform_assets.lake import holdings, load_log, rows
from platform_assets.ledger import decisions
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Span
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets.windows.load.receipts import proved_again

DECODED: Final = "every_window_decoded"
T = TypeVar("T")


@dataclass(frozen=True)
class DecodedAudit:
    """One audit of a topic's decoded tables. `decoder` is used only in a deep audit.

    `in_flight` takes windows and returns those that queued or running runs will decode. `budget` limits the time for
    reading, in seconds.
    """

    declaration: TopicDeclaration
    ledger: Ledger
    decoder: Callable[[], WindowDecoder]
    in_flight: Callable[[list[str]], frozenset[str]] = lambda keys: frozenset()
    span: Span = field(default_factory=Span)
    budget: float = float("inf")
    progress: Callable[[str], None] = lambda text: None

    @property
    def table(self) -> TableRef:
        """The table of decoded rows, to which findings belong."""
        return self.declaration.decoded_table

    def run(self, now: datetime, *, deep: bool = False) -> Audit:
        """Evaluate every check. With `deep`, also read files.

        If something cannot be determined, the outcome says so; no error is raised.
        """
        deadline = time.monotonic() + self.budget
        self.progress(decoded.CONSERVATION)
        windows = _attempt(
            lambda: decoded.confirmed_windows(self.declaration, self.ledger, None, self.in_flight, self.budget)
        )
        if isinstance(windows, str):
            outcomes = (CheckOutcome(decoded.CONSERVATION, None, windows),)
            return Audit(self.table.name, now.isoformat(timespec="seconds"), self.span, deep, outcomes, None)
        windows = _within(windows, self.span)
        done = [
            self._outcome(DECODED, lambda: self._missing(windows)),
            self._outcome(decoded.CONSERVATION, lambda: decoded.conserved(windows)),
        ]
        if deep:
            done.append(self._outcome(DEEP_AUDIT.name, lambda: self._read(windows, deadline)))
        return Audit(
            self.table.name,
            now.isoformat(timespec="seconds"),
            self.span,
            deep,
            tuple(done),
            None,
            count=len({*windows.raw, *windows.keys}),
        )

    def _outcome(self, name: str, evaluate: Callable[[], CheckResult]) -> CheckOutcome:
        self.progress(name)
        found = _attempt(evaluate)
        return CheckOutcome(name, None, found) if isinstance(found, str) else CheckOutcome(name, found, None)

    def _missing(self, windows: Windows) -> CheckResult:
        """Find windows of the raw table that are not decoded, except for windows whose decoding is not due yet."""
        newest = max(windows.keys, default="")
        missing = [key for key in sorted(windows.raw) if key not in windows.decoded and key not in windows.dead_letters]
        under_way = self.in_flight(missing) if missing else frozenset()
        parked = decisions.parking(self.ledger.lake, self.table).parked if missing else {}
        late = [key for key in missing if key < newest and key not in {*under_way, *parked}]
        set_aside = sorted({*missing} & {*parked} - under_way)
        findings = tuple(
            Finding(
                "window not decoded", windows.topic, key, None, (),
                "the raw table contains the window, and newer windows have already been decoded",
                f"Run `platform-assets load {self.table} {key}`, or let the topic's sensor request the window.",
            )
            for key in late
        ) + tuple(
            Finding(
                "window parked", windows.topic, key, None, (), "an operator has parked the window, so the sensor does not request it",
                f"Run `platform-assets unpark {self.table} {key}` once the window can be decoded.",
            )
            for key in set_aside
        )  # fmt: skip
        waiting = len(missing) - len(late) - len(set_aside)
        headline = f"{counted(len(late), 'window')} not decoded." if late else (
            f"{counted(len(windows.raw) - len(missing), 'window')} of the raw table decoded"
            + (f"; {counted(waiting, 'window')} waiting" if waiting else "")
            + (f"; {counted(len(set_aside), 'window')} parked" if set_aside else "") + "."
        )  # fmt: skip
        figures = (("windows", len(windows.raw)), ("windows_not_decoded", len(missing)))
        return CheckResult(DECODED, self.table, findings, headline, figures)

    def _read(self, windows: Windows, deadline: float) -> CheckResult:
        """Read the files of both tables again with Spark, and decode the raw rows again. Compare each result with the
        receipts, starting with the windows whose last proof is oldest."""
        decoder = self.decoder()
        findings: list[Finding] = []
        proved: list[Receipt] = []
        for of_table in (windows.of_decoded, windows.of_dead_letters):
            read, found = self._table(of_table, decoder, deadline)
            proved += read
            findings += found
        self.ledger.record_receipts(self._still_newest(proved))
        again, skipped, left, judged = 0, 0, 0, 0
        with_raw = [key for key in windows.keys if key in windows.raw]
        oldest = sorted(with_raw, key=lambda k: (_last_proof(windows.decoded.get(k)), k))
        for number, key in enumerate(oldest, 1):
            if time.monotonic() >= deadline:
                left = len(oldest) - number + 1
                break
            self.progress(f"decoding window {key} again ({number:,} of {len(oldest):,})")
            outcome = _asked(lambda key=key: decoder.differences(key))  # type: ignore[misc]
            if outcome is None:
                skipped += 1
            elif isinstance(outcome, PlatformError):
                findings.append(_unanswered(windows.topic, key, outcome))
            else:
                again += 1
                findings += [self._finding("decoded otherwise", key, text) for text in outcome]
                if all(each.window != key for each in findings):
                    count, found = self._read_otherwise(windows.raw[key])
                    judged += count
                    findings += found
        rows = sum(r.rows for r in proved)
        alarming = {f.window for f in findings if f.alarming}
        if alarming:
            headline = f"{counted(len(alarming), 'window')} damaged, or now decoded differently."
        elif findings:
            headline = f"The result is unknown for {counted(len({f.window for f in findings}), 'window')}."
        else:
            headline = (
                f"{rows:,} rows and dead letters read again, all unchanged since the load; {counted(again, 'window')} decoded "
                f"again with the same result"
                + (f"; {counted(judged, 'row')} of these windows also decoded by another reader" if judged else "")
                + (
                    f"; {skipped:,} skipped, because they have no offsets or were decoded with another declaration"
                    if skipped
                    else ""
                )
                + (f"; {counted(left, 'window')} left for the next audit" if left else "")
                + "."
            )
        figures = (
            ("rows_read", rows), ("windows_decoded_again", again), ("rows_read_otherwise", judged), ("windows_left", left)
        )  # fmt: skip
        return CheckResult(DEEP_AUDIT.name, self.table, tuple(findings), headline, figures)

    def _table(
        self, of_table: TableFiles, decoder: WindowDecoder, deadline: float
    ) -> tuple[list[Receipt], list[Finding]]:
        """Return the receipts of windows whose rows are those of the load, and findings about the other windows."""
        folder = self.ledger.lake.table(of_table.table)
        if not load_log.exists(folder):
            return [], []
        version, table_id = load_log.version(folder), load_log.table_id(folder)
        with_rows = sorted((r for r in of_table.receipts.values() if r.rows), key=_last_proof)
        opened = rows.Opened(folder, holdings.window_files(holdings.actions(folder, version)))
        proved: list[Receipt] = []
        findings: list[Finding] = []
        for batch in batched_windows(with_rows, lambda receipt: receipt.rows):
            if time.monotonic() >= deadline:
                break
            self.progress(f"reading {counted(len(batch), 'window')} of {of_table.table}")
            by_key = {receipt.window.key: receipt for receipt in batch}
            for key, measured in decoder.engine.measure(of_table.table, list(by_key), version):
                if isinstance(measured, FilesLostError):
                    findings.append(self._finding("files lost", key, str(measured)))
                elif isinstance(measured, PlatformError):
                    findings.append(_unanswered(of_table.table.topic, key, measured))
                elif (text := difference(by_key[key], measured)) is not None:
                    same_rows = measured.offsets == by_key[key].offsets
                    kind: FindingKind = "altered value" if same_rows else "not conserved"
                    findings.append(self._finding(kind, key, f"{of_table.table}: {text}"))
                elif (text := _foreign(of_table, opened, by_key[key])) is not None:
                    findings.append(self._finding("altered value", key, f"{of_table.table}: {text}"))
                else:
                    proved.append(
                        proved_again(by_key[key], of_table.files.get(key, holdings.NO_FILES), version, table_id)
                    )
        return proved, findings

    def _read_otherwise(self, raw: Receipt) -> tuple[int, list[Finding]]:
        """Return the number of rows of a window that another reader has checked, and findings about the rows for which
        that reader gave different values."""
        key, topic = raw.window.key, self.declaration.topic
        outcome = _asked(lambda: disagreements(self.declaration, self.ledger.lake, raw))
        if isinstance(outcome, PlatformError):
            return 0, [_unanswered(topic, key, outcome)]
        judged, wrong = outcome
        remedy = (
            "Report this as a defect of the decoder, and include the record's value. After an upgrade, load the "
            "window again."
        )
        return judged, [
            Finding(
                "decoded otherwise", topic, key, each.partition, (OffsetRange(each.offset, each.offset + 1),), each.detail, remedy
            )
            for each in wrong
        ]  # fmt: skip

    def _still_newest(self, proved: Sequence[Receipt]) -> list[Receipt]:
        """Return only the receipts of windows that have not been loaded again in the meantime. A proof of an earlier
        load must not hide the newest load."""
        of_table: dict[TableRef, list[Receipt]] = {}
        for receipt in proved:
            of_table.setdefault(receipt.table, []).append(receipt)
        kept: list[Receipt] = []
        for table, receipts in of_table.items():
            newest = self.ledger.receipts(table, [r.window.key for r in receipts])
            kept += [r for r in receipts if newest[r.window.key].load_id == r.load_id]
        return kept

    def _finding(self, kind: FindingKind, key: str, detail: str) -> Finding:
        remedy = (
            f"Materialize partition {key} of {self.table}: the run decodes and repairs it, or reports why it cannot."
        )
        return Finding(kind, self.table.topic, key, None, (), detail, remedy)


def _within(windows: Windows, span: Span) -> Windows:
    def of(by_key: Mapping[str, T]) -> dict[str, T]:
        return {key: value for key, value in by_key.items() if key in span}

    def files(found: TableFiles) -> TableFiles:
        return replace(found, receipts=of(found.receipts), otherwise=of(found.otherwise), files=of(found.files))

    return replace(
        windows,
        raw=of(windows.raw),
        of_decoded=files(windows.of_decoded),
        of_dead_letters=files(windows.of_dead_letters),
        unknown=of(windows.unknown),
    )


def _foreign(of_table: TableFiles, opened: rows.Opened, receipt: Receipt) -> str | None:
    """Describe how the topic ids in the rows differ from the topic id of the load; return None if they do not differ.
    No digest covers these topic ids."""
    key = receipt.window.key
    if of_table.files.get(key, holdings.NO_FILES).proved_as is not None:
        return None
    try:
        return foreign_ids(receipt.topic_id, opened.topic_ids_of(key))
    except FilesLostError as lost:
        return str(lost)


def _unanswered(topic: str, key: str, error: PlatformError) -> Finding:
    again = ", then run the audit again" if isinstance(error, Retryable) else ""
    return Finding(
        "could not tell", topic, key, None, (), str(error), f"Follow the instructions in the message{again}."
    )


def _last_proof(receipt: Receipt | None) -> datetime:
    return (receipt.proved_at if receipt is not None else None) or datetime.min.replace(tzinfo=UTC)


def _attempt(call: Callable[[], T]) -> T | str:
    found = _asked(call)
    return str(found) if isinstance(found, PlatformError) else found


def _asked(call: Callable[[], T]) -> T | PlatformError:
    """Return the result of `call`, or the error that says why a table, the ledger or a service could not be read."""
    try:
        return call()
    except PlatformError as e:
        return e
