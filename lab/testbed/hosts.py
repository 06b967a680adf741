"""Hosts: network namespaces with a link to the node, which is the namespace of this process.

An idle process holds each namespace open, like a pod's pause container. So the namespaces have no name on the machine,
and vanish with their processes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.child import Child, ChildFailed
from lab.network import CONGESTION_CONTROL
from lab.testbed.cgroups import ControlGroup

BRIDGE = "cni0"
# A fixed address, as CNI's bridge plugin sets: a bridge without one takes the lowest of its ports', so a new pod could
# change it, and packets to the old address would be lost for seconds.
BRIDGE_MAC = "0a:58:0a:2a:00:01"


class Host:
    """A namespace with an address, whose processes run in a control group."""

    def __init__(self, name: str, address: str, group: ControlGroup, folder: Path) -> None:
        self.name = name
        self.address = address
        self.group = group.create()
        self.folder = folder
        # Node at the other end of the link; None is the node of this process.
        self._node: Host | None = None
        argv = ["unshare", "--net", "--", "sh", "-c", "echo; exec cat"]
        self._pause = Child(self.group.enter_command(argv), folder / f"{name}-pause.log", piped=True)
        if not self._pause.stdout.readline():
            raise ChildFailed(f"{name} has no network namespace{self._pause.log_end()}")

    @property
    def pid(self) -> int:
        """Returns the pause process, which exists as long as the namespace."""
        return self._pause.pid

    def start(
        self, argv: Sequence[object], log: Path, *, piped: bool = False, env: Mapping[str, str] | None = None
    ) -> Child:
        """Starts a process on this host."""
        return Child(self.enter_command(argv), log, piped=piped, env=env)

    def enter_command(self, argv: Sequence[object]) -> list[object]:
        """Returns a command that runs on this host."""
        return self.group.enter_command([*self._enter_network(), *argv])

    def configure(self, *commands: str) -> None:
        """Runs commands of `ip` on this host."""
        self.run(["ip", "-batch", "-"], "\n".join(commands) + "\n")

    def run(self, argv: Sequence[str], text: str) -> None:
        """Runs a setup command on this host with an input."""
        run_on_node([*self._enter_network(), *argv], text)

    def remove(self) -> None:
        """Kills all processes, which removes the namespace. Removes the link first, because the kernel removes it only
        later.
        """
        _ip(f"link delete {self.name}", node=self._node)
        self.end()

    def end(self) -> None:
        """Kills all processes. The kernel then removes the namespace with its links, at a time of its own."""
        self.group.remove()
        self._pause.stop()

    def _enter_network(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]


def make_bridge(address: str, subnet: str, node: Host | None = None) -> None:
    """Creates the bridge of the pods' links, on this node or another one."""
    _ip(
        f"link add {BRIDGE} address {BRIDGE_MAC} type bridge",
        f"address add {address}/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        f"route replace {subnet} dev {BRIDGE} src {address} congctl {CONGESTION_CONTROL}",
        node=node,
    )
    for setting in ("ip_forward", "conf/all/route_localnet"):
        # A sysctl path refers to the namespace of the process that opens it.
        (node.run if node else run_on_node)(["sh", "-c", f"cat >/proc/sys/net/ipv4/{setting}"], "1")


def plug_in(host: Host, gateway: str, node: Host | None = None) -> None:
    """Connects a pod to the bridge of this node or another one."""
    host._node = node
    _ip(
        f"link add {host.name} type veth peer name eth0 netns {host.pid}",
        f"link set {host.name} master {BRIDGE}",
        f"link set {host.name} up",
        node=node,
    )
    _address(host, gateway)


def connect(host: Host, gateway: str, subnet: str) -> None:
    """Connects a host by its own link."""
    _ip(
        f"link add {host.name} type veth peer name eth0 netns {host.pid}",
        f"address add {gateway}/24 dev {host.name}",
        f"link set {host.name} up",
        f"route replace {subnet} dev {host.name} src {gateway} congctl {CONGESTION_CONTROL}",
    )
    _address(host, gateway)


def route(subnet: str, gateway: str) -> None:
    """Adds the node's route to a subnet behind another node."""
    _ip(f"route replace {subnet} via {gateway} congctl {CONGESTION_CONTROL}")


def _address(host: Host, gateway: str) -> None:
    subnet = f"{host.address.rpartition('.')[0]}.0/24"
    # The machine's default may be bbr, whose pacing must not affect the measurements.
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
    """Runs commands of `ip` on this process's node."""
    run_on_node(["ip", "-batch", "-"], "\n".join(commands) + "\n")


def run_on_node(argv: Sequence[str], text: str) -> None:
    """Runs a setup command on this process's node with an input."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChildFailed(f"`{' '.join(argv)}` failed to set up the testbed's network: {done.stderr.strip()}")
