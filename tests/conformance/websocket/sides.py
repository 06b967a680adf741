"""The two sides of a WebSocket: one runs a case, the other answers as wsproto does. Both record what they see."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Protocol

from wsproto import frame_protocol
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, Pong
from wsproto.extensions import PerMessageDeflate
from wsproto.handshake import client_extensions_handshake, server_extensions_handshake
from wsproto.utilities import RemoteProtocolError

from frames import MASK, Case

# A client masks each frame at random. Here every mask is the same, so that the bytes of two sessions can be compared.
frame_protocol.os = SimpleNamespace(urandom=lambda count: MASK[:count])


class Channel(Protocol):
    """The bytes of one WebSocket, over any version of HTTP."""

    async def send(self, data: bytes) -> None: ...

    async def end(self) -> None:
        """Ends this direction."""

    async def receive(self) -> bytes:
        """Returns the next bytes; none at the end of the other direction."""


@dataclass
class Record:
    """What one side has seen, without regard to the pieces in which bytes arrived."""

    extension: str
    events: list[str] = field(default_factory=list)
    received: int = 0
    digest: str = ""
    end: str = ""


class Recorder:
    """Reads from a channel until it ends."""

    def __init__(self, channel: Channel, extension: str) -> None:
        self.record = Record(extension)
        self._channel = channel
        self._digest = hashlib.sha256()

    async def read(self) -> bytes:
        if self.record.end:
            return b""
        try:
            data = await self._channel.receive()
        except ConnectionError as error:
            self.record.end = f"broken: {error}"
            return b""
        self.record.received += len(data)
        self._digest.update(data)
        if not data:
            self.record.end = "ended"
        return data

    async def read_to_end(self) -> Record:
        while await self.read():
            pass
        self.record.digest = self._digest.hexdigest()
        return self.record


def offered(offer: str) -> list[PerMessageDeflate]:
    """Returns the extensions that a client has offered by this field."""
    return [PerMessageDeflate()] if offer.startswith(PerMessageDeflate.name) else []


def accept(offer: str) -> tuple[str, list[PerMessageDeflate]]:
    """Returns a server's answer to an offer, and the extensions in use."""
    extensions = [PerMessageDeflate()]
    answer = server_extensions_handshake(offer.split(",") if offer else [], extensions)
    return (answer.decode(), extensions) if answer else ("", [])


def agreed(answer: str, offer: str) -> Sequence[PerMessageDeflate]:
    """Returns the extensions that a server has accepted."""
    return client_extensions_handshake([answer], offered(offer)) if answer else []


async def run_case(
    case: Case, channel: Channel, kind: ConnectionType, extensions: Sequence[PerMessageDeflate], extension: str
) -> Record:
    """Writes the bytes of a case and ends, while it reads to the end."""
    connection = Connection(kind, list(extensions))

    async def write() -> None:
        for data in case.writes(connection, kind is ConnectionType.CLIENT):
            await channel.send(data)
        await channel.end()

    writing = asyncio.create_task(write())
    record = await Recorder(channel, extension).read_to_end()
    try:
        await writing
    except ConnectionError as error:
        record.end += f", {error}"
    return record


async def answer(
    channel: Channel, kind: ConnectionType, extensions: Sequence[PerMessageDeflate], extension: str
) -> Record:
    """Sends messages back, answers pings and the end, and closes for what wsproto rejects. Then it reads to the end, so
    that nothing is lost that the other side has yet to read.
    """
    connection = Connection(kind, list(extensions))
    recorder = Recorder(channel, extension)
    message: list[Message] = []
    while not _is_closed(connection) and (data := await recorder.read()):
        try:
            connection.receive_data(data)
            for event in connection.events():
                for reply in _replies(event, message, recorder.record):
                    await channel.send(connection.send(reply))
        except RemoteProtocolError as error:
            recorder.record.events.append(f"rejected: {error}")
            hint = error.event_hint if isinstance(error.event_hint, CloseConnection) else CloseConnection(1002)
            await channel.send(connection.send(CloseConnection(hint.code)))
            break
    await channel.end()
    return await recorder.read_to_end()


def _is_closed(connection: Connection) -> bool:
    return connection.state.name in ("CLOSED", "LOCAL_CLOSING")


def _replies(event: Event, message: list[Message], record: Record) -> list[Event]:
    match event:
        case Message():
            message.append(event)
            if not event.message_finished:
                return []
            whole = type(event)(type(event.data)().join(part.data for part in message))
            message.clear()
            content = whole.data if isinstance(whole, BytesMessage) else whole.data.encode()
            record.events.append(f"{type(whole).__name__} {len(content)} {hashlib.sha256(content).hexdigest()[:16]}")
            return [whole]
        case Ping():
            record.events.append(f"ping {event.payload.hex()}")
            return [event.response()]
        case Pong():
            record.events.append(f"pong {event.payload.hex()}")
        case CloseConnection():
            # Without the reason: that of a rejected message depends on the pieces in which it arrived.
            record.events.append(f"close {event.code}")
            return [CloseConnection(event.code)]
    return []
