"""Commands that clients run in a container: `exec-stream` speaks the client's protocol, over a socket pair.

The library that speaks SPDY and WebSocket is Go's. Its program serves one command and knows nothing of TLS, which ends
here.
"""

from __future__ import annotations

import select
import socket
import ssl
import subprocess
from collections.abc import Sequence

from tests.cluster.kubelet.process import Process
from tests.cluster.programs import EXEC_STREAM

CHUNK = 1 << 16
# Time for `exec-stream` to kill the command of a client that disconnected.
END_SECONDS = 10.0


class NotRunning(Exception):
    """The container does not run, so no command can."""


def serve(connection: ssl.SSLSocket, head: bytes, process: Process, command: Sequence[str]) -> None:
    """Runs a command for the client that sent this request, until either has ended."""
    inside = process.command(command)
    if inside is None:
        raise NotRunning
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            running = subprocess.Popen(
                [str(EXEC_STREAM.path), *inside.argv], env=inside.environment, stdin=theirs, stdout=subprocess.DEVNULL
            )
        ours.sendall(head)
        connection.setblocking(False)
        ours.setblocking(False)
        _relay(connection, ours)
    try:
        running.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def _relay(connection: ssl.SSLSocket, other: socket.socket) -> None:
    """Copies bytes in both directions until one side ends."""
    directions = _Direction(connection, other), _Direction(other, connection)
    while True:
        try:
            moved = [direction.advance() for direction in directions]
        except OSError:
            return
        if not all(direction.open for direction in directions):
            return
        if not any(moved):
            reading = [direction.source for direction in directions if not direction.buffer]
            writing = [direction.target for direction in directions if direction.buffer]
            select.select(reading, writing, [])


class _Direction:
    """Bytes on their way from one socket to the other, a chunk at a time."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.buffer = b""
        self.open = True

    def advance(self) -> bool:
        """Moves what can be moved now; returns true if anything was."""
        try:
            if not self.buffer:
                self.buffer = self.source.recv(CHUNK)
                self.open = bool(self.buffer)
                return self.open
            sent = self.target.send(self.buffer)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        self.buffer = self.buffer[sent:]
        return sent > 0
