"""Announces addresses on a network, so that hosts update their neighbour caches. Runs in the namespace of the
addresses.

    python -m tests.cluster.announcing LINK ADDRESS...
"""

from __future__ import annotations

import socket
import struct
import sys
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

EVERYBODY = b"\xff" * 6
ARP, ETHERNET, REPLY = 0x0806, 1, 2
NEIGHBOUR_ADVERTISEMENT, OVERRIDE, TARGET_LINK_ADDRESS = 136, 0x2000_0000, 2
ALL_NODES = "ff02::1"


def announce(link: str, address: str) -> None:
    parsed = ip_address(address)
    hardware = bytes.fromhex(Path(f"/sys/class/net/{link}/address").read_text().strip().replace(":", ""))
    if isinstance(parsed, IPv4Address):
        _by_arp(link, hardware, parsed)
    else:
        _by_neighbour_discovery(link, hardware, parsed)


def _by_arp(link: str, hardware: bytes, address: IPv4Address) -> None:
    """Sends a gratuitous ARP reply (RFC 5227 §3)."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sending:
        sending.bind((link, 0))
        kind = struct.pack("!HHBBH", ETHERNET, 0x0800, 6, 4, REPLY)
        payload = hardware + address.packed + EVERYBODY + address.packed
        sending.send(EVERYBODY + hardware + struct.pack("!H", ARP) + kind + payload)


def _by_neighbour_discovery(link: str, hardware: bytes, address: IPv6Address) -> None:
    """Sends an unsolicited advertisement (RFC 4861 §7.2.6); the kernel computes its checksum."""
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as sending:
        sending.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        head = struct.pack("!BBHI", NEIGHBOUR_ADVERTISEMENT, 0, 0, OVERRIDE)
        option = struct.pack("!BB", TARGET_LINK_ADDRESS, 1) + hardware
        sending.sendto(head + address.packed + option, (ALL_NODES, 0, 0, socket.if_nametoindex(link)))


if __name__ == "__main__":
    for named in sys.argv[2:]:
        announce(sys.argv[1], named)
