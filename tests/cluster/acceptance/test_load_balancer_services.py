"""Services of type LoadBalancer with Sheave as their load balancer: addresses of pools, on the cluster's nodes."""

import http.client
import socket

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.address_owners import AddressOwners
from tests.cluster.acceptance.gateway import NAMESPACE, POD_NAME, PROBE, GatewayTest
from tests.cluster.api import Object
from tests.cluster.layout import MACHINE, POOL
from tests.cluster.tests import running
from tests.cluster.tests.running import ECHO, container

tearDownModule = running.stop

POOLS = "/apis/sheave.dev/v1alpha1/addresspools"
CLASS = "sheave.dev/l4"


def setUpModule() -> None:
    gateway.install_chart("kind=DaemonSet", "hostNetwork=true", "service.enabled=false", "loadBalancer.enabled=true")


class LoadBalancerServicesTest(GatewayTest):
    def setUp(self) -> None:
        super().setUp()
        self.make_pool("all", list(POOL))

    def find_address(self) -> None:
        """Does nothing, because each Service has its own address."""

    def make_pool(self, name: str, addresses: list[str], **spec: object) -> None:
        """Creates a pool for the Services of this test alone."""
        selector = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        full_name = f"{self.namespace}-{name}"
        pool = {
            "apiVersion": "sheave.dev/v1alpha1",
            "kind": "AddressPool",
            "metadata": {"name": full_name},
            "spec": {"addresses": addresses, "namespaceSelector": selector, **spec},
        }
        self.api.post(POOLS, pool)
        self.addCleanup(self.api.delete, f"{POOLS}/{full_name}")

    def run_on(self, node: str, replicas: int) -> None:
        """Starts pods of the application on a node."""
        image = container(ECHO, env=[POD_NAME, NAMESPACE], readinessProbe=PROBE)
        labels = {"app": "web", "on": node}
        spec = {"containers": [image], "nodeName": node, "terminationGracePeriodSeconds": 1}
        template = {"metadata": {"labels": labels}, "spec": spec}
        selector = {"matchLabels": labels}
        self.make("deployments", f"web-{node}", spec={"replicas": replicas, "selector": selector, "template": template})

    def make_service(self, name: str, annotations: dict[str, str] | None = None, **spec: object) -> None:
        metadata = {"name": name, "annotations": annotations or {}}
        ports = [{"port": 80, "targetPort": 3000}]
        spec = {"type": "LoadBalancer", "loadBalancerClass": CLASS, "selector": {"app": "web"}, "ports": ports, **spec}
        self.api.post(self.path("services"), {"metadata": metadata, "spec": spec})

    def status(self, name: str) -> Object:
        return self.api.get(self.path("services", name))["status"]

    def addresses(self, name: str) -> list[str]:
        """Returns the addresses of a Service, once it has some."""
        ingress = self.wait(lambda: self.status(name).get("loadBalancer", {}).get("ingress"), f"an address of {name}")
        self.assertEqual({it["ipMode"] for it in ingress}, {"Proxy"})
        return [it["ip"] for it in ingress]

    def reason(self, name: str) -> str | None:
        """Returns why a Service is not served, if it is not."""
        conditions = self.status(name).get("conditions", [])
        return next((it["reason"] for it in conditions if it["type"] == "sheave.dev/Served"), None)

    def answers(self, address: str = "") -> bool:
        connection = http.client.HTTPConnection(address, 80, timeout=2)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def test_a_service_has_an_address_of_each_family_and_is_served_there(self) -> None:
        self.run_on("n2", 1)
        self.make_service("web", ipFamilyPolicy="RequireDualStack")
        first, second = self.addresses("web")
        self.assertEqual({":" in first, ":" in second}, {True, False})
        for address in (first, second):
            self.wait(lambda at=address: self.answers(at), f"an answer of {address}")
        self.assertEqual(self.reason("web"), "Served")
        # It keeps its address while others come, and gives it up when it is gone.
        self.make_service("other")
        self.addresses("other")
        self.assertEqual(self.addresses("web"), [first, second])
        self.api.delete(self.path("services", "web"))
        self.wait(lambda: not self.answers(first), "an address that is given up")
        self.make_service("later", {"sheave.dev/addresses": f"{first},{second}"}, ipFamilyPolicy="RequireDualStack")
        self.assertEqual(self.addresses("later"), [first, second])
        self.wait(lambda: self.answers(first), "an answer of the next Service")

    def test_two_services_share_an_address_if_both_agree(self) -> None:
        self.run_on("n1", 1)
        key = {"sheave.dev/share-address": "one"}
        self.make_service("web", key)
        self.make_service("web-81", key, ports=[{"port": 81, "targetPort": 3000}])
        self.assertEqual(self.addresses("web"), self.addresses("web-81"))
        (address,) = self.addresses("web")
        self.make_service("thief", {"sheave.dev/addresses": address}, ports=[{"port": 82, "targetPort": 3000}])
        self.wait(lambda: self.reason("thief") == "AddressInUse", "a refusal")

    def test_local_endpoints_alone_are_used_and_their_node_carries_the_address(self) -> None:
        self.run_on("n2", 1)
        self.make_service("web", externalTrafficPolicy="Local")
        (address,) = self.addresses("web")
        with AddressOwners(address) as owners:
            self.wait(lambda: owners.current_owners() == ["n2"], "the address where the endpoint is")
            self.wait(lambda: self.answers(address), "an answer")
            self.run_on("n3", 1)
            self.wait_for_replicas(2)
            self.api.delete(f"/apis/apps/v1/namespaces/{self.namespace}/deployments/web-n2")
            self.wait(lambda: owners.current_owners() == ["n3"], "the address where the last endpoint is", patience=60)
            self.wait(lambda: self.answers(address), "an answer from there")
        self.assertEqual(owners.overlaps(), [])

    def test_other_sources_are_refused(self) -> None:
        self.run_on("n1", 1)
        self.make_service("closed", loadBalancerSourceRanges=["192.0.2.0/24"])
        self.make_service("open", loadBalancerSourceRanges=[f"{MACHINE[0]}/32"])
        (closed,), (opened,) = self.addresses("closed"), self.addresses("open")
        self.wait(lambda: self.answers(opened), "an answer")
        self.wait(lambda: _connects(closed), "a node with the address")
        self.assertFalse(self.answers(closed))

    def test_what_is_wrong_is_said_and_harms_no_other_service(self) -> None:
        self.run_on("n1", 1)
        self.make_service("web")
        (address,) = self.addresses("web")
        self.make_service("outside", loadBalancerIP="198.51.100.1")
        self.make_service("taken", {"sheave.dev/addresses": address})
        self.make_service("wrong", {"sheave.dev/addresses": "nowhere"})
        ports = [{"port": 2905, "protocol": "SCTP", "targetPort": 3000}]
        self.make_service("sctp", ports=ports)
        self.make_pool("twice", [POOL[0]])
        for name, reason in {
            "outside": "AddressOutsidePools",
            "taken": "AddressInUse",
            "wrong": "InvalidAddress",
            "sctp": "UnsupportedProtocol",
        }.items():
            self.wait(lambda name=name, reason=reason: self.reason(name) == reason, f"{reason} of {name}")
        self.wait(lambda: "AddressInUse" in self.event_reasons("taken"), "an Event")
        pool = f"{POOLS}/{self.namespace}-twice"
        self.wait(lambda: _condition(self.api.get(pool), "Conflicted") == "True", "an overlap of pools")
        self.assertEqual(self.addresses("web"), [address])
        self.wait(lambda: self.answers(address), "an answer")

    def event_reasons(self, name: str) -> set[str]:
        events = self.api.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        return {it["reason"] for it in events if it["regarding"]["name"] == name}


def _connects(address: str) -> bool:
    try:
        with socket.create_connection((address, 80), timeout=2):
            return True
    except OSError:
        return False


def _condition(item: Object, kind: str) -> str | None:
    conditions = item.get("status", {}).get("conditions", [])
    return next((it["status"] for it in conditions if it["type"] == kind), None)
