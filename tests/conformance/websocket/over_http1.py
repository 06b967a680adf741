"""WebSocket over HTTP/1.1 (RFC 6455, section 4)."""

from __future__ import annotations

import asyncio

from wsproto.utilities import generate_accept_token

from sessions import Address, Refused, Sessions, listening_address

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
LIMIT = 1 << 16


class StreamChannel:
    """The bytes of a connection after its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.write_eof()

    async def receive(self) -> bytes:
        return await self._reader.read(LIMIT)


class Client:
    """Opens each WebSocket on a connection of its own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, path: str, offer: str) -> tuple[StreamChannel, str]:
        reader, writer = await asyncio.open_connection(*self._address)
        self._writers.append(writer)
        extension = f"Sec-WebSocket-Extensions: {offer}\r\n" if offer else ""
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY.decode()}\r\n{extension}\r\n".encode()
        )
        start, fields = await _read_head(reader)
        if b" 101 " not in start or fields.get("sec-websocket-accept") != generate_accept_token(KEY).decode():
            raise Refused(f"{start!r} {fields}")
        return StreamChannel(reader, writer), fields.get("sec-websocket-extensions", "")

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()


async def start_server(sessions: Sessions) -> Address:
    """Returns the address of a server that runs for as long as the loop."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start, fields = await _read_head(reader)
        session = sessions.find(start.split()[1].decode())
        answer = session.accept(fields.get("sec-websocket-extensions", ""))
        extension = f"Sec-WebSocket-Extensions: {answer}\r\n" if answer else ""
        token = generate_accept_token(fields["sec-websocket-key"].encode()).decode()
        writer.write(
            f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Accept: {token}\r\n{extension}\r\n".encode()
        )
        await session.serve(StreamChannel(reader, writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sessions.keep(server)
    return listening_address(server)


async def _read_head(reader: asyncio.StreamReader) -> tuple[bytes, dict[str, str]]:
    head = await reader.readuntil(b"\r\n\r\n")
    start, *lines = head[:-4].split(b"\r\n")
    fields = (line.decode().split(":", 1) for line in lines)
    return start, {name.lower(): value.strip() for name, value in fields}
