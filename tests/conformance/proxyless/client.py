"""Client of the tests of Sheave's xDS server, with grpcio, which is gRPC's core in C++.

    python client.py TARGET

Its commands and answers are those of `call` in main.go.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter

import grpc
import grpc.experimental
from google.protobuf.wrappers_pb2 import StringValue

# Longer than any call takes on a busy machine.
PATIENCE_SECONDS = 60
STREAMS = 4

Metadata = tuple[tuple[str, str], ...]


class Client:
    """A channel that balances its calls by xDS, and the calls in its background."""

    def __init__(self, target: str) -> None:
        if os.environ.get("XDS_CREDENTIALS"):
            plaintext = grpc.experimental.insecure_channel_credentials()
            self._channel = grpc.secure_channel(target, grpc.xds_channel_credentials(plaintext))
        else:
            self._channel = grpc.insecure_channel(target)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._streams: list[threading.Thread] = []
        self._streamed: Counter[str] = Counter()

    def run(self, line: str) -> str | None:
        """Runs a command; returns its answer, if it has one."""
        match line.split():
            case ["wait", name]:
                return str(self._wait(name))
            case ["stream", method]:
                self._start(method)
                return None
            case ["stop"]:
                return self._stop()
            case [method, count, *fields]:
                counts: Counter[str] = Counter(failed=0)
                metadata = tuple((key, value) for key, _, value in (field.partition("=") for field in fields))
                for _ in range(int(count)):
                    self._record(method, metadata, counts)
                return _described(counts)
            case _:
                raise ValueError(f"no command: {line}")

    def _wait(self, name: str) -> int:
        """Calls until the server has answered; returns the microseconds that it took."""
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE_SECONDS:
            try:
                if self._invoke("/shop.Cart/Get") == name:
                    return round(1e6 * (time.monotonic() - began))
            except grpc.RpcError as error:
                print("wait", error, file=sys.stderr)
        raise TimeoutError(f"{name} has not answered")

    def _start(self, method: str) -> None:
        self._stopped.clear()
        self._streamed = Counter(failed=0)
        self._streams = [threading.Thread(target=self._stream, args=(method,), daemon=True) for _ in range(STREAMS)]
        for stream in self._streams:
            stream.start()

    def _stream(self, method: str) -> None:
        while not self._stopped.is_set():
            self._record(method, (), self._streamed)

    def _stop(self) -> str:
        self._stopped.set()
        for stream in self._streams:
            stream.join()
        return _described(self._streamed)

    def _record(self, method: str, metadata: Metadata, counts: Counter[str]) -> None:
        try:
            names = [self._invoke(method, metadata)]
        except grpc.RpcError as error:
            print(method, error, file=sys.stderr)
            names = ["failed", f"status-{error.code().value[0]}"]
        with self._lock:
            counts.update(names)

    def _invoke(self, method: str, metadata: Metadata = ()) -> str:
        # The request is an Empty.
        call = self._channel.unary_unary(method, lambda _: b"", StringValue.FromString)
        return call(None, timeout=PATIENCE_SECONDS, metadata=metadata).value


def _described(counts: Counter[str]) -> str:
    return " ".join(f"{name}={count}" for name, count in sorted(counts.items()))


def main() -> None:
    client = Client(sys.argv[1])
    for line in sys.stdin:
        answer = client.run(line)
        if answer is not None:
            print(answer, flush=True)


if __name__ == "__main__":
    main()
