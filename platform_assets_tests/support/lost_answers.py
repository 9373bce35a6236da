"""A proxy before an object store that hands requests on and, where it is asked to, keeps an answer: it is lost on its way.

It is a process of its own: some calls of delta-rs hold the interpreter's lock while they wait for an answer.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from infra.ports import LOOPBACK

_OWN: Final = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})


@dataclass(frozen=True)
class LostAnswers:
    """The proxy as a test has it, at `port` of loopback."""

    port: int
    _process: subprocess.Popen[str]

    def once(self, ending: str) -> None:
        """From now on, lose the answer to one PUT of a key with this ending."""
        assert self._asked(f"once {ending}") == "ok"

    @property
    def lost(self) -> int:
        """How many answers were lost."""
        return int(self._asked("lost"))

    def _asked(self, question: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@contextmanager
def losing_answers(target: int) -> Iterator[LostAnswers]:
    """A proxy before the port `target` of loopback, within the block."""
    command = [sys.executable, "-m", __name__, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield LostAnswers(int(process.stdout.readline()), process)
        finally:
            process.stdin.close()


class _State:
    def __init__(self, target: int) -> None:
        self.target, self.ending, self.lost, self.mutex = target, "", 0, threading.Lock()

    def loses(self, method: str, path: str) -> bool:
        with self.mutex:
            if method != "PUT" or not self.ending or not path.partition("?")[0].endswith(self.ending):
                return False
            self.ending, self.lost = "", self.lost + 1
            return True


def _handler(state: _State) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            onward = http.client.HTTPConnection(LOOPBACK, state.target, timeout=30)
            try:
                onward.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    onward.putheader(name, value)
                onward.endheaders(content)
                answer = onward.getresponse()
                body = answer.read()
            finally:
                onward.close()
            if state.loses(self.command, self.path):
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _serve(target: int) -> None:
    state = _State(target)
    server = ThreadingHTTPServer((LOOPBACK, 0), _handler(state))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        question, _, ending = line.strip().partition(" ")
        if question == "once":
            state.ending = ending
        print("ok" if question == "once" else state.lost, flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
