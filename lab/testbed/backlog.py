"""Accept queues of a pod's listening sockets."""

from __future__ import annotations

import ctypes
import os
import socket
import struct

from lab.network import CLONE_NEWNET

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST_DUMP = 0x301
TCP_LISTEN = 10
HEADER = struct.Struct("=IHHII")
# The part of an inet_diag_msg after the addresses: expires, rqueue, wqueue, uid, inode.
REST = struct.Struct("=IIIII")
REST_AT = HEADER.size + 4 + 48


class Backlog:
    """Reader of the accept queues, with a netlink socket in the namespace of a process."""

    def __init__(self, pid: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/self/ns/net") as home, open(f"/proc/{pid}/ns/net") as target:
            _enter(libc, target.fileno())
            try:
                self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG)
            finally:
                _enter(libc, home.fileno())
        self._request = _request()

    def length(self) -> int:
        """Returns the number of established connections that the application has not accepted, over all listening
        sockets.
        """
        self._socket.send(self._request)
        waiting = 0
        while True:
            answer = self._socket.recv(1 << 16)
            at = 0
            while at < len(answer):
                length, kind, *_ = HEADER.unpack_from(answer, at)
                if kind != SOCK_DIAG_BY_FAMILY:
                    return waiting
                # For a listening socket, rqueue counts connections, not bytes.
                waiting += REST.unpack_from(answer, at + REST_AT)[1]
                at += (length + 3) & ~3

    def close(self) -> None:
        self._socket.close()


def _request() -> bytes:
    query = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 1 << TCP_LISTEN) + bytes(48)
    return HEADER.pack(HEADER.size + len(query), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 1, 0) + query


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
