"""HTTP/3 client with aioquic for the interoperability cases, whose names are those of quic-interop-runner.

    python interop_client.py CASE ADDRESS AUTHORITY CONNECTIONS REQUESTS

It opens connections, sends requests on each, and prints `response STATUS LENGTH SHA256` for each response, and `fact
NAME` for what only a client can observe. The exit code is 127 if aioquic cannot do the case.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import AsyncIterator

from aioquic.asyncio import connect
from aioquic.h3.connection import H3_ALPN
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import CipherSuite, SessionTicket
from many_requests import Answer, Http3Client

NAME = "localhost"
UNSUPPORTED = 127
UPLOAD = b"x" * 100_000
SMALL_WINDOW = 32 << 10
IDLE_SECONDS = 120
MIGRATION_AFTER = 64 << 10
# aioquic never marks its datagrams.
CANNOT = {"ecn"}


class Client:
    """One case."""

    def __init__(self, case: str, address: str, authority: str, requests: int) -> None:
        self.case, self.requests = case, requests
        host, _, port = address.rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)
        self.ticket: SessionTicket | None = None
        self.configuration = QuicConfiguration(
            is_client=True, alpn_protocols=H3_ALPN, server_name=NAME, idle_timeout=IDLE_SECONDS
        )
        self.configuration.load_verify_locations(authority)
        if case == "chacha20":
            self.configuration.cipher_suites = [CipherSuite.CHACHA20_POLY1305_SHA256]
        elif case == "transfer":
            self.configuration.max_data = self.configuration.max_stream_data = SMALL_WINDOW
        elif case == "versionnegotiation":
            self.configuration.original_version = QuicProtocolVersion.VERSION_2

    async def run(self, connections: int) -> None:
        """Runs the connections one after another if a later one resumes a session, else all at once."""
        if self.case in ("resumption", "zerortt"):
            for number in range(connections):
                await self._resume(early=number > 0 and self.case == "zerortt")
            return
        await asyncio.gather(*(self._connect_and_ask() for _ in range(connections)))

    async def _resume(self, early: bool) -> None:
        async with self._connected(wait_connected=not early) as client:
            await asyncio.gather(*(self._ask(client) for _ in range(self.requests)))
            if early and client._quic.tls.early_data_accepted:
                print("fact early-data")
            # The ticket comes after the handshake; the response of a later request comes after the ticket.
            await self._ask(client)

    async def _connect_and_ask(self) -> None:
        async with self._connected() as client:
            if self.case == "keyupdate":
                await self._ask(client)
                client.request_key_update()
                print("fact key-update")
            await asyncio.gather(*(self._ask(client) for _ in range(self.requests)))

    @contextlib.asynccontextmanager
    async def _connected(self, wait_connected: bool = True) -> AsyncIterator[Http3Client]:
        configuration = dataclasses.replace(self.configuration, session_ticket=self.ticket)
        connecting = connect(
            self.host,
            self.port,
            configuration=configuration,
            create_protocol=Http3Client,
            session_ticket_handler=self._keep_ticket,
            wait_connected=wait_connected,
        )
        async with connecting as client:
            yield client

    def _keep_ticket(self, ticket: SessionTicket) -> None:
        self.ticket = ticket

    async def _ask(self, client: Http3Client) -> None:
        method, body = ("POST", UPLOAD) if self.case == "http3" else ("GET", b"")
        asking = asyncio.create_task(client.ask(method, NAME, "/", body))
        if self.case == "connectionmigration":
            await self._migrate_during(client)
        answer: Answer = await asking
        print(f"response {answer.status} {answer.bytes} {answer.digest.hexdigest()}")

    async def _migrate_during(self, client: Http3Client) -> None:
        """Migrates once a part of the response has come, with another connection ID (RFC 9000, section 9.5)."""
        while client.received_bytes() < MIGRATION_AFTER:
            await asyncio.sleep(0.001)
        await client.migrate()
        client.change_connection_id()


def main(case: str, address: str, authority: str, connections: str, requests: str) -> None:
    if case in CANNOT:
        sys.exit(UNSUPPORTED)
    asyncio.run(Client(case, address, authority, int(requests)).run(int(connections)))


if __name__ == "__main__":
    main(*sys.argv[1:])
