"""The merging engine. Spark's Python workers merge files, with one task for each group of files. Without Spark, this
process merges the files."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from platform_assets.engines.merging.work import Report, Work
from platform_assets.engines.shared.job import JobLost, texts_of
from platform_assets.engines.shared.reports import UnsupportedError
from platform_assets.engines.shared.session import SharedSession, is_ended
from platform_assets.errors import MergingLostError, PlatformError
from platform_assets.model.logs import logger

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_log = logger(__name__)
_TASK: Final = "platform_assets.engines.merging.task"


@dataclass(frozen=True)
class MergeEngine:
    """Merges files. Jobs are sent to the `shared` session or, if `shared` is None, to the session that `session`
    returns. If both are None, this process does the work and sends no job."""

    session: Callable[[], SparkSession] | None = None
    shared: SharedSession | None = None

    def merge(self, work: Work) -> Generator[Report, None, None]:
        """Yield a report for each share as soon as the report is known, in the sequence of the shares. No commit refers
        to the new files yet.

        If Spark's workers lack the code for a share, this process runs the share. Raises MergingLostError if the job
        ended early. In that case, shares without a report might have left files in their folders.
        """
        if self.session is None and self.shared is None:
            yield from _in_process(work, 0)
            return
        done = 0
        try:
            try:
                for report in self._reports(work, 0):
                    done += 1
                    yield self._or_in_process(work, report)
            except JobLost as lost:
                if self.shared is None or not is_ended(lost.text):
                    raise
                _log.info("the shared Spark session has ended and is being restarted: %s", lost.text)
                self.shared.forget()
                for report in self._reports(work, done):
                    done += 1
                    yield self._or_in_process(work, report)
        except JobLost as lost:
            if lost.no_python is None:
                if isinstance(lost.cause, PlatformError):
                    raise lost.cause from lost
                raise MergingLostError(work.name, lost.text) from lost
            _log.warning(
                "merging files of %s in this process instead, because Spark's workers have no Python (%s)",
                work.name,
                lost.no_python,
            )
            yield from _in_process(work, done)

    def _or_in_process(self, work: Work, report: Report) -> Report:
        if not isinstance(report.error, UnsupportedError):
            return report
        _log.warning("merging files of %s in this process instead of in Spark: %s", work.name, report.error.reason)
        return next(_in_process(work, report.share))

    def _reports(self, work: Work, first: int) -> Generator[Report, None, None]:
        """Run the shares in Spark, starting with share `first`, and yield their reports. Raises JobLost."""
        from grpc import RpcError
        from pyspark.errors import PySparkException

        left = replace(work, shares=work.shares[first:])
        if not left.shares:
            return
        try:
            spark = self.session() if self.shared is None and self.session is not None else self._shared_session()
            with closing(texts_of(spark, left, len(left.shares), _TASK)) as texts:
                for text in texts:
                    report = Report.from_json(text)
                    yield replace(report, share=first + report.share)
        except (PySparkException, RpcError) as e:
            raise JobLost(e) from e

    def _shared_session(self) -> SparkSession:
        if self.shared is None:
            raise AssertionError("unreachable: there is a session or a shared one")
        return self.shared.session()


def _in_process(work: Work, first: int) -> Generator[Report, None, None]:
    # Imported here because it loads compiled code.
    from platform_assets.engines.merging.task import reports

    yield from reports(work, range(first, len(work.shares)))
