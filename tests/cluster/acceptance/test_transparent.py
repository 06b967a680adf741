"""Requests of kept-alive connections to a ClusterIP: their shares before and after the annotation, and caps."""

import json
import math
import time
import urllib.request
from contextlib import ExitStack, closing

from tests.cluster.acceptance import transparent
from tests.cluster.acceptance.calls import Calls
from tests.cluster.acceptance.gateway import CLIENTS, POD_NAME
from tests.cluster.acceptance.load import Load
from tests.cluster.acceptance.test_sheave import CONNECTS, COUNTER, ECHO_CALLS, SHARE_TOLERANCE
from tests.cluster.acceptance.transparent import WEB, TransparentTest, agents, print_result
from tests.cluster.api import Api
from tests.cluster.layout import KUBECONFIG, NODES
from tests.cluster.tests.running import container

PEERS = "sheave-agents"
# After readiness, a pod has its share within this time; after the annotation, all pods have theirs.
SETTLE_SECONDS = 1.0
ADOPTION_SECONDS = 5.0
WINDOW_SECONDS = 5.0
# A share of a pod that gets nothing: a client that lost its connection may have found it.
UNUSED_SHARE = 0.01
POLL_SECONDS = 0.005
CAP = 4
GREEDY_CLIENTS = 20


def setUpModule() -> None:
    transparent.set_up([f"--peers={PEERS}"], prepare=_publish_peers)


tearDownModule = transparent.tear_down


class SharesTest(TransparentTest):
    """HTTP/1.1. The Service says nothing of its protocol."""

    def begin(self, replicas: int) -> None:
        self.run_app(replicas, WEB)

    def test_new_pods_get_nothing_then_their_share_by_the_annotation_alone(self) -> None:
        self.begin(1)
        with self.loads() as loads:
            old = self.ready()
            grown = self.grow(3)
            time.sleep(2)  # The load before the annotation.
            annotated = time.monotonic()
            self.take(adopt="reset")
            settled = annotated + ADOPTION_SECONDS
            time.sleep(settled + WINDOW_SECONDS - time.monotonic())
        shares = loads.between(grown, annotated)
        unused = 1 - sum(shares[pod] for pod in old) / shares.total()
        after = loads.between(settled, settled + WINDOW_SECONDS)
        print_result(
            f"{self.id()}: share of two new pods {100 * unused:.1f} %, "
            f"after the annotation {sorted(after.values())}, {len(loads.problems())} requests lost by the reset"
        )
        self.assertLessEqual(unused, UNUSED_SHARE)
        self.assert_fair(after, 3)
        # A reset ends one connection, with the requests that it carries.
        self.assertLessEqual(len(loads.problems()), self.lost_by_a_reset())

    def test_no_request_fails_as_pods_scale_and_roll_over(self) -> None:
        self.begin(1)
        self.take()
        with self.loads() as loads:
            old = self.ready()
            grown = self.grow(3) + SETTLE_SECONDS
            time.sleep(grown + WINDOW_SECONDS - time.monotonic())
            pods = self.ready()
            self.scale(1)
            self.wait_for_replicas(1)
            time.sleep(2)  # The load after the pods have gone.
        shares = loads.between(grown, grown + WINDOW_SECONDS)
        print_result(f"{self.id()}: shares 1 s after readiness {sorted(shares.values())}")
        self.assert_no_failure(loads)
        self.assertEqual(set(shares), pods | old)
        self.assert_fair(shares, 3)
        with self.loads() as loads:
            self.roll_out(self.path("deployments", "web"))
        self.assert_no_failure(loads)

    def test_connections_before_the_annotation_stay_where_they_are_by_default(self) -> None:
        self.begin(1)
        with self.loads() as loads:
            old = self.ready()
            self.grow(2)
            self.take()
            taken = time.monotonic()
            time.sleep(WINDOW_SECONDS)
        self.assert_no_failure(loads)
        self.assertEqual(set(loads.between(taken, math.inf)), old)
        with self.loads() as loads:
            time.sleep(WINDOW_SECONDS)
        self.assert_no_failure(loads)
        self.assert_fair(loads.between(0, math.inf), 2)

    def grow(self, replicas: int) -> float:
        """Scales, and returns the time at which the last pod was seen to be ready."""
        self.scale(replicas)
        while len(self.ready()) < replicas:
            time.sleep(POLL_SECONDS)
        return time.monotonic()

    def assert_fair(self, shares: dict[str, int], pods: int) -> None:
        self.assertEqual(len(shares), pods)
        fair = sum(shares.values()) / pods
        for count in shares.values():
            self.assertAlmostEqual(count / fair, 1, delta=SHARE_TOLERANCE)

    def lost_by_a_reset(self) -> int:
        return CLIENTS


class NodeCalls(Calls):
    """Calls of one node's clients."""

    RATE = 200


class GrpcSharesTest(SharesTest):
    """The same with gRPC, where a client has one connection."""

    LOAD = NodeCalls

    def begin(self, replicas: int) -> None:
        self.run_app(replicas, ECHO_CALLS, appProtocol="kubernetes.io/h2c")

    def lost_by_a_reset(self) -> int:
        # Each call takes 2 ms; some are sent before the client knows of the reset.
        return 10 * len(NODES)


class UndeclaredGrpcSharesTest(GrpcSharesTest):
    """The same, but the Service does not say that it is gRPC."""

    def begin(self, replicas: int) -> None:
        self.run_app(replicas, ECHO_CALLS)


class CapTest(TransparentTest):
    def test_agents_keep_to_a_cap_together(self) -> None:
        self.check(dual=False)

    def test_pod_with_an_address_of_each_ip_version_has_one_cap(self) -> None:
        self.check(dual=True)

    def check(self, *, dual: bool) -> None:
        image = container("busybox:1", "python3", "-c", COUNTER, env=[POD_NAME], readinessProbe=CONNECTS)
        self.run_app(5, image, dual=dual)
        self.make_policy(maxInFlightPerEndpoint=CAP)
        self.take()
        for agent in agents.values():
            agent.wait_until("the other agents", "sheave_replicas", len(NODES))
        # The old pods may have counted requests from before the division.
        self.roll_out(self.path("deployments", "web"))
        with ExitStack() as stack:
            loads = [
                stack.enter_context(Load(self.address, "web", GREEDY_CLIENTS, 0.001, network))
                for network in self.networks.values()
            ]
            time.sleep(6)  # More load than the pods may get.
        most = self.most_at_once()
        counts = [len(load.answers) for load in loads]
        print_result(f"{self.id()}: answers of each agent {counts}, at once at each pod {sorted(most)}")
        self.assertEqual(len(most), 5)
        self.assertEqual(max(most), CAP)
        self.assertGreater(min(counts), 0)

    def make_policy(self, **spec: object) -> None:
        body = {
            "apiVersion": "sheave.dev/v1alpha1",
            "kind": "BackendPolicy",
            "metadata": {"name": "web"},
            "spec": {"targetRefs": [{"kind": "Service", "name": "web"}], **spec},
        }
        self.api.post(f"/apis/sheave.dev/v1alpha1/namespaces/{self.namespace}/backendpolicies", body)

    def most_at_once(self) -> list[int]:
        """Returns the highest concurrency of each pod, from the pods themselves."""
        pods = self.api.get(self.path("pods"), labelSelector="app=web")["items"]
        found = []
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                with urllib.request.urlopen(f"http://{pod['status']['podIP']}:3000/", timeout=5) as response:
                    found.append(json.load(response)["most"])
        return found


def _publish_peers() -> None:
    """Publishes the agents as replicas. A chart's pods get this from Kubernetes."""
    with closing(Api(KUBECONFIG)) as api:
        ports = [{"name": "admin", "port": 9900}]
        service = {"metadata": {"name": PEERS}, "spec": {"clusterIP": "None", "ports": ports}}
        api.post("/api/v1/namespaces/default/services", service)
        endpoints = [
            {"addresses": [node.addresses[0]], "nodeName": node.name, "conditions": {"ready": True}} for node in NODES
        ]
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": PEERS, "labels": {"kubernetes.io/service-name": PEERS}},
            "addressType": "IPv4",
            "ports": [{"name": "admin", "port": 9900}],
            "endpoints": endpoints,
        }
        api.post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body)
