"""A small web server in threads of its own, for what must answer even while the engine's loop stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page says."""

    body: bytes
    content_type: str
    status: int = 200


Page = Callable[[Mapping[str, str]], Answer]
"""Makes the answer to a GET with these headers, in a thread of the server's."""


class Listener:
    """Serves `pages`, by their paths, at `address` (host:port). Raises OSError where it cannot be bound."""

    def __init__(self, name: str, address: str, pages: Mapping[str, Page]) -> None:
        host, _, port = address.rpartition(":")
        self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler(pages))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds for a client to send its request

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            if page is None:
                self.send_error(404)
                return
            answer = page(dict(self.headers))
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            return None

    return Handler
