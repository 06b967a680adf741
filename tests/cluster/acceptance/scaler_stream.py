"""Client of Sheave's external scaler: the stream on which KEDA is told that a Service is active."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, StreamEnded, StreamReset

PORT = 9901
METHOD = "/externalscaler.ExternalScaler/StreamIsActive"
CONNECT_SECONDS = 10.0
RECEIVED_BYTES = 1 << 16


class ActivityStream:
    """Messages about one Service from the replica at an address, each with the time at which it arrived (monotonic)."""

    def __init__(self, address: str, namespace: str, service: str) -> None:
        self.messages: list[tuple[float, bool]] = []
        self._socket = socket.create_connection((address, PORT), CONNECT_SECONDS)
        self._socket.settimeout(None)
        self._frames = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._frames.initiate_connection()
        head = {
            ":method": "POST",
            ":scheme": "http",
            ":authority": f"{address}:{PORT}",
            ":path": METHOD,
            "content-type": "application/grpc",
            "te": "trailers",
        }
        stream = self._frames.get_next_available_stream_id()
        self._frames.send_headers(stream, list(head.items()))
        trigger = scaled_object(namespace, service)
        self._frames.send_data(stream, struct.pack(">BI", 0, len(trigger)) + trigger, end_stream=True)
        self._socket.sendall(self._frames.data_to_send())
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def is_active(self) -> bool | None:
        """Returns the last message; None: there is none yet."""
        return self.messages[-1][1] if self.messages else None

    def active_since(self, begin: float) -> float | None:
        """Returns the time of the first message since `begin` that says that the Service is active."""
        return next((at for at, active in list(self.messages) if active and at >= begin), None)

    def _read(self) -> None:
        received = b""
        while data := self._receive():
            at = time.monotonic()
            for event in self._frames.receive_data(data):
                match event:
                    case DataReceived():
                        self._frames.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                        received += event.data
                    case StreamEnded() | StreamReset() | ConnectionTerminated():
                        return
            answer = self._frames.data_to_send()
            if answer:
                self._socket.sendall(answer)
            while len(received) >= 5 and len(received) >= 5 + (length := int.from_bytes(received[1:5])):
                # `bool result = 1`, which is left out if it is false.
                self.messages.append((at, received[5 : 5 + length] == b"\x08\x01"))
                received = received[5 + length :]

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(RECEIVED_BYTES)
        except OSError:
            return b""


def scaled_object(namespace: str, service: str) -> bytes:
    """Returns the message `ScaledObjectRef` of externalscaler.proto."""
    entry = b"".join(fields({1: "service", 2: service}))
    return b"".join([*fields({1: service, 2: namespace}), field(3, entry)])


def fields(values: dict[int, str]) -> Iterator[bytes]:
    return (field(number, value.encode()) for number, value in values.items())


def field(number: int, value: bytes) -> bytes:
    """Returns a field of bytes that are fewer than 128."""
    return bytes([number << 3 | 2, len(value)]) + value
