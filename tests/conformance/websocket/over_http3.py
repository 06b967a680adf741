"""WebSocket over HTTP/3 (RFC 9220)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aioquic.asyncio import QuicConnectionProtocol, connect, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset

from sessions import Address, Sessions
from streams import Fields, Incoming, request, response


class H3Protocol(QuicConnectionProtocol):
    """One connection, of a client or a server."""

    sessions: Sessions | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.frames = H3Connection(self._quic)
        self.incoming: dict[int, Incoming] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamReset) and event.stream_id in self.incoming:
            self.incoming[event.stream_id].fail(f"reset, {event.error_code:#x}")
        if isinstance(event, ConnectionTerminated):
            for incoming in self.incoming.values():
                incoming.fail(f"the connection has ended: {event.reason_phrase}")
        for arrived in self.frames.handle_event(event):
            self._handle(arrived)
        self.transmit()

    def _handle(self, event: H3Event) -> None:
        match event:
            case HeadersReceived():
                fields = {name.decode(): value.decode() for name, value in event.headers}
                if ":status" in fields:
                    self.incoming[event.stream_id].put_head(fields)
                elif ":path" in fields:
                    self._begin(event.stream_id, fields)
            case DataReceived():
                self.incoming[event.stream_id].put(event.data)
        if isinstance(event, HeadersReceived | DataReceived) and event.stream_ended:
            self.incoming[event.stream_id].end()

    def _begin(self, stream: int, fields: dict[str, str]) -> None:
        assert self.sessions
        self.incoming[stream] = Incoming()
        session = self.sessions.find(fields[":path"])
        self.send_head(stream, response(session.accept(fields.get("sec-websocket-extensions", ""))))
        task = asyncio.create_task(session.serve(StreamChannel(self, stream)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def send_head(self, stream: int, fields: Fields) -> None:
        self.frames.send_headers(stream, [(name.encode(), value.encode()) for name, value in fields])
        self.transmit()

    async def open(self, path: str, offer: str) -> tuple[StreamChannel, str]:
        """Opens a WebSocket as a client."""
        stream = self._quic.get_next_available_stream_id()
        self.incoming[stream] = Incoming()
        self.send_head(stream, request(path, offer, "https"))
        answer = await self.incoming[stream].answer()
        return StreamChannel(self, stream), answer


class StreamChannel:
    """The bytes of one stream. aioquic keeps what does not fit into a window, however much that is."""

    def __init__(self, protocol: H3Protocol, stream: int) -> None:
        self._protocol = protocol
        self._stream = stream

    async def send(self, data: bytes) -> None:
        self._send(data, ends=False)

    async def end(self) -> None:
        self._send(b"", ends=True)

    def _send(self, data: bytes, ends: bool) -> None:
        try:
            self._protocol.frames.send_data(self._stream, data, ends)
        except Exception as error:
            raise ConnectionError(f"cannot send: {error}") from error
        self._protocol.transmit()

    async def receive(self) -> bytes:
        return await self._protocol.incoming[self._stream].receive()


class Client:
    """Opens all WebSockets on one connection."""

    def __init__(self, address: Address, authority: Path) -> None:
        self._address = address
        self._configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost")
        self._configuration.load_verify_locations(str(authority))
        self._stack = AsyncExitStack()
        self._protocol: H3Protocol | None = None

    async def open(self, path: str, offer: str) -> tuple[StreamChannel, str]:
        if not self._protocol:
            connection = connect(*self._address, configuration=self._configuration, create_protocol=H3Protocol)
            protocol = await self._stack.enter_async_context(connection)
            assert isinstance(protocol, H3Protocol)
            self._protocol = protocol
        return await self._protocol.open(path, offer)

    async def close(self) -> None:
        await self._stack.aclose()


async def start_server(sessions: Sessions, chain: Path, key: Path) -> Address:
    """Returns the address of a server that runs for as long as the loop."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(str(chain), str(key))

    def create(*arguments: Any, **named: Any) -> H3Protocol:
        protocol = H3Protocol(*arguments, **named)
        protocol.sessions = sessions
        return protocol

    server = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=create)
    sessions.keep(server)
    host, port = server._transport.get_extra_info("sockname")
    return host, port
