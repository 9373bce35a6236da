"""Strings that attack programs which display them, and a broker that answers with such a string."""

from __future__ import annotations

import contextlib
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MARK: Final = "c4n4ry"
"""Marker that only hostile strings contain, for example in addresses that they try to make a browser request."""
FORGED: Final = f"2026-01-01 00:00:00 CRITICAL {MARK} logged in"
"""Line that hostile strings try to forge in a log."""
MARKUP: Final = (
    f"![chart](/graphql?query=mutation%20{MARK})",
    f"[here](javascript:fetch('/{MARK}'))",
    f"<img src=/{MARK} onerror=\"fetch('/{MARK}')\">",
    f"<script>fetch('/{MARK}')</script>",
    f'<a href="/{MARK}">a</a><iframe src="/{MARK}"></iframe>',
    f"https://{MARK}.example/x www.{MARK}.example someone@{MARK}.example",
    f"` ![](/{MARK}) `` [x]: /{MARK} ~~~",
    f"[bold red]{MARK}[/] {{{{ {MARK} }}}} %s %(x)d {{0}}",
)
CONTROLS: Final = (
    "\x1b[2J\x1b[31m",
    f"\x1b]8;;https://{MARK}.example\x07link\x1b]8;;\x07",
    "\x9b31m\x9d0;title\x9c",
    "\u202eesrever\u202c\u2066\u2069\u200f",
    f"\n{FORGED}\r\n{FORGED}\u2028{FORGED}\x0b\x85{FORGED}",
    "\x00\x07\x08\x7f",
)
TEXT: Final = " ".join((*MARKUP, *CONTROLS))
LONG: Final = TEXT + "x" * 20_000
ARGUMENT: Final = TEXT.replace("\x00", "")
"""Hostile text that fits in an argument or an environment variable."""
FILE_NAME: Final = f"part-\x1b[31m\u202e\n{MARK}<img src=x>![a](b).parquet"
"""Hostile but valid name for a file."""
TOPICS: Final = ("www.t0pic.example", "_em_.__strong__", "-rf", "http.t0pic", "avro.t0pic", "protobuf.t0pic")
"""Topic names that Kafka allows: a URL, markup, a command-line option."""


class HostileBroker(socketserver.ThreadingTCPServer):
    """A broker that refuses each login with a hostile string. `logins` counts the attempts."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.logins = 0
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def bootstrap(self) -> str:
        """Bootstrap address of this broker."""
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(socketserver.StreamRequestHandler):
    server: HostileBroker

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # clients may leave at any time
            while len(head := self.rfile.read(4)) == 4:
                data = self.rfile.read(struct.unpack(">i", head)[0])
                key, version, correlation = struct.unpack_from(">hhi", data)
                body = self.answer(key, version)
                self.wfile.write(struct.pack(">ii", 4 + len(body), correlation) + body)

    def answer(self, key: int, version: int) -> bytes:
        if key == 18:
            known = [struct.pack(">hhh", *each) for each in ((3, 0, 1), (17, 0, 1), (18, 0, 3), (36, 0, 1))]
            if version < 3:
                return struct.pack(">hi", 0, len(known)) + b"".join(known) + (b"\0\0\0\0" if version else b"")
            # A compact array, with tagged fields after each item and after the array.
            return struct.pack(">hB", 0, len(known) + 1) + b"".join(each + b"\0" for each in known) + b"\0\0\0\0\0"
        if key == 17:
            return struct.pack(">hi", 0, 1) + _text("PLAIN")
        self.server.logins += 1
        return struct.pack(">h", 58) + _text(TEXT) + struct.pack(">i", 0) + (b"\0" * 8 if version else b"")


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


@contextmanager
def hostile_broker() -> Iterator[HostileBroker]:
    """Run a hostile broker on a free loopback port."""
    with HostileBroker() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
