"""Cost of the API of metrics: the queries of 1,000 HorizontalPodAutoscalers that sync each 15 s, through the API server.

    scripts/acceptance --pattern test_metrics_api_cost.py
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.gateway import WEB, GatewayTest
from tests.cluster.api import ApiError
from tests.cluster.layout import STATE
from tests.cluster.tests import running

tearDownModule = running.stop

GROUP = "/apis/external.metrics.k8s.io/v1beta1"
AUTOSCALERS, SYNC_SECONDS = 1000, 15
SECONDS = 60.0
CONCURRENCY = 8
# Share of a core.
MOST_CPU = 0.02
PATIENCE_SECONDS = 120.0


def setUpModule() -> None:
    gateway.install_chart("metricsApi.enabled=true", workload="deployment")


class MetricsApiCostTest(GatewayTest):
    def test_queries_of_a_thousand_autoscalers_cost_two_percent_of_a_core(self) -> None:
        self.serve(1, WEB)
        with ThreadPoolExecutor(CONCURRENCY) as threads:
            list(threads.map(self.make_service, range(AUTOSCALERS)))
        self.wait(lambda: self.has_metric(AUTOSCALERS - 1), "the last Service", PATIENCE_SECONDS)
        # The work for the new objects, such as statuses of routes, can go on in the first of these.
        shares = [self.cpu_share(lambda threads: time.sleep(SECONDS))]
        busy = self.cpu_share(self.query_all)
        shares.append(self.cpu_share(lambda threads: time.sleep(SECONDS)))
        idle = min(shares)
        cost = busy - idle
        rate = AUTOSCALERS / SYNC_SECONDS
        print(
            f"{self.id()}: {AUTOSCALERS} Services, {rate:.0f} queries/s: {100 * cost:.2f} % of a core "
            f"({100 * idle:.2f} % without queries, {100 * busy:.2f} % with them)",
            file=sys.stderr,
        )
        self.assertLessEqual(cost, MOST_CPU)

    def make_service(self, index: int) -> None:
        name = f"app-{index}"
        self.make("services", name, spec={"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 3000}]})
        match = {"path": {"type": "PathPrefix", "value": f"/{name}"}}
        backends = [{"name": name, "port": 80}]
        rules = [{"matches": [match], "backendRefs": backends}]
        self.create("httproutes", name, parentRefs=[{"name": "web"}], rules=rules)

    def has_metric(self, index: int) -> bool:
        try:
            return bool(self.query(index))
        except ApiError:
            return False

    def query(self, index: int) -> list[object]:
        path = f"{GROUP}/namespaces/{self.namespace}/sheave_demand"
        return self.api.get(path, labelSelector=f"service=app-{index}")["items"]

    def query_all(self, threads: ThreadPoolExecutor) -> None:
        """Sends a query for each Service in turn, at the intended times."""
        began, interval = time.monotonic(), SYNC_SECONDS / AUTOSCALERS
        sent = []
        for number in range(int(SECONDS / interval)):
            time.sleep(max(0.0, began + number * interval - time.monotonic()))
            sent.append(threads.submit(self.query, number % AUTOSCALERS))
        for query in sent:
            self.assertEqual(len(query.result()), 1)

    def cpu_share(self, work: Callable[[ThreadPoolExecutor], None]) -> float:
        """Returns the processor time of Sheave during the work, as a share of a core."""
        with ThreadPoolExecutor(CONCURRENCY) as threads:
            before, began = cpu_seconds(), time.monotonic()
            work(threads)
            return (cpu_seconds() - before) / (time.monotonic() - began)


def cpu_seconds() -> float:
    """Returns the processor time of all processes of Sheave."""
    program, ticks = STATE / "sheave", 0
    for process in os.listdir("/proc"):
        try:
            if process.isdigit() and os.path.samefile(f"/proc/{process}/exe", program):
                with open(f"/proc/{process}/stat") as stat:
                    ticks += sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
        except OSError:
            continue  # It has ended, or is the kernel's.
    return ticks / os.sysconf("SC_CLK_TCK")
