"""A registry in a few lines that misbehaves on request. Other tests use a real registry."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]


class FakeRegistry:
    """A registry that gives the answer in `answers` for each path. For all other paths, it gives the answer `unknown`,
    which reports an unknown id. `asked` contains the paths and headers of all requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[], Answer]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.url = ""
        self.unknown: Answer = (404, {}, json.dumps({"error_code": 40403, "message": "Schema not found"}).encode())

    def has(self, path: str, document: Any, status: int = 200, **headers: str) -> None:
        """Answer all later requests for a path with this JSON."""
        self.answers[path] = lambda: (status, headers, json.dumps(document).encode())

    def answer(self, path: str, headers: dict[str, str]) -> Answer:
        """Return the answer to a request."""
        self.asked.append((path, headers))
        return self.answers.get(path, lambda: self.unknown)()


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Run a fake registry on a free loopback port."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, content = registry.answer(
                self.path, {name.lower(): value for name, value in self.headers.items()}
            )
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            # A client with a size limit closes the connection early.
            try:
                self.wfile.write(content)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
