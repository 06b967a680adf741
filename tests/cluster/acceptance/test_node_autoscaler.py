"""Pods that the HPA adds have no place until an autoscaler of nodes has started machines for them: Karpenter, whose
machines boot for half a minute.

    scripts/acceptance --pattern test_node_autoscaler.py
"""

from __future__ import annotations

import sys
import time

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.autoscaling import PATIENCE_SECONDS, AutoscalingTest
from tests.cluster.machines import Machines
from tests.cluster.node_autoscaler import POOL, autoscale_nodes
from tests.cluster.tests import running

tearDownModule = running.stop

CAP = 2
MACHINES = 3
BOOT_SECONDS = 30.0
# Two pods do not share a machine.
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
        ]
    }
}


def setUpModule() -> None:
    gateway.install_chart("metricsApi.enabled=true", workload="deployment")


class NodeAutoscalerTest(AutoscalingTest):
    CAP = CAP
    machines: Machines

    def setUp(self) -> None:
        super().setUp()
        self.machines = self.enterContext(autoscale_nodes(self.api, boot_seconds=0.0))
        # Their pods leave the machines before those are removed.
        self.addCleanup(self.scale, 0)
        self.serve_counting(1, CAP, nodeSelector=POOL, affinity=APART)
        self.limit(maxInFlightPerEndpoint=CAP, queue={"timeout": "60s"})
        self.wait(self.is_available, "the API of metrics", PATIENCE_SECONDS)
        self.machines.boot_seconds = BOOT_SECONDS

    def test_requests_wait_while_machines_boot_and_none_fails(self) -> None:
        self.autoscale("sheave_demand", maxReplicas=MACHINES)
        with self.load(0.0, 1):
            with self.load(0.0, MACHINES * CAP - 1) as load:
                began = time.monotonic()
                self.wait(lambda: self.wanted() == MACHINES, f"{MACHINES} replicas", PATIENCE_SECONDS)
                wanted = time.monotonic() - began
                self.wait_for_replicas(MACHINES, BOOT_SECONDS + PATIENCE_SECONDS)
                ready = time.monotonic()
                pods = self.ready()
                self.wait(lambda: pods <= load.between(ready, time.monotonic()).keys(), "answers of all pods")
                first = time.monotonic() - ready
            self.assertEqual(len(self.machines.running()), MACHINES)
            self.wait_for_replicas(1, PATIENCE_SECONDS)
            self.wait(lambda: len(self.machines.running()) == 1, "one machine", PATIENCE_SECONDS)
        print(
            f"{self.id()}: wanted after {wanted:.1f} s, ready after {ready - began:.1f} s, all pods answered "
            f"{first:.2f} s later; {self.machines.machine_seconds():.0f} machine-seconds",
            file=sys.stderr,
        )
