"""Where things are, and which addresses: what is built lasts, what a running cluster writes goes with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent.parent

# Shared by every clone of this repository: the build takes minutes.
CACHE = Path(
    os.environ.get("SHEAVE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sheave"
)
PROGRAMS = CACHE / "cluster" / "bin"

# One cluster at a time has the machine, so what it writes has a fixed place, which tests can name.
STATE = Path("/run/sheave-cluster")
LOCK = Path("/run/sheave-cluster.lock")
KUBECONFIG = STATE / "kubeconfig"
CERTIFICATES = STATE / "certificates"
LOGS = STATE / "logs"
# Read beside `kubelet/images.toml`, and before it: what tests put in an image's place.
IMAGES = STATE / "images.toml"

# Control groups, network namespaces and links of a cluster are named by this, so that all of them are found again.
NAME = "sheave-cluster"
CONTROL_PLANE_NAMESPACE = f"{NAME}-control"
# The machine's own link to the cluster's network.
MACHINE_LINK = "sheave-cluster"

# One network with all nodes, the API server and the machine on it. Addresses from 10.200.1.0/24 and
# fd00:10:200::1:0/112 are nobody's: a node may take one for a Gateway.
NETWORK = ("10.200.0.0/16", "fd00:10:200::/64")
API_SERVER = "10.200.0.1"
API_SERVER_PORT = 6443
MACHINE = ("10.200.0.2", "fd00:10:200::2")
POOL = ("10.200.1.0/24", "fd00:10:200::1:0/112")

# What Services of type LoadBalancer get.
BALANCED = ("10.200.2.0/24", "fd00:10:200::2:0/112")

SERVICES = ("10.96.0.0/16", "fd00:10:96::/112")
API_SERVICE = ("10.96.0.1", "fd00:10:96::1")
PODS = ("10.244.0.0/16", "fd00:10:244::/48")


@dataclass(frozen=True)
class Node:
    """What a node is called, where it is, and by which rules its kube-proxy balances."""

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


NODES = (Node(1, "iptables"), Node(2, "nftables"), Node(3, "nftables"))


def node(name: str) -> Node:
    """The node of this name; KeyError if there is none."""
    return {node.name: node for node in NODES}[name]
