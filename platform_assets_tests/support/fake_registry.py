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
        self.subjects: dict[str, list[int]] = {}
        self.schemas: dict[int, tuple[str, str]] = {}
        self.posted: list[tuple[str, str]] = []
        self.first_id = 1
        self.unknown: Answer = (404, {}, json.dumps({"error_code": 40403, "message": "Schema not found"}).encode())

    def has(self, path: str, document: Any, status: int = 200, **headers: str) -> None:
        """Answer all later requests for a path with this JSON."""
        self.answers[path] = lambda: (status, headers, json.dumps(document).encode())

    def answer(self, path: str, headers: dict[str, str]) -> Answer:
        """Return the answer to a request."""
        self.asked.append((path, headers))
        return self.answers.get(path, lambda: self.unknown)()

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Register a schema, or look it up in a subject, unless `answers` has an answer for `POST <path>`."""
        self.asked.append((path, headers))
        if (given := self.answers.get(f"POST {path}")) is not None:
            return given()
        document = json.loads(body)
        schema = (document.get("schemaType", "AVRO"), document["schema"])
        _, _, subject, *rest = path.split("/")
        self.posted.append((subject, schema[1]))
        held = self.subjects.setdefault(subject, []) if rest else self.subjects.get(subject, [])
        number = next((n for n, each in self.schemas.items() if each == schema), None)
        if rest and number is None:
            number = self.first_id + len(self.schemas)
            self.schemas[number] = schema
            self.has(f"/schemas/ids/{number}", {"schema": schema[1], "schemaType": schema[0]})
        if rest and number not in held:
            held.append(number or 0)
        if number not in held:
            code = 40403 if held else 40401
            return 404, {}, json.dumps({"error_code": code, "message": "not found"}).encode()
        return 200, {}, json.dumps({"id": number}).encode()

    def forget_all(self, first_id: int) -> None:
        """Become another registry, whose ids begin with this one."""
        self.subjects, self.schemas, self.answers, self.first_id = {}, {}, {}, first_id


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Run a fake registry on a free loopback port."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(*registry.answer(self.path, self.given()))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(*registry.post(self.path, body, self.given()))

        def given(self) -> dict[str, str]:
            return {name.lower(): value for name, value in self.headers.items()}

        def reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
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
