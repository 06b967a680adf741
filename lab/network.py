"""Network of a run: an isolated namespace if possible, a known congestion control, and free ports."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.paths import MissingRequirement

CLONE_NEWNET = 0x4000_0000
CLONE_NEWUSER = 0x1000_0000
TCP_CONGESTION = 13
TCP_LISTEN = "0A"
DISCARD = 9
CONGESTION_CONTROL = "cubic"
OWN_NAMESPACE = "/proc/self/ns/net"
# The machine's namespace, unless this process started in another one. Its parent may end first.
FIRST_NAMESPACE = os.stat(OWN_NAMESPACE).st_ino


def isolate() -> str:
    """Moves this process into a new network namespace that has only loopback, with TCP cubic.

    The machine's default may be bbr, whose pacing costs a proxy CPU. Ports of other programs do not conflict either.
    Without root, a user namespace allows the same. Returns a description of the network.
    """
    if not shutil.which("ip"):
        return "the machine's own (ip of iproute2 is not installed)"
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
        # A kernel without cubic keeps its default; the environment of the result names it.
        subprocess.run(argv, check=False)
    return "a namespace of its own"


def congestion_control(towards: str = "127.0.0.1") -> str:
    """Returns the congestion control of a connection to the address, which the connection uses from its start."""
    with socket.socket() as client:
        client.setblocking(False)
        client.connect_ex((towards, DISCARD))
        name = client.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode()


@contextlib.contextmanager
def packets_dropped(address: str, *, only_sent: bool = False) -> Iterator[None]:
    """Drops every packet to and from an address on receipt, so that the sender gets no reply; if `only_sent`, those
    from it.

    The process must have its own network namespace, because the rules apply to all of it.
    """
    if os.stat(OWN_NAMESPACE).st_ino == FIRST_NAMESPACE:
        raise MissingRequirement("packets are dropped in a network namespace of the lab's own alone, and it has none")
    matches = [f"-s {address}"] if only_sent else [f"-s {address}", f"-d {address}"]
    _change_rules("-I", matches)
    try:
        yield
    finally:
        _change_rules("-D", matches)


def _change_rules(action: str, matches: Sequence[str]) -> None:
    rules = "\n".join(["*filter", *(f"{action} INPUT {match} -j DROP" for match in matches), "COMMIT", ""])
    argv = ["iptables-restore", "--wait", "5", "--noflush"]
    done = subprocess.run(argv, input=rules, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise MissingRequirement(f"packets cannot be dropped: {done.stderr.strip()}")


def free_port() -> int:
    """Returns an unused port, for programs that cannot choose one themselves."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def listens(processes: Sequence[int], port: int) -> bool:
    """Returns true if one of the processes, in any network namespace, listens on the port."""
    held = {inode for pid in processes for inode in _sockets(pid)}
    return any(not held.isdisjoint(_listeners(pid, port)) for pid in processes)


def _sockets(pid: int) -> set[str]:
    """Returns the inodes of a process's sockets; none if it has ended."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


def _listeners(pid: int, port: int) -> set[str]:
    """Returns the inodes of the sockets that listen on this port in the process's namespace."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                local, state, inode = fields[1], fields[3], fields[9]
                if state == TCP_LISTEN and int(local.rpartition(":")[2], 16) == port:
                    found.add(inode)
    return found
