"""The autoscaler of nodes: Karpenter, which starts machines for pods that have no place, and removes idle ones."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster import control_plane, programs
from tests.cluster.api import Api
from tests.cluster.gateway_api import ESTABLISHED, PATIENCE_SECONDS, kubectl
from tests.cluster.layout import CONTROL_PLANE_NAMESPACE, KUBECONFIG, STATE
from tests.cluster.machines import CAPACITY, SOCKET, Machines, MachineServer
from tests.cluster.processes import Process, own_group

MODULE = "sigs.k8s.io/karpenter"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
NODE_CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
# Pods with this label as node selector run on machines alone.
POOL = {"pool": "machines"}
# How long a machine may be idle.
IDLE = "15s"


@contextmanager
def autoscale_nodes(api: Api, boot_seconds: float) -> Iterator[Machines]:
    """Runs Karpenter; machines are nodes `boot_seconds` after it asks for them. All are removed in the end."""
    programs.KARPENTER.make()
    _install(api)
    machines = Machines(boot_seconds)
    server = MachineServer(machines)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    process = _start()
    try:
        yield machines
        process.check()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        server.shutdown()
        serving.join()
        server.server_close()
        SOCKET.unlink(missing_ok=True)
        machines.remove_all()


def _install(api: Api) -> None:
    source = programs.module_folder(MODULE, programs.KARPENTER_MODULE)
    for folder in (source / "pkg" / "apis" / "crds", source / "kwok" / "apis" / "crds"):
        names = kubectl("apply", "--server-side", "--output=name", "--filename", folder).split()
        kubectl("wait", f"--for={ESTABLISHED}", f"--timeout={PATIENCE_SECONDS}s", *names)
    api.apply(
        f"{NODE_CLASSES}/machines",
        {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "machines"}},
    )
    node_class = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "machines"}
    capacity_type = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
    pool = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "machines"},
        "spec": {
            "template": {
                "metadata": {"labels": POOL},
                "spec": {"nodeClassRef": node_class, "requirements": [capacity_type]},
            },
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": IDLE, "budgets": [{"nodes": "100%"}]},
        },
    }
    api.apply(f"{NODE_POOLS}/machines", pool)


def _start() -> Process:
    settings = {
        "KUBECONFIG": str(KUBECONFIG),
        "MACHINES": str(SOCKET),
        "CAPACITY": json.dumps(CAPACITY),
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": "0",
        "HEALTH_PROBE_PORT": "0",
    }
    group = own_group(control_plane.GROUP)
    argv = [programs.KARPENTER.path]
    return Process("karpenter", argv, group=group, namespace=CONTROL_PLANE_NAMESPACE, folder=STATE, env=settings)
