"""A pod's place in the network: a namespace with one address of each family, routed by the node.

No bridge: each pod has a link of its own, and everything that it sends passes through the node's routing, where
kube-proxy's rules are. A process that does nothing holds the namespace open, as a pause container does.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path

from lab.testbed.cgroups import ControlGroup
from tests.cluster.layout import Node
from tests.cluster.network import CUBIC

# The node's end of every link has the same addresses, which are a pod's way to everywhere: the first of the node's
# range, as whom kube-proxy's rules let a node ask its own pods, and of the other family this.
GATEWAY_V6 = "fe80::1"
# Any user of a container may listen at any port, as container runtimes have it today.
PAUSE = """\
echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
echo
exec cat
"""


class SandboxFailed(Exception):
    """A pod got no network; the message has what a command said."""


class AddressPool:
    """The numbers of a node's pods. One that has just been given back is the last to be given again."""

    def __init__(self) -> None:
        self._free = list(range(2, 251))
        self._lock = threading.Lock()

    def allocate(self) -> int:
        with self._lock:
            if not self._free:
                raise SandboxFailed("all addresses of the node are taken")
            return self._free.pop(0)

    def release(self, number: int) -> None:
        with self._lock:
            self._free.append(number)


class Sandbox:
    """Of a pod with a network of its own."""

    def __init__(self, node: Node, group: ControlGroup, numbers: AddressPool) -> None:
        self._numbers = numbers
        self._number = numbers.allocate()
        self.addresses: Sequence[str] = tuple(str(ip_network(net)[self._number]) for net in node.pods)
        self._pause_process = _start_pause_process(group)
        try:
            self._connect(node)
        except SandboxFailed:
            self.remove()
            raise

    @property
    def namespace(self) -> Path:
        return Path(f"/proc/{self._pause_process.pid}/ns/net")

    def alive(self) -> bool:
        return self._pause_process.poll() is None

    def remove(self) -> None:
        """The link goes first, so that its name is free at once; it may have gone with the namespace."""
        subprocess.run(["ip", "link", "delete", self._link], capture_output=True, check=False)
        self._pause_process.kill()
        self._pause_process.communicate()
        self._numbers.release(self._number)

    @property
    def _link(self) -> str:
        return f"pod{self._number}"

    def _connect(self, node: Node) -> None:
        """This process is in the node's namespace."""
        four, six = self.addresses
        via4, via6 = str(ip_network(node.pods[0])[1]), GATEWAY_V6
        from4, from6 = node.addresses
        _ip(
            f"link add {self._link} type veth peer name eth0 netns {self._pause_process.pid}",
            f"address add {via4}/32 dev {self._link}",
            f"address add {via6}/64 dev {self._link} nodad",
            f"link set {self._link} up",
            f"route replace {four}/32 dev {self._link} src {from4} {CUBIC}",
            f"route replace {six}/128 dev {self._link} src {from6} {CUBIC}",
        )
        _ip(
            "link set lo up",
            f"address add {four}/32 dev eth0",
            f"address add {six}/128 dev eth0 nodad",
            "link set eth0 up",
            f"route add {via4} dev eth0 scope link",
            f"route add default via {via4} dev eth0 {CUBIC}",
            f"route add default via {via6} dev eth0 {CUBIC}",
            within=self.namespace,
        )


class HostNetwork:
    """Of a pod that shares its node's network."""

    def __init__(self, node: Node) -> None:
        self.addresses: Sequence[str] = node.addresses
        self.namespace = node.namespace_file

    def alive(self) -> bool:
        return True

    def remove(self) -> None:
        """The node's network stays."""


def _start_pause_process(group: ControlGroup) -> subprocess.Popen[str]:
    argv = group.enter_command(["unshare", "--net", "--", "sh", "-c", PAUSE])
    pause = subprocess.Popen(
        list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    if not pause.stdout.readline():
        raise SandboxFailed("no network namespace could be made")
    return pause


def _ip(*commands: str, within: Path | None = None) -> None:
    prefix = ["nsenter", f"--net={within}", "--"] if within else []
    argv = [*prefix, "ip", "-batch", "-"]
    done = subprocess.run(argv, input="\n".join(commands) + "\n", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxFailed(f"ip: {done.stderr.strip()}")
