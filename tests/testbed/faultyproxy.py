"""An HTTPS proxy before the bed's API server that answers chosen requests with a fault, and passes the rest on.

It serves with the API server's own certificate, so a client needs nothing but another port in its kubeconfig.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

import yaml

from testbed.pki import write_private

KEPT = ("Authorization", "Accept", "Content-Type", "User-Agent")
REASONS = {403: "Forbidden", 409: "Conflict", 422: "Invalid", 429: "TooManyRequests", 503: "ServiceUnavailable"}
UPSTREAM_SECONDS = 330.0
RESET = 0
NO_LINGER = struct.pack("ii", 1, 0)  # a close that resets the connection, and not one that ends it


@dataclass
class Fault:
    """Requests of `method` whose path (with its query) matches `path` and whose body has `having`: answered `times`.

    `status`: RESET for no answer, and a connection that is reset. `agent`: how the client's User-Agent begins.
    """

    method: str
    path: str
    status: int
    times: int = 1
    having: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    passed_on: bool = False
    """The request reaches the API server all the same: only its answer is lost."""
    agent: str = ""
    done: int = 0

    def meets(self, method: str, path: str, body: bytes, agent: str) -> bool:
        if self.done >= self.times or method != self.method or self.having not in body:
            return False
        return agent.startswith(self.agent) and re.search(self.path, path) is not None


@dataclass(frozen=True)
class Seen:
    """A request that came in `at` so many seconds (time.monotonic), and the fault that it was answered with, if any."""

    at: float
    method: str
    path: str
    agent: str
    fault: Fault | None


class FaultyProxy:
    """One proxy before the API server at 127.0.0.1:`target`, with the certificates in `pki`."""

    def __init__(self, target: int, pki: Path) -> None:
        self.target = target
        self.authority = pki / "ca.crt"
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self._streams: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "server.crt", pki / "server.key")
        # The handshake is each connection's own thread's: one client that hangs must not hold up the others.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    def kubeconfig(self, original: Path, path: Path) -> Path:
        """Write `original` with the proxy in the API server's place to `path`."""
        document = yaml.safe_load(original.read_text())
        for each in document["clusters"]:
            each["cluster"]["server"] = self.url
        write_private(path, yaml.safe_dump(document))
        return path

    def fail(self, fault: Fault) -> Fault:
        """From now on answer so; later faults come first."""
        with self._lock:
            self.faults.insert(0, fault)
        return fault

    def heal(self) -> None:
        with self._lock:
            self.faults.clear()

    def cut(self) -> None:
        """Break off every answer that is on its way, watches above all; who watches has to ask again."""
        with self._lock:
            for each in self._streams:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(each, socket.SHUT_RDWR)  # beneath TLS, whose state is another thread's

    def fault_for(self, method: str, path: str, body: bytes, agent: str) -> Fault | None:
        with self._lock:
            found = next((each for each in self.faults if each.meets(method, path, body, agent)), None)
            if found is not None:
                found.done += 1
            self.seen.append(Seen(time.monotonic(), method, path, agent, found))
            return found

    @contextlib.contextmanager
    def streaming(self, connection: socket.socket) -> Iterator[None]:
        """An answer is on its way over `connection`."""
        with self._lock:
            self._streams.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._streams.discard(connection)


def _handler(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                super().handle()

        def finish(self) -> None:
            with contextlib.suppress(OSError):
                super().finish()

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.fault_for(self.command, self.path, body, self.headers.get("User-Agent") or "")
            if fault is None:
                with proxy.streaming(self.connection):
                    self._forward(body)
                return
            if fault.passed_on:
                self._ask(body)
            if fault.status == RESET:
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                self.connection.close()
                return
            reason = REASONS.get(fault.status, "InternalError")
            message = f"the test's proxy answers {fault.status}"
            answer = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": fault.status}
            self._answer(fault.status, {**fault.headers}, json.dumps(answer | {"reason": reason, "message": message}))

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass

        def _answer(self, status: int, headers: Mapping[str, str], text: str) -> None:
            data = text.encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _upstream(self, body: bytes) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
            context = ssl.create_default_context(cafile=proxy.authority)
            server = http.client.HTTPSConnection("127.0.0.1", proxy.target, timeout=UPSTREAM_SECONDS, context=context)
            headers = {name: value for name in KEPT if (value := self.headers.get(name))}
            server.request(self.command, self.path, body or None, headers)
            return server, server.getresponse()

        def _ask(self, body: bytes) -> None:
            server, answer = self._upstream(body)
            answer.read()
            server.close()

        def _forward(self, body: bytes) -> None:
            """Stream the answer through; without the API server the connection closes, as it would without us."""
            self.close_connection = True
            server, answer = self._upstream(body)
            with contextlib.closing(server), answer:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers.get("Content-Type") or "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                while data := answer.read1(64 * 1024):
                    self.wfile.write(data)
                    self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            return None

    return Handler
