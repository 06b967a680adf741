"""A Gateway's clients while pods, Sheave's replicas and the API server change."""

import math
import os
import sys
import time
from contextlib import ExitStack

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.calls import Calls
from tests.cluster.acceptance.gateway import POD_NAME, SYSTEM, WEB, GatewayTest, command, conditions
from tests.cluster.acceptance.load import Load
from tests.cluster.acceptance.replicas import ReplicaGroupTest
from tests.cluster.tests import running
from tests.cluster.tests.running import container

setUpModule = gateway.install
tearDownModule = running.stop

# Tolerance of a share in a window of five seconds, well above chance.
SHARE_TOLERANCE = 0.10
FIRST_REQUEST_SECONDS = 0.1
# Kubernetes' own controllers need this long after an outage.
RETURN_SECONDS = 180.0
# Poll interval for an EndpointSlice.
POLL_SECONDS = 0.005

# Exits at once at SIGTERM, when it no longer receives requests.
ECHO_CALLS = container(
    "lab/echo:1",
    args=["serve", ":3000", "-delay", "2ms"],
    env=[{**POD_NAME, "name": "REPLICA"}],
    readinessProbe={"tcpSocket": {"port": 3000}, "periodSeconds": 1},
    lifecycle={"preStop": {"sleep": {"seconds": 2}}},
)


class PodsTest(GatewayTest):
    def begin(self) -> None:
        self.serve(1, WEB)

    def test_new_pods_have_their_share_at_once_and_no_request_fails_as_pods_come_and_go(self) -> None:
        self.begin()
        with self.load() as load:
            old = self.ready()
            self.scale(3)
            since: dict[str, float] = {}
            while len(since) < 2:
                for pod in self.ready() - old - since.keys():
                    since[pod] = time.monotonic()
                time.sleep(POLL_SECONDS)
            start = max(since.values()) + 0.5
            time.sleep(6)  # The load whose shares are compared.
            self.scale(1)
            self.wait_for_replicas(1)
            time.sleep(2)  # The load after the pods have gone.
        for pod, ready in since.items():
            waited = (load.first(pod) or math.inf) - ready
            print(f"first request {1000 * waited:.0f} ms after readiness was seen", file=sys.stderr)
            self.assertLessEqual(waited, FIRST_REQUEST_SECONDS)
        shares = load.between(start, start + 5)
        print(f"shares over 5 s: {sorted(shares.values())}", file=sys.stderr)
        fair = shares.total() / 3
        for pod in old | since.keys():
            self.assertAlmostEqual(shares[pod] / fair, 1, delta=SHARE_TOLERANCE)
        with self.load():
            self.roll_out(self.path("deployments", "web"))


class GrpcPodsTest(PodsTest):
    """The same tests with gRPC, where a client has one connection."""

    LOAD = Calls

    def begin(self) -> None:
        self.serve(1, ECHO_CALLS, "grpcroutes", appProtocol="kubernetes.io/h2c")


class ReplicasTest(ReplicaGroupTest):
    def test_no_request_fails_as_sheave_is_rolled_over(self) -> None:
        # With Local, the cluster's one address moves to another node and breaks connections. With Cluster it stays, and
        # the test shows only how Sheave terminates.
        service = "/api/v1/namespaces/sheave-system/services/sheave"
        self.api.patch(service, {"spec": {"externalTrafficPolicy": "Cluster"}})
        self.addCleanup(self.api.patch, service, {"spec": {"externalTrafficPolicy": "Local"}})
        self.addCleanup(self.api.patch, SYSTEM, {"spec": {"replicas": 2}})
        self.serve(2, WEB)
        self.have_replicas(3)
        with self.load():
            self.roll_out(SYSTEM)

    def test_no_request_fails_without_the_api_server_and_changes_apply_afterwards(self) -> None:
        self.serve(1, WEB)
        with self.load():
            command("stop-api-server")
            time.sleep(float(os.environ.get("OUTAGE_SECONDS", "60")))
            command("start-api-server")
            self.scale(2)
            self.wait_for_replicas(2, RETURN_SECONDS)
        with self.load() as load:
            self.wait(lambda: len(load.between(0, time.monotonic())) == 2, "requests at the second pod")
            time.sleep(1)  # The load on both.

    def test_replicas_keep_to_a_cap_together_as_they_come_and_go(self) -> None:
        self.serve_counting(5, 4)
        policy = self.limit(maxInFlightPerEndpoint=4)
        self.addCleanup(self.api.patch, SYSTEM, {"spec": {"replicas": 2}})
        self.have_replicas(3)
        shares = "4 requests in flight per endpoint, divided among 3 replicas: 1 each, and 1 more for 1 of them"
        self.wait(
            lambda: condition_message(self.api.get(policy), "CapAssigned").startswith(shares),
            "a status with the shares",
        )
        self.assertTrue(self.youngest_knew_the_others_before_it_served())
        with ExitStack() as stack:
            first = [self.load_of(stack, address) for address in sorted(self.replicas())]
            time.sleep(6)  # The load on three replicas.
            counts = [len(load.answers) for load in first]
            self.have_replicas(2)
            left = self.replicas()
            self.have_replicas(3)
            self.load_of(stack, next(iter(self.replicas() - left)))
            time.sleep(6)  # The load while a replica is new.
        most = [it["most"] for it in self.counts()]
        print(f"answers of each replica in 6 s: {counts}; at once at each pod: {sorted(most)}", file=sys.stderr)
        self.assertEqual(len(most), 5)
        self.assertEqual(max(most), 4)
        self.assertGreater(min(counts), 0)

    def load_of(self, stack: ExitStack, replica: str) -> Load:
        """Sends more load than the replica can take; failures of a terminating replica do not matter here."""
        return stack.enter_context(Load(replica, self.host, 20, 0.001))

    def youngest_knew_the_others_before_it_served(self) -> bool:
        """Returns true if the newest replica knew the others first; until then it would use each whole cap."""
        youngest = max(self.replica_pods(), key=lambda pod: pod["metadata"]["creationTimestamp"])["metadata"]["name"]
        log = gateway.kubectl("--namespace", "sheave-system", "logs", youngest)
        return "slot assignment changed" in log[: log.index("configuration in force")]


def condition_message(policy: dict, condition: str) -> str:
    """Returns the message of a condition in a policy's status, for its only target."""
    messages = (it["message"] for it in conditions(policy.get("status", {})) if it["type"] == condition)
    return next(messages, "")
