"""What WebSockets over HTTP/2 and HTTP/3 have in common: a stream that an extended CONNECT opens."""

from __future__ import annotations

import asyncio

from sessions import Refused

Fields = list[tuple[str, str]]


def request(path: str, offer: str, scheme: str) -> Fields:
    """Returns the fields of an extended CONNECT (RFC 8441, section 4)."""
    fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", scheme),
        (":authority", "localhost"),
        (":path", path),
        ("sec-websocket-version", "13"),
    ]
    return [*fields, ("sec-websocket-extensions", offer)] if offer else fields


def response(answer: str) -> Fields:
    fields = [(":status", "200")]
    return [*fields, ("sec-websocket-extensions", answer)] if answer else fields


class Incoming:
    """What has arrived on one stream."""

    def __init__(self) -> None:
        self._head: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._data: asyncio.Queue[bytes | ConnectionError] = asyncio.Queue()

    def put_head(self, fields: dict[str, str]) -> None:
        self._head.set_result(fields)

    def put(self, data: bytes) -> None:
        if data:
            self._data.put_nowait(data)

    def end(self) -> None:
        self._data.put_nowait(b"")

    def fail(self, why: str) -> None:
        if not self._head.done():
            self._head.set_exception(Refused(why))
            # A server's stream has no head that anything awaits.
            self._head.exception()
        self._data.put_nowait(ConnectionError(why))

    async def answer(self) -> str:
        """Returns the extensions that the server has accepted."""
        fields = await self._head
        if fields[":status"] != "200":
            raise Refused(str(fields))
        return fields.get("sec-websocket-extensions", "")

    async def receive(self) -> bytes:
        data = await self._data.get()
        if isinstance(data, ConnectionError):
            raise data
        return data
