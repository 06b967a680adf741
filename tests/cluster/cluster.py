"""Start and removal of a cluster; the machine has one at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from lab.lock import try_lock
from lab.paths import MissingRequirement
from lab.testbed import cgroups
from tests.cluster import certificates, control_plane, gateway_api, network, nodes, programs, real_node
from tests.cluster.api import Api, ApiError, ApiUnreachable
from tests.cluster.layout import CACHE, KUBECONFIG, LOCK, LOGS, NODES, SPARE_NODES, STATE, Node
from tests.cluster.processes import Process, make_groups, stop_part, top_group

READY_SECONDS = 120.0
POLL_SECONDS = 0.1
# A killed command may still hold the lock in a terminating child that has not executed its program yet.
LOCK_SECONDS = 5.0
TOOLS = {
    "ip": "iproute2",
    "iptables": "iptables",
    "nft": "nftables",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
    "openssl": "openssl",
}
# Any node may read the Secrets and ConfigMaps of any pod; the kubelet decides which pod gets which.
KUBELET_RIGHTS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "process-kubelet"},
    "rules": [{"apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["get", "list", "watch"]}],
}
KUBELETS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "process-kubelet"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "process-kubelet"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class ClusterExists(Exception):
    """A cluster, or its leftovers, exist already."""


def obstacle() -> str | None:
    """Returns the reason why this machine cannot have a cluster, or None."""
    if os.geteuid() != 0:
        return "root is required for network namespaces, mounts and control groups"
    missing = [f"{tool} (Debian's {package})" for tool, package in TOOLS.items() if not shutil.which(tool)]
    if missing:
        return f"missing: {', '.join(missing)}; run scripts/setup cluster"
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        return "root cannot create namespaces here, as in most containers"
    groups = cgroups.detect_version(Path("/proc/mounts").read_text())
    if groups is None or not all(os.access(mount, os.W_OK) for mount in groups.mounts):
        return "root cannot create control groups here, as in most containers"
    return None


def exists() -> bool:
    """Returns true if a cluster or its leftovers exist."""
    return STATE.exists() or network.exists() or any(folder.exists() for folder in top_group().folders)


def up(real: str | None = None) -> None:
    """Starts a cluster and waits until it is ready. The node `real` has a real kubelet."""
    if reason := obstacle():
        raise MissingRequirement(f"no cluster here: {reason}")
    with _locked():
        if exists():
            raise ClusterExists(
                f"a cluster, or its leftovers, exist already (see {STATE}): `make cluster-down` removes it"
            )
        programs.make()
        if real:
            real_node.make()
        began = time.monotonic()
        try:
            _start(real)
        except BaseException:
            _keep_logs()
            _remove()
            raise
    programs.print_status(f"ready after {time.monotonic() - began:.0f} s")


def down() -> None:
    """Removes a cluster or its leftovers."""
    if os.geteuid() != 0:
        raise MissingRequirement("root is required to remove a cluster")
    with _locked():
        _remove()


def start_api_server() -> None:
    """Starts the API server of a cluster that lost it."""
    process = control_plane.start_api_server()
    with closing(Api(KUBECONFIG)) as api:
        wait_until(lambda: api.text("/readyz") == "ok", [process], "the API server")


def start_node(node: Node, *, real: bool) -> list[Process]:
    network.connect_node(node)
    return real_node.start(node) if real else nodes.start(node)


def restart_node(node: Node) -> list[Process]:
    """Restarts a stopped node in its former kind."""
    return start_node(node, real=real_node.is_real_node(node))


def _start(real: str | None) -> None:
    LOGS.mkdir(parents=True)
    make_groups([*control_plane.GROUPS, *(node.name for node in NODES)])
    network.make()
    certificates.make()
    with closing(Api(KUBECONFIG)) as api:
        _start_processes(api, real)


def _start_processes(api: Api, real: str | None) -> None:
    processes = [control_plane.start_etcd(), control_plane.start_api_server()]
    programs.print_status("waiting for the API server")
    wait_until(lambda: api.text("/readyz") == "ok", processes, "the API server")
    processes += control_plane.start_controllers()
    api.apply(f"{RBAC}/clusterroles/process-kubelet", KUBELET_RIGHTS)
    api.apply(f"{RBAC}/clusterrolebindings/process-kubelet", KUBELETS)
    for node in NODES:
        processes += start_node(node, real=node.name == real)
    processes.append(control_plane.start_load_balancers())
    programs.print_status("waiting for the nodes, and installing the Gateway API")
    gateway_api.install()
    for node in NODES:
        wait_until(lambda name=node.name: node_is_ready(api, name), processes, f"node {node.name}")
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    wait_until(lambda: bool(api.get(account)), processes, "the default service account")


def node_is_ready(api: Api, name: str) -> bool:
    node = api.get(f"/api/v1/nodes/{name}")
    conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])}
    # The lifecycle controller removes the taint.
    tainted = any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints", []))
    return conditions.get("Ready") == "True" and not tainted


def wait_until(ready: Callable[[], bool], processes: Sequence[Process], what: str) -> None:
    """Polls a condition; raises at once if a process ends meanwhile."""
    deadline = time.monotonic() + READY_SECONDS
    why = ""
    while True:
        try:
            if ready():
                return
        except (ApiError, ApiUnreachable) as error:
            why = f": {error}"
        for process in processes:
            process.check()
        if time.monotonic() > deadline:
            raise MissingRequirement(f"{what} was not ready after {READY_SECONDS:.0f} s{why}")
        time.sleep(POLL_SECONDS)


def _keep_logs() -> None:
    """Keeps the logs of a failed start for diagnosis."""
    kept = CACHE / "cluster" / "logs-of-failure"
    shutil.rmtree(kept, ignore_errors=True)
    if LOGS.is_dir():
        shutil.copytree(LOGS, kept)
        programs.print_status(f"logs are in {kept}")


def _remove() -> None:
    """Ends the processes first, which removes their mounts; links vanish with their namespaces."""
    for part in (*(node.name for node in (*NODES, *SPARE_NODES)), *control_plane.GROUPS):
        stop_part(part)
    top_group().remove()
    real_node.remove_groups()
    network.remove()
    shutil.rmtree(STATE, ignore_errors=True)


@contextmanager
def _locked() -> Iterator[None]:
    """Holds a lock, so that only one command creates or removes a cluster."""
    with LOCK.open("a+") as lock:
        if not try_lock(lock, LOCK_SECONDS):
            raise ClusterExists("another command is creating or removing a cluster: wait until it ends")
        yield
