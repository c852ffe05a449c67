"""/healthz: fails when the engine's event loop stands still, so that Kubernetes restarts the process.

Served from a thread of its own, since a loop that stands still cannot answer. Slurm's or the login's health is no part
of it: a restart cures neither.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STILL_SECONDS = 30.0


class HealthServer:
    """`ticked` gives the monotonic time of the loop's last beat, `counts` numbers to show beside it.

    Raises OSError where the address cannot be bound.
    """

    def __init__(self, address: str, ticked: Callable[[], float], counts: Callable[[], Mapping[str, object]]) -> None:
        host, _, port = address.rpartition(":")
        self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler(ticked, counts))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(ticked: Callable[[], float], counts: Callable[[], Mapping[str, object]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/healthz":
                self.send_error(404)
                return
            age = time.monotonic() - ticked()
            alive = age < STILL_SECONDS
            body = json.dumps({"alive": alive, "loop_age_seconds": round(age, 1), **counts()}).encode()
            self.send_response(200 if alive else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return None

    return Handler
