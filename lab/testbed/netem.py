"""The kernel's netem as the reference for our link: a queueing discipline at both ends of a veth."""

from __future__ import annotations

import subprocess

from lab.testbed import hosts
from lab.testbed.hosts import Host
from lab.testbed.link import LinkConditions, LinkDirection

# Queue length in packets; netem drops further packets.
LIMIT_PACKETS = 100_000


def obstacle() -> str | None:
    """Returns the reason why netem is not available, or None. Tests it in a temporary namespace."""
    attempt = "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"
    done = subprocess.run(["unshare", "--net", "sh", "-c", attempt], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip() or "tc is not installed"


class Netem:
    """Replacement of `Link` without congestion control, which the veth of the testbed sets."""

    def __init__(self, host: Host, gateway: str) -> None:
        self._host = host
        hosts.connect(host, gateway, f"{gateway.rpartition('.')[0]}.0/24")
        # Without this, netem would drop several packets at a time, before segmentation.
        hosts.configure_node(f"link set {host.name} gso_max_segs 1")
        host.configure("link set eth0 gso_max_segs 1")

    def apply(self, conditions: LinkConditions) -> None:
        hosts.run_on_node(["tc", "-batch", "-"], _discipline(self._host.name, conditions.forward))
        self._host.run(["tc", "-batch", "-"], _discipline("eth0", conditions.reverse))


def _discipline(device: str, direction: LinkDirection) -> str:
    words = f"qdisc replace dev {device} root netem limit {LIMIT_PACKETS} delay {direction.delay_ms}ms"
    words += f" loss {100 * direction.loss}%" if direction.loss else ""
    words += f" rate {direction.mbit}mbit" if direction.mbit else ""
    return f"{words}\n"
