"""A Spark Connect session that processes share, so that its Python workers are warm when a new process sends its first job.

Spark starts workers for each session and keeps them: a separate session pays for their start, and for loading the code, with
its first job. A process that joins by the session's id finds them running. To keep that safe, no process stops such a session
or changes its settings, and a process joins it only with the code that it was started with.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from platform_assets.engines.spark.session import address_of, check_reachable, end, set_up_client, without_token
from platform_assets.errors import SparkUnreachableError
from platform_assets.lake.location import Lake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_ENDED: Final = ("SESSION_CLOSED", "SESSION_CHANGED", "SESSION_NOT_FOUND", "NO_ACTIVE_SESSION")
"""A server's answers for a session that was idle for too long (its id is refused from then on) or that belonged to another
server, and pyspark's own error after the latter."""
_MOST_REFUSED: Final = 1_000
"""Number of closed session ids that a server remembers by default."""


def is_ended(text: str) -> bool:
    """Return true if Spark's text means that the session has ended; its jobs have ended too, and committed nothing."""
    return any(sign in text for sign in _ENDED)


@dataclass
class SharedSession:
    """The session at `remote` for the tables of `lake` and for this `code`; processes with the same three values share it.

    Its newest generation is stored next to the ledger, so that ids which the server refuses forever are skipped; if that is
    lost or wrong, they are only tried again.
    """

    remote: str = field(repr=False)
    lake: Lake
    code: str
    _joined: SparkSession | None = field(default=None, init=False, repr=False)

    def session(self) -> SparkSession:
        """Return the session, joining it at the first call. Raises SparkUnreachableError and ConfigurationError."""
        if self._joined is None:
            self._joined = self._join()
        return self._joined

    def forget(self) -> None:
        """Leave the session, which continues for others; the next call of `session` joins it again, or its successor."""
        if self._joined is not None:
            session, self._joined = self._joined, None
            end(session)

    def session_id(self, generation: int) -> str:
        """Return a UUID derived from code, lake and generation."""
        digest = hashlib.sha256(f"{self.code}\0{self.lake}\0{generation}".encode()).digest()
        return str(uuid.UUID(bytes=digest[:16], version=4))

    def _join(self) -> SparkSession:
        check_reachable(self.remote)
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.session import SparkSession

        known = self._known_generation()
        with_id = self.remote if ";" in self.remote else f"{self.remote.rstrip('/')}/;"
        for generation in itertools.count(known):
            session = SparkSession(connection=f"{with_id.rstrip(';')};session_id={self.session_id(generation)}")
            session.release_session_on_close = False
            set_up_client(session)
            try:
                _ = session.version  # asks the server, which accepts or refuses the id
            except PySparkException as e:
                end(session)
                if is_ended(str(e)) and generation < known + _MOST_REFUSED:
                    continue
                host, port = address_of(self.remote)
                raise SparkUnreachableError(f"{host}:{port}", without_token(str(e))) from e
            if generation != known:
                self.lake.sessions.write(self._note, str(generation).encode())
            return session
        raise AssertionError("unreachable")

    def _known_generation(self) -> int:
        note = self.lake.sessions.read(self._note) or b""
        return int(note) if note.isdigit() else 0

    @property
    def _note(self) -> str:
        return f"{self.code}.generation"
