"""A node: kube-proxy and the kubelet in the node's namespace."""

from __future__ import annotations

import json
import shutil
import sys

from tests.cluster import certificates, network
from tests.cluster.layout import PODS, PROGRAMS, REPOSITORY, Node
from tests.cluster.processes import PYTHON, Process, make_groups, own_group, stop_part


def start(node: Node) -> list[Process]:
    node.folder.mkdir(exist_ok=True)
    own = own_group(node.name)
    kubelet = [sys.executable, "-m", "tests.cluster.kubelet", node.name]
    return [
        start_proxy(node),
        Process(
            f"kubelet-{node.name}",
            kubelet,
            group=own,
            namespace=node.namespace,
            folder=REPOSITORY,
            env=PYTHON,
        ),
    ]


def start_proxy(node: Node) -> Process:
    argv = [PROGRAMS / "kube-proxy", f"--config={_proxy_configuration(node)}"]
    name = f"kube-proxy-{node.name}"
    return Process(name, argv, group=own_group(node.name), namespace=node.namespace, folder=node.folder)


def stop(node: Node) -> None:
    """Simulates a power failure: the node is silent at once, and its processes are killed."""
    network.disconnect_node(node)
    stop_part(node.name)
    make_groups([node.name])


def remove(node: Node) -> None:
    """Removes a machine and its files at once, with all that runs on it."""
    stop_part(node.name)
    network.remove_node(node)
    shutil.rmtree(node.folder)


def _proxy_configuration(node: Node) -> str:
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": node.proxy_mode,
        "hostnameOverride": node.name,
        "clientConnection": {"kubeconfig": str(certificates.kubeconfig("proxy"))},
        "clusterCIDR": ",".join(PODS),
        "bindAddress": node.addresses[0],
        # Machine-wide settings, which a node must not change.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nodePortAddresses": ["primary"],
        "iptables": {"minSyncPeriod": "0s", "syncPeriod": "30s"},
        "nftables": {"minSyncPeriod": "0s", "syncPeriod": "30s"},
    }
    path = node.folder / "kube-proxy.json"
    path.write_text(json.dumps(config, indent=2))
    return str(path)
