"""A proxy for an object store, which forwards requests and, on demand, loses a request or the answer to a request. The
proxy is a separate process, because some calls of delta-rs hold the interpreter's lock while they wait for an answer.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal

from platform_assets.services.ports import LOOPBACK

_OWN: Final = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})


What = Literal["answer", "request"]


@dataclass(frozen=True, slots=True)
class Loss:
    """Exchanges to lose: requests with `method` for keys that end with `ending`, after the first `after` such requests.
    `what` specifies what is lost: the request, which then never arrives, or the answer. `times` is the number of losses
    in a row, because a client sends a request again if it gets no answer."""

    ending: str
    what: What = "answer"
    method: str = "PUT"
    after: int = 0
    times: int = 1


@dataclass(frozen=True)
class LostAnswers:
    """A test's handle for the proxy, which listens on loopback at `port`."""

    port: int
    _process: subprocess.Popen[str]

    def once(self, ending: str) -> None:
        """Lose the answer to the next PUT of a key with this ending."""
        self.lose(Loss(ending))

    def lose(self, *losses: Loss) -> None:
        """Replace the pending losses with these losses."""
        assert self._asked([asdict(loss) for loss in losses]) == "ok"

    @property
    def lost(self) -> int:
        """Return the number of lost answers and requests."""
        return sum(self.counts.values())

    @property
    def counts(self) -> dict[What, int]:
        """Return the number of losses of each kind."""
        found: dict[What, int] = self._asked("counts")
        return found

    def _asked(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(question)}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def losing_answers(target: int) -> Iterator[LostAnswers]:
    """Run a proxy for the loopback port `target` within the block."""
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
        self.target, self.mutex = target, threading.Lock()
        self.losses: list[Loss] = []
        self.counts: dict[What, int] = {"answer": 0, "request": 0}

    def loses(self, method: str, path: str) -> What | None:
        """Return the part of this exchange to lose, either the request or the answer, or None if nothing is to be lost."""
        with self.mutex:
            for number, loss in enumerate(self.losses):
                if method != loss.method or not path.partition("?")[0].endswith(loss.ending):
                    continue
                waits = loss.after > 0
                left = replace(loss, after=loss.after - 1) if waits else replace(loss, times=loss.times - 1)
                self.losses[number : number + 1] = [left] if left.times else []
                if not waits:
                    self.counts[loss.what] += 1
                    return loss.what
        return None


def _handler(state: _State) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            lost = state.loses(self.command, self.path)
            if lost == "request":
                self.close_connection = True
                return
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
            if lost == "answer":
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length or "0")
            try:
                self.end_headers()
                self.wfile.write(body)
            except ConnectionError:
                self.close_connection = True  # the client has given up

    return Handler


def _serve(target: int) -> None:
    state = _State(target)
    server = ThreadingHTTPServer((LOOPBACK, 0), _handler(state))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if question != "counts":
            with state.mutex:
                state.losses = [Loss(**loss) for loss in question]
        print(json.dumps(state.counts if question == "counts" else "ok"), flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
