"""A long-distance link to a host: the program `link` applies delay, loss, rate and queue to its packets in user space.

It requires only TUN devices of the kernel. The conditions apply to each IP packet of at most the MTU: the devices have
no offloads, so the kernel segments larger ones first.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import network
from lab.child import Child, ChildFailed
from lab.paths import binary
from lab.testbed import hosts
from lab.testbed.cgroups import ControlGroup
from lab.testbed.hosts import Host

DEVICE = "/dev/net/tun"
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
# Length of the kernel's queue towards a slow reader; the default would add packet loss to that of the link.
DEVICE_QUEUE_PACKETS = 10_000
CONTROLLERS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
# Disables the metrics cache, so that each connection is measured independently.
NO_METRICS_SAVE = ("sh", "-c", "cat >/proc/sys/net/ipv4/tcp_no_metrics_save")


@dataclass(frozen=True)
class LinkDirection:
    """Conditions of one direction."""

    delay_ms: float = 0.0
    # None is unlimited.
    mbit: float | None = None
    queue_kib: int = 1024
    # Share of lost packets.
    loss: float = 0.0

    def __str__(self) -> str:
        """Returns the argument of the program."""
        words = [f"delay-us={self.delay_ms * 1000:.0f}", f"queue-bytes={self.queue_kib * 1024}", f"loss={self.loss}"]
        return ",".join(words if self.mbit is None else [*words, f"kbit={self.mbit * 1000:.0f}"])


@dataclass(frozen=True)
class LinkConditions:
    """Conditions from the node to the host (forward) and back (reverse)."""

    forward: LinkDirection
    reverse: LinkDirection


def obstacle(controllers: Sequence[str] = ()) -> str | None:
    """Returns the reason why this machine cannot have a link with these congestion controls, or None."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"{DEVICE} cannot be opened ({error.strerror}); the link to the client requires TUN devices"
    known = CONTROLLERS.read_text().split()
    if missing := [name for name in controllers if name not in known]:
        return f"the kernel has no congestion control {missing[0]} for TCP; it has {', '.join(known)}"
    return None


class Link:
    """The only link between the node and a host."""

    def __init__(self, host: Host, gateway: str, group: ControlGroup, folder: Path) -> None:
        self._host = host
        self._gateway = gateway
        self._group = group.create()
        self._log = folder / "link.log"
        self._child: Child | None = None
        self._near, self._far = _device(host.name), _device(f"{host.name}-far")
        _set_up(host, gateway)

    def apply(self, conditions: LinkConditions, congestion_control: str, seed: int) -> None:
        """Applies conditions, and a TCP congestion control on both sides. Packets in flight are lost."""
        self._stop()
        _set_congestion_control(self._host, self._gateway, congestion_control)
        if (used := network.congestion_control(self._host.address)) != congestion_control:
            raise ChildFailed(f"TCP uses {used} towards {self._host.name} instead of {congestion_control}")
        argv = [binary("link"), "--seed", seed, "--there", conditions.forward, "--back", conditions.reverse]
        self._child = Child(self._group.enter_command(argv), self._log, stdio=(self._near, self._far))

    def check(self) -> None:
        if self._child:
            self._child.check()

    def remove(self) -> None:
        """Removes the link. Remove the host first, because one of the devices belongs to it."""
        self._stop()
        os.close(self._near)
        os.close(self._far)
        self._group.remove()

    def _stop(self) -> None:
        if self._child:
            self._child.stop()
        self._child = None


def _device(name: str) -> int:
    """Creates a TUN device in this process's namespace, which exists as long as the descriptor."""
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def _set_up(host: Host, gateway: str) -> None:
    hosts.configure_node(
        f"link set {host.name}-far netns {host.pid}",
        f"address add {gateway} peer {host.address} dev {host.name}",
        f"link set {host.name} txqueuelen {DEVICE_QUEUE_PACKETS} up",
    )
    host.configure(
        "link set lo up",
        f"link set {host.name}-far name eth0",
        f"address add {host.address} peer {gateway} dev eth0",
        f"link set eth0 txqueuelen {DEVICE_QUEUE_PACKETS} up",
    )
    hosts.run_on_node(NO_METRICS_SAVE, "1")
    host.run(NO_METRICS_SAVE, "1")


def _set_congestion_control(host: Host, gateway: str, congestion_control: str) -> None:
    hosts.configure_node(f"route replace {host.address} dev {host.name} src {gateway} congctl {congestion_control}")
    host.configure(
        f"route replace {gateway} dev eth0 src {host.address} congctl {congestion_control}",
        f"route replace default via {gateway} dev eth0 congctl {congestion_control}",
    )
