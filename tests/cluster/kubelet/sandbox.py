"""Network of a pod: a namespace with one address of each family, routed by the node.

There is no bridge: each pod has its own link, and all its packets pass through the node's routing and kube-proxy's
rules. An idle process holds the namespace open, like a pause container.
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

# Gateway addresses of every pod, on the node's end of every link: the first address of the node's range, which
# kube-proxy's rules use as the node's source address, and this one of the other family.
GATEWAY_V6 = "fe80::1"
# Any user of a container may listen on any port, as in current container runtimes.
PAUSE = """\
echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
echo
exec cat
"""


class SandboxFailed(Exception):
    """A pod has no network; the message has the failed command's output."""


class AddressPool:
    """Pod addresses of a node. The most recently released one is allocated last."""

    def __init__(self) -> None:
        self._free = list(range(2, 251))
        self._lock = threading.Lock()

    def allocate(self) -> int:
        with self._lock:
            if not self._free:
                raise SandboxFailed("the node has no free address")
            return self._free.pop(0)

    def release(self, number: int) -> None:
        with self._lock:
            self._free.append(number)


class Sandbox:
    """Network of a pod with its own namespace."""

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
        """Removes the link first, so that its name is free at once; it may have vanished with the namespace."""
        subprocess.run(["ip", "link", "delete", self._link], capture_output=True, check=False)
        self._pause_process.kill()
        self._pause_process.communicate()
        self._numbers.release(self._number)

    @property
    def _link(self) -> str:
        return f"pod{self._number}"

    def _connect(self, node: Node) -> None:
        """Connects the pod; this process is in the node's namespace."""
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
    """Network of a pod that shares its node's."""

    def __init__(self, node: Node) -> None:
        self.addresses: Sequence[str] = node.addresses
        self.namespace = node.namespace_file

    def alive(self) -> bool:
        return True

    def remove(self) -> None:
        """Does nothing: the node's network stays."""


def _start_pause_process(group: ControlGroup) -> subprocess.Popen[str]:
    argv = group.enter_command(["unshare", "--net", "--", "sh", "-c", PAUSE])
    pause = subprocess.Popen(
        list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    if not pause.stdout.readline():
        raise SandboxFailed("cannot create a network namespace")
    return pause


def _ip(*commands: str, within: Path | None = None) -> None:
    prefix = ["nsenter", f"--net={within}", "--"] if within else []
    argv = [*prefix, "ip", "-batch", "-"]
    done = subprocess.run(argv, input="\n".join(commands) + "\n", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxFailed(f"ip: {done.stderr.strip()}")
