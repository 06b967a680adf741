"""ASGI application for third-party servers: reports the protocol, echoes bodies, or sends bytes.

`/bytes/N` is answered with N bytes, a POST with its streamed body, any other request with the HTTP version.
"""

from __future__ import annotations

from typing import Any

CHUNK_BYTES = 64 * 1024


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await _live(receive, send)
    elif scope["type"] == "http":
        await _answer(scope, receive, send)


async def _live(receive: Any, send: Any) -> None:
    """Handles the lifespan protocol."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["method"] == "POST":
        await _send_back(receive, send)
        return
    await _read(receive)
    path = scope["path"]
    if path.startswith("/bytes/"):
        await _send_bytes(int(path.removeprefix("/bytes/")), send)
        return
    await _begin(send)
    await send({"type": "http.response.body", "body": f"HTTP/{scope['http_version']}".encode()})


async def _begin(send: Any, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _read(receive: Any) -> None:
    while (await receive()).get("more_body"):
        pass


async def _send_back(receive: Any, send: Any) -> None:
    await _begin(send)
    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": message.get("body", b""), "more_body": more})


async def _send_bytes(count: int, send: Any) -> None:
    await _begin(send, (b"content-length", str(count).encode()))
    while count > CHUNK_BYTES:
        await send({"type": "http.response.body", "body": b"x" * CHUNK_BYTES, "more_body": True})
        count -= CHUNK_BYTES
    await send({"type": "http.response.body", "body": b"x" * count})
