"""A TCP relay on loopback that stands where a gateway would: it passes on, waits first, turns away, cuts.

What a client meets at a load balancer or an SSH gateway is made here without touching the server behind it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

CHUNK = 64 * 1024


class Relay:
    """Passes connections to `target`, a port of 127.0.0.1, from its own `port`, between `start` and `stop`.

    `delay`: seconds before it goes on to the target with a new connection. `turning_away`: new connections are taken
    and closed at once. Both count for connections made from then on.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        self.turning_away = False
        self.turned_away = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Relay:
        self._spawn(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close alone does not wake the thread that accepts
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(timeout=5)

    def cut(self) -> None:
        """Reset every connection that is open, on both sides."""
        with self._lock:
            each_open = list(self._open)
        for each in each_open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """Pass on again."""
        self.delay, self.turning_away = 0.0, False

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.turning_away:
                self.turned_away += 1
                client.close()
                continue
            self._spawn(self._carry, client)

    def _carry(self, client: socket.socket) -> None:
        if self._ended.wait(self.delay):
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        with self._lock:
            self._open |= {client, server}
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Pass on until either side ends; then neither goes on."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
