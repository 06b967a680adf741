"""A network of the run's own where the machine allows it, with a known congestion control, and free ports."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from pathlib import Path

CLONE_NEWNET = 0x4000_0000
CLONE_NEWUSER = 0x1000_0000
TCP_CONGESTION = 13
CONGESTION_CONTROL = "cubic"


def isolate() -> str:
    """Moves this process into a fresh network namespace with only loopback, on which TCP uses cubic.

    The default of a machine may be bbr, whose pacing costs a proxy CPU. Ports of other programs are out of the way
    too. Without root a user namespace allows the same. Returns in words what was done.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNET if uid == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags) != 0:
        return f"the machine's own ({os.strerror(ctypes.get_errno())})"
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    _ip("link set lo up")
    for local in ("127.0.0.1", "127.0.0.0/8"):
        _ip(
            f"route replace local {local} dev lo table local proto kernel scope host src 127.0.0.1"
            f" congctl {CONGESTION_CONTROL}"
        )
    return "a namespace of its own"


def congestion_control() -> str:
    """What a connection over loopback really uses."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        name = client.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode()


def free_port() -> int:
    """A port that nobody listens on, for programs that cannot choose one themselves."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def accepts(address: str) -> bool:
    """Whether somebody listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)
