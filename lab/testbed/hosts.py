"""Hosts: network namespaces with a link to the node, which is the namespace that this process is in.

A namespace is held open by a process that does nothing, as a pod's is by its pause container. So nothing has a name on
the machine, and nothing is left when the processes have ended.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.child import Child, ChildFailed
from lab.network import CONGESTION_CONTROL
from lab.testbed.cgroups import ControlGroup

BRIDGE = "cni0"
# Of its own, as CNI's plugin gives one: a bridge without one has the lowest of its ports', so a pod which comes may
# change it, and for some seconds nobody who knew the old one is heard.
BRIDGE_MAC = "0a:58:0a:2a:00:01"


class Host:
    """A namespace with an address, whose processes run in a group of their own."""

    def __init__(self, name: str, address: str, group: ControlGroup, folder: Path) -> None:
        self.name = name
        self.address = address
        self.group = group.create()
        self.folder = folder
        # Where the other end of its link is, if that is not this process's node.
        self._node: Host | None = None
        argv = ["unshare", "--net", "--", "sh", "-c", "echo; exec cat"]
        self._pause = Child(self.group.enter_command(argv), folder / f"{name}-pause.log", piped=True)
        if not self._pause.stdout.readline():
            raise ChildFailed(f"{name} got no network namespace{self._pause.log_end()}")

    @property
    def pid(self) -> int:
        """A process that is in the namespace as long as it exists."""
        return self._pause.pid

    def start(
        self, argv: Sequence[object], log: Path, *, piped: bool = False, env: Mapping[str, str] | None = None
    ) -> Child:
        """A process of this host."""
        return Child(self.group.enter_command([*self._enter_command(), *argv]), log, piped=piped, env=env)

    def configure(self, *commands: str) -> None:
        """Commands of `ip`, on this host."""
        self.run(["ip", "-batch", "-"], "\n".join(commands) + "\n")

    def run(self, argv: Sequence[str], text: str) -> None:
        """A command that sets something up on this host, with this input."""
        run_on_node([*self._enter_command(), *argv], text)

    def remove(self) -> None:
        """Ends everything on it, and so its namespace. The link would follow in its own time, so it goes first."""
        _ip(f"link delete {self.name}", node=self._node)
        self.group.remove()
        self._pause.stop()

    def _enter_command(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]


def make_bridge(address: str, subnet: str, node: Host | None = None) -> None:
    """What the pods' links are plugged into, on the node or on another one."""
    _ip(
        f"link add {BRIDGE} address {BRIDGE_MAC} type bridge",
        f"address add {address}/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        f"route replace {subnet} dev {BRIDGE} src {address} congctl {CONGESTION_CONTROL}",
        node=node,
    )
    for setting in ("ip_forward", "conf/all/route_localnet"):
        # What lies there is of the namespace of whoever opens it.
        (node.run if node else run_on_node)(["sh", "-c", f"cat >/proc/sys/net/ipv4/{setting}"], "1")


def plug_in(host: Host, gateway: str, node: Host | None = None) -> None:
    """A pod: one of many on the bridge, of the node or of another one."""
    host._node = node
    _ip(
        f"link add {host.name} type veth peer name eth0 netns {host.pid}",
        f"link set {host.name} master {BRIDGE}",
        f"link set {host.name} up",
        node=node,
    )
    _address(host, gateway)


def connect(host: Host, gateway: str, subnet: str) -> None:
    """A host behind a link of its own."""
    _ip(
        f"link add {host.name} type veth peer name eth0 netns {host.pid}",
        f"address add {gateway}/24 dev {host.name}",
        f"link set {host.name} up",
        f"route replace {subnet} dev {host.name} src {gateway} congctl {CONGESTION_CONTROL}",
    )
    _address(host, gateway)


def route(subnet: str, gateway: str) -> None:
    """The node's way to what is behind another one."""
    _ip(f"route replace {subnet} via {gateway} congctl {CONGESTION_CONTROL}")


def _address(host: Host, gateway: str) -> None:
    subnet = f"{host.address.rpartition('.')[0]}.0/24"
    # A machine's default may be bbr, whose pacing is no part of what is measured.
    host.configure(
        "link set lo up",
        f"address add {host.address}/24 dev eth0",
        "link set eth0 up",
        f"route replace {subnet} dev eth0 src {host.address} congctl {CONGESTION_CONTROL}",
        f"route replace default via {gateway} dev eth0 congctl {CONGESTION_CONTROL}",
    )


def _ip(*commands: str, node: Host | None = None) -> None:
    if node:
        node.configure(*commands)
    else:
        configure_node(*commands)


def configure_node(*commands: str) -> None:
    """Commands of `ip`, on this process's node."""
    run_on_node(["ip", "-batch", "-"], "\n".join(commands) + "\n")


def run_on_node(argv: Sequence[str], text: str) -> None:
    """A command that sets something up on this process's node, with this input."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChildFailed(f"`{' '.join(argv)}` refuses to set up the testbed's network: {done.stderr.strip()}")
