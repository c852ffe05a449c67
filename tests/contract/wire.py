"""A TCP proxy between a client and a server that loses what it is told to lose: the network between the two."""

from __future__ import annotations

import asyncio
import contextlib


class Wire:
    """Listens on a loopback port of its own and forwards to `port`. What is at both ends is the real thing.

    `deaf_after`: once a client has sent so many more bytes, it hears nothing any more on that connection.
    `mute_after`: once it has, nothing that it sends beyond them arrives.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self.port = 0
        self.deaf_after: int | None = None
        self.mute_after: int | None = None
        self.lost_bytes = 0

    async def open(self) -> None:
        """Take connections; after a `close`, on the same port again."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse connections, and cut those that are open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    def cut(self) -> None:
        """End every open connection at once. The next ones lose nothing."""
        self.deaf_after = self.mute_after = None
        for line in self._lines:
            line.end()

    async def _carry(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            server, forth = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            back.transport.abort()
            return
        line = _Line(self, back, forth)
        self._lines.add(line)
        with contextlib.suppress(OSError):
            await asyncio.gather(line.carry_forth(client), line.carry_back(server))
        self._lines.discard(line)
        line.end()


class _Line:
    """One connection through the wire."""

    def __init__(self, wire: Wire, back: asyncio.StreamWriter, forth: asyncio.StreamWriter) -> None:
        self._wire = wire
        self._back = back
        self._forth = forth
        self._sent = 0

    def end(self) -> None:
        self._back.transport.abort()
        self._forth.close()  # what it still holds goes out

    async def carry_forth(self, client: asyncio.StreamReader) -> None:
        while data := await client.read(65536):
            limit = self._wire.mute_after
            before = self._sent
            counts = limit is not None or self._wire.deaf_after is not None
            self._sent = before + len(data) if counts else 0
            if limit is not None and self._sent > limit:
                data = data[: max(0, limit - before)]
            self._forth.write(data)
            await self._forth.drain()
        self._forth.write_eof()

    async def carry_back(self, server: asyncio.StreamReader) -> None:
        while data := await server.read(65536):
            if self._deaf:
                self._wire.lost_bytes += len(data)
            else:
                self._back.write(data)
                await self._back.drain()
        if not self._deaf:
            self._back.write_eof()

    @property
    def _deaf(self) -> bool:
        return self._wire.deaf_after is not None and self._sent > self._wire.deaf_after
