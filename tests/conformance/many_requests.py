"""HTTP/3 client with aioquic: many concurrent requests, large bodies both ways, and a migrating connection.

    python many_requests.py HOST PORT AUTHORITY

It prints OK if every answer was correct, else the failure. The server echoes each request's body.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset

AT_ONCE = 200
LARGE_BYTES = 4 << 20
MOVES = 20
MOVED_BYTES = 50_000
SECONDS = 60


class CheckFailed(Exception):
    """An answer is not as expected."""


class Answer:
    """One answer in progress."""

    def __init__(self) -> None:
        self.status = 0
        self.digest = hashlib.sha256()
        self.bytes = 0
        self.done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def take(self, event: H3Event) -> None:
        if isinstance(event, HeadersReceived) and not self.status:
            self.status = int(dict(event.headers)[b":status"])
        elif isinstance(event, DataReceived):
            self.digest.update(event.data)
            self.bytes += len(event.data)
        if event.stream_ended and not self.done.done():
            self.done.set_result(self)


class Http3Client(QuicConnectionProtocol):
    """One connection."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self._http = H3Connection(self._quic)
        self._answers: dict[int, Answer] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            self._fail(self._answers, f"the connection ended: {event.error_code:#x} {event.reason_phrase}")
        elif isinstance(event, StreamReset):
            self._fail([event.stream_id], f"a stream was reset: {event.error_code:#x}")
        for received in self._http.handle_event(event):
            if isinstance(received, (HeadersReceived, DataReceived)) and received.stream_id in self._answers:
                self._answers[received.stream_id].take(received)

    def _fail(self, streams, reason: str) -> None:
        for stream in streams:
            answer = self._answers.get(stream)
            if answer and not answer.done.done():
                answer.done.set_exception(CheckFailed(reason))

    async def ask(self, method: str, authority: str, path: str, body: bytes = b"") -> Answer:
        stream = self._quic.get_next_available_stream_id()
        answer = self._answers[stream] = Answer()
        head = [(b":method", method.encode()), (b":scheme", b"https"), (b":authority", authority.encode())]
        head += [(b":path", path.encode())]
        head += [(b"content-length", str(len(body)).encode())] if body else []
        self._http.send_headers(stream, head, end_stream=not body)
        if body:
            self._http.send_data(stream, body, end_stream=True)
        self.transmit()
        async with asyncio.timeout(SECONDS):
            await answer.done
        if answer.status != 200:
            raise CheckFailed(f"{method} {path}: status {answer.status}")
        return answer

    def received_bytes(self) -> int:
        """Returns the bytes of all bodies so far."""
        return sum(answer.bytes for answer in self._answers.values())

    async def migrate(self) -> None:
        """Migrates the connection to another port."""
        self._transport.close()
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, local_addr=("::", 0))


def check(answer: Answer, body: bytes) -> None:
    if answer.digest.digest() != hashlib.sha256(body).digest():
        raise CheckFailed(f"{answer.bytes} bytes came back of {len(body)}, or others")


async def many_at_once(client: Http3Client, authority: str) -> None:
    bodies = [f"the body of request {number}".encode() for number in range(AT_ONCE)]
    answers = await asyncio.gather(*(client.ask("POST", authority, "/", body) for body in bodies))
    for body, answer in zip(bodies, answers, strict=True):
        check(answer, body)


async def large_both_ways(client: Http3Client, authority: str) -> None:
    body = random.Random(1).randbytes(LARGE_BYTES)
    check(await client.ask("POST", authority, "/large", body), body)


async def during_migration(client: Http3Client, authority: str) -> None:
    body = random.Random(2).randbytes(MOVED_BYTES)
    for number in range(MOVES):
        asking = asyncio.create_task(client.ask("POST", authority, f"/move/{number}", body))
        # Let the client send its first datagrams from the old port.
        await asyncio.sleep(0)
        await client.migrate()
        check(await asking, body)


async def with_other_keys(client: Http3Client, authority: str) -> None:
    client.request_key_update()
    body = b"after a key update"
    check(await client.ask("POST", authority, "/keys", body), body)


async def main(host: str, port: int, authority_file: str) -> None:
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost")
    configuration.load_verify_locations(authority_file)
    authority = f"localhost:{port}"
    async with connect(host, port, configuration=configuration, create_protocol=Http3Client) as client:
        for part in (many_at_once, large_both_ways, with_other_keys, during_migration):
            try:
                await part(client, authority)
            except (CheckFailed, TimeoutError) as error:
                sys.exit(f"{part.__name__}: {type(error).__name__} {error}")
    print("OK")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
