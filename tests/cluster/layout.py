"""Paths and addresses of the cluster: built programs stay, files of a running cluster are removed with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent.parent

# Shared by all clones of this repository, because the build takes minutes.
CACHE = Path(
    os.environ.get("SHEAVE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sheave"
)
PROGRAMS = CACHE / "cluster" / "bin"

# The machine has one cluster at a time, so its files have a fixed path, which tests can name.
STATE = Path("/run/sheave-cluster")
LOCK = Path("/run/sheave-cluster.lock")
KUBECONFIG = STATE / "kubeconfig"
CERTIFICATES = STATE / "certificates"
LOGS = STATE / "logs"
# Overrides of `kubelet/images.toml`, for tests.
IMAGES = STATE / "images.toml"

# Prefix of control groups, network namespaces and links of a cluster, to find all of them again.
NAME = "sheave-cluster"
CONTROL_PLANE_NAMESPACE = f"{NAME}-control"
# The machine's link to the cluster's network.
MACHINE_LINK = "sheave-cluster"

# One network with all nodes, the API server and the machine. Addresses from 10.200.1.0/24 and fd00:10:200::1:0/112 are
# free: a node may take one for a Gateway.
NETWORK = ("10.200.0.0/16", "fd00:10:200::/64")
API_SERVER = "10.200.0.1"
API_SERVER_PORT = 6443
MACHINE = ("10.200.0.2", "fd00:10:200::2")
POOL = ("10.200.1.0/24", "fd00:10:200::1:0/112")

# Addresses for Services of type LoadBalancer.
BALANCED = ("10.200.2.0/24", "fd00:10:200::2:0/112")

SERVICES = ("10.96.0.0/16", "fd00:10:96::/112")
API_SERVICE = ("10.96.0.1", "fd00:10:96::1")
PODS = ("10.244.0.0/16", "fd00:10:244::/48")


@dataclass(frozen=True)
class Node:
    """Name, location and kube-proxy mode of a node."""

    number: int
    proxy_mode: str

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def namespace(self) -> str:
        return f"{NAME}-{self.name}"

    @property
    def namespace_file(self) -> Path:
        return Path("/run/netns") / self.namespace

    @property
    def addresses(self) -> tuple[str, str]:
        return f"10.200.0.{10 + self.number}", f"fd00:10:200::{10 + self.number}"

    @property
    def pods(self) -> tuple[str, str]:
        return f"10.244.{self.number}.0/24", f"fd00:10:244:{self.number}::/64"

    @property
    def folder(self) -> Path:
        return STATE / self.name

    @property
    def registration(self) -> Path:
        """Returns the file with what a machine's kubelet registers besides the usual: `capacity`, `labels`, `spec`."""
        return self.folder / "registration.json"


NODES = (Node(1, "iptables"), Node(2, "nftables"), Node(3, "nftables"))
# Machines that an autoscaler of nodes may start; a cluster begins without them.
SPARE_NODES = (Node(4, "nftables"), Node(5, "nftables"), Node(6, "nftables"))


def node(name: str) -> Node:
    """Returns the node of this name; raises KeyError if there is none."""
    return {node.name: node for node in (*NODES, *SPARE_NODES)}[name]
