"""A network of the run's own where the machine allows it, with a known congestion control, and free ports."""

from __future__ import annotations

import ctypes
import os
import shutil
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
    if not shutil.which("ip"):
        return "the machine's own (ip of iproute2 is not there)"
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNET if uid == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags) != 0:
        return f"the machine's own ({os.strerror(ctypes.get_errno())})"
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for local in ("127.0.0.1", "127.0.0.0/8"):
        route = f"local {local} dev lo table local proto kernel scope host src 127.0.0.1"
        argv = ["ip", "route", "replace", *route.split(), "congctl", CONGESTION_CONTROL]
        # A kernel without it keeps its default; the environment of the result names what is used.
        subprocess.run(argv, check=False)
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
