"""`python -m testbed.node_relay ADDRESS PORT...`: takes connections there to the same ports of loopback.

The API server and sshd listen on loopback alone; this lets the bed's node, whose network is another, reach them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()


async def _relay(address: str, port: int) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    server = await asyncio.start_server(carry, address, port)
    await server.serve_forever()


async def main(address: str, ports: list[int]) -> None:
    await asyncio.gather(*(_relay(address, port) for port in ports))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], [int(port) for port in sys.argv[2:]]))
