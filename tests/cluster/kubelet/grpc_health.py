"""gRPC health probe: one call of `grpc.health.v1.Health/Check` over HTTP/2 in plaintext."""

from __future__ import annotations

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
SERVING = 1
STREAM = 1
STATUS_FIELD = 0x08


def serves(host: str, port: int, service: str, timeout: float) -> str | None:
    """Returns the failure in a few words, or None if the service is healthy."""
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(PREFACE + _frame(SETTINGS, 0, 0, b"") + _request(f"{host}:{port}", service))
        message = _answer(connection)
    if message is None:
        return "the server ended the call without an answer"
    status = _status(message)
    return None if status == SERVING else f"service is in status {status}"


def _request(authority: str, service: str) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Check",
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
        "user-agent": "kube-probe/1.36",
    }
    # Literal fields without indexing or Huffman coding (RFC 7541 §6.2.2).
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    field = b"\x0a" + _text(service) if service else b""
    message = b"\0" + struct.pack(">I", len(field)) + field
    return _frame(HEADERS, END_HEADERS, STREAM, block) + _frame(DATA, END_STREAM, STREAM, message)


def _answer(connection: socket.socket) -> bytes | None:
    """Returns the body of the answer without its gRPC prefix; None if the stream ends without one."""
    body = b""
    while True:
        length, kind, flags, stream = _head(_exactly(connection, 9))
        payload = _exactly(connection, length)
        if kind == SETTINGS and not flags & ACK:
            connection.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            connection.sendall(_frame(PING, ACK, 0, payload))
        elif kind == DATA:
            body += payload
            if len(body) >= 5 and len(body) >= 5 + int.from_bytes(body[1:5]):
                return body[5:]
        if kind in (GOAWAY, RST_STREAM) or (stream == STREAM and flags & END_STREAM and kind in (DATA, HEADERS)):
            return None


def _status(message: bytes) -> int:
    """Returns the only field of a HealthCheckResponse, which is omitted if it is zero."""
    return message[1] if message[:1] == bytes([STATUS_FIELD]) else 0


def _text(text: str) -> bytes:
    raw = text.encode()
    # An integer with a prefix of 7 bits (RFC 7541 §5.1).
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    rest, length = len(raw) - 127, bytearray([127])
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([*length, rest]) + raw


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _head(head: bytes) -> tuple[int, int, int, int]:
    return int.from_bytes(head[:3]), head[3], head[4], int.from_bytes(head[5:]) & 0x7FFF_FFFF


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise ConnectionError("the server closed the connection")
        received += chunk
    return received
