"""backend.py ADDRESS PORT: answers every request with 200, on persistent connections."""

import asyncio
import sys

RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Connection(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.head = transport, b""

    def data_received(self, data):
        *heads, self.head = (self.head + data).split(b"\r\n\r\n")
        self.transport.write(RESPONSE * len(heads))


async def main():
    server = await asyncio.get_running_loop().create_server(Connection, sys.argv[1], int(sys.argv[2]))
    await server.serve_forever()


asyncio.run(main())
