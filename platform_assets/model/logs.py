"""Loggers whose messages are a line each, whatever records, registries and brokers said in them."""

from __future__ import annotations

import logging
from typing import Any

from platform_assets.model.untrusted import line


class _Escaping(logging.LoggerAdapter[logging.Logger]):
    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            text = str(msg) % args if args else str(msg)
            # The caller's place in the code, not this one.
            self.logger.log(level, "%s", line(text), **{"stacklevel": 2, **kwargs})


def logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """The logger of that name; what is not printable is shown as an escape in what is logged by it."""
    return _Escaping(logging.getLogger(name), {})
