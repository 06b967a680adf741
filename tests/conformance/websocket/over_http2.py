"""WebSocket over HTTP/2 (RFC 8441), in cleartext."""

from __future__ import annotations

import asyncio

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.settings import SettingCodes

from sessions import Address, Sessions, listening_address
from streams import Incoming, request, response

WINDOW = 1 << 20


class H2Protocol(asyncio.Protocol):
    """One connection, of a client or a server."""

    def __init__(self, sessions: Sessions | None) -> None:
        self._sessions = sessions
        self.frames = H2Connection(H2Configuration(client_side=sessions is None, header_encoding="utf-8"))
        self.incoming: dict[int, Incoming] = {}
        self.can_connect = asyncio.get_running_loop().create_future()
        self.has_room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.frames.initiate_connection()
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: WINDOW}
        if self._sessions:
            settings[SettingCodes.ENABLE_CONNECT_PROTOCOL] = 1
        self.frames.update_settings(settings)
        self.frames.increment_flow_control_window(WINDOW)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for incoming in self.incoming.values():
            incoming.fail("the connection has ended")
        self.has_room.set()

    def flush(self) -> None:
        self._transport.write(self.frames.data_to_send())

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        for event in self.frames.receive_data(data):
            match event:
                case RemoteSettingsChanged():
                    self.has_room.set()
                    if SettingCodes.ENABLE_CONNECT_PROTOCOL in event.changed_settings and not self.can_connect.done():
                        self.can_connect.set_result(None)
                case WindowUpdated():
                    self.has_room.set()
                case RequestReceived():
                    self._begin(event.stream_id, dict(event.headers))
                case ResponseReceived():
                    self.incoming[event.stream_id].put_head(dict(event.headers))
                case DataReceived():
                    self.frames.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    self.incoming[event.stream_id].put(event.data)
                case StreamEnded():
                    self.incoming[event.stream_id].end()
                case StreamReset():
                    self.incoming[event.stream_id].fail(f"reset, {event.error_code!r}")
                    self.has_room.set()
                case ConnectionTerminated():
                    self.connection_lost(None)
        self.flush()

    def _begin(self, stream: int, fields: dict[str, str]) -> None:
        assert self._sessions
        self.incoming[stream] = Incoming()
        session = self._sessions.find(fields[":path"])
        self.frames.send_headers(stream, response(session.accept(fields.get("sec-websocket-extensions", ""))))
        task = asyncio.create_task(session.serve(StreamChannel(self, stream)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class StreamChannel:
    """The bytes of one stream."""

    def __init__(self, protocol: H2Protocol, stream: int) -> None:
        self._protocol = protocol
        self._stream = stream

    async def send(self, data: bytes) -> None:
        frames = self._protocol.frames
        while data:
            try:
                room = min(frames.local_flow_control_window(self._stream), frames.max_outbound_frame_size)
                frames.send_data(self._stream, data[:room]) if room else None
            except Exception as error:
                raise ConnectionError(f"cannot send: {error}") from error
            data = data[room:]
            self._protocol.flush()
            if data and not room:
                self._protocol.has_room.clear()
                await self._protocol.has_room.wait()

    async def end(self) -> None:
        self._protocol.frames.end_stream(self._stream)
        self._protocol.flush()

    async def receive(self) -> bytes:
        return await self._protocol.incoming[self._stream].receive()


class Client:
    """Opens all WebSockets on one connection."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._protocol: H2Protocol | None = None

    async def open(self, path: str, offer: str) -> tuple[StreamChannel, str]:
        if not self._protocol:
            loop = asyncio.get_running_loop()
            _, self._protocol = await loop.create_connection(lambda: H2Protocol(None), *self._address)
            await self._protocol.can_connect
        protocol = self._protocol
        stream = protocol.frames.get_next_available_stream_id()
        protocol.incoming[stream] = Incoming()
        protocol.frames.send_headers(stream, request(path, offer, "http"))
        protocol.flush()
        answer = await protocol.incoming[stream].answer()
        return StreamChannel(protocol, stream), answer

    async def close(self) -> None:
        if self._protocol:
            self._protocol.close()


async def start_server(sessions: Sessions) -> Address:
    """Returns the address of a server that runs for as long as the loop."""
    server = await asyncio.get_running_loop().create_server(lambda: H2Protocol(sessions), "127.0.0.1", 0)
    sessions.keep(server)
    return listening_address(server)
