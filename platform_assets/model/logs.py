"""Loggers that write each message as one line, even if it contains text from records, registries and brokers."""

from __future__ import annotations

import logging
from typing import Any

from platform_assets.model.untrusted import line


class _Escaping(logging.LoggerAdapter[logging.Logger]):
    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            text = str(msg) % args if args else str(msg)
            # The log shows the caller's line in the code, not this line.
            self.logger.log(level, "%s", line(text), **{"stacklevel": 2, **kwargs})


def logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger with the given name. It shows unprintable characters as escapes."""
    return _Escaping(logging.getLogger(name), {})
