"""Services of Gateways: each has its own address, although all Gateways share Sheave's pods."""

import http.client

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.gateway import NAMESPACE, POD_NAME, PROBE, GatewayTest
from tests.cluster.acceptance.load import Load
from tests.cluster.api import Object
from tests.cluster.tests import running
from tests.cluster.tests.running import ECHO, container

tearDownModule = running.stop

SERVICES = "/api/v1/namespaces/sheave-system/services"


def setUpModule() -> None:
    gateway.install_chart("service.perGateway=true", "lowPorts=false", workload="deployment")


class ServicesTest(GatewayTest):
    def setUp(self) -> None:
        super().setUp()
        for name in ("one", "two"):
            self.run_app(name)
            self.make_gateway(name, 80)

    def find_address(self) -> None:
        """Does nothing, because each Gateway has its own address."""

    def run_app(self, name: str) -> None:
        image = container(ECHO, env=[POD_NAME, NAMESPACE], readinessProbe=PROBE)
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [image]}}
        self.make("deployments", name, spec={"selector": {"matchLabels": labels}, "template": template})
        self.make("services", name, spec={"selector": labels, "ports": [{"port": 80, "targetPort": 3000}]})

    def make_gateway(self, name: str, port: int) -> None:
        """Creates a Gateway that sends all requests to the Service of that name."""
        listener = {"name": "http", "port": port, "protocol": "HTTP"}
        infrastructure = {"labels": {"team": name}, "annotations": {"lb.test/of": name}}
        self.create("gateways", name, gatewayClassName="sheave", listeners=[listener], infrastructure=infrastructure)
        rules = [{"backendRefs": [{"name": name, "port": 80}]}]
        self.create("httproutes", name, parentRefs=[{"name": name}], rules=rules)

    def gateway(self, name: str) -> Object:
        return self.api.get(self.path("gateways", name))

    def address_of(self, name: str) -> str:
        given = self.wait(lambda: self.gateway(name)["status"].get("addresses"), f"an address of {name}")
        return given[0]["value"]

    def service_of(self, name: str) -> Object | None:
        services = self.api.get(SERVICES, labelSelector="sheave.dev/front=gateway")["items"]
        wanted = f"{self.namespace}/{name}"
        found = [it for it in services if it["metadata"]["annotations"]["sheave.dev/gateway"] == wanted]
        self.assertLessEqual(len(found), 1)
        return found[0] if found else None

    def app_at(self, address: str, port: int) -> str | None:
        """Returns the application that answers at an address."""
        connection = http.client.HTTPConnection(address, port, timeout=2)
        try:
            connection.request("GET", "/")
            response = connection.getresponse()
            body = response.read().decode()
        except OSError:
            return None
        finally:
            connection.close()
        return next((name for name in ("one", "two") if f'"{name}-' in body), None)

    def test_gateways_with_the_same_port_have_separate_addresses(self) -> None:
        one, two = self.address_of("one"), self.address_of("two")
        self.assertNotEqual(one, two)
        self.wait(lambda: self.app_at(one, 80) == "one", "an answer of one")
        self.wait(lambda: self.app_at(two, 80) == "two", "an answer of two")
        service = self.service_of("one")
        assert service
        self.assertEqual(service["metadata"]["labels"]["team"], "one")
        self.assertEqual(service["metadata"]["annotations"]["lb.test/of"], "one")
        self.assertEqual([it["name"] for it in service["metadata"]["ownerReferences"]], ["sheave-peers"])
        self.assertEqual([it["ip"] for it in service["status"]["loadBalancer"]["ingress"]], [one])
        conditions = {it["type"]: it["status"] for it in self.gateway("one")["status"]["conditions"]}
        self.assertEqual(conditions["Programmed"], "True")
        with Load(one, "any.test", 4, 0.01) as load:
            self.api.delete(self.path("gateways", "two"))
            self.wait(lambda: self.service_of("two") is None, "the end of the Service of two")
            # Sheave reverts foreign changes of its own fields and keeps all other fields.
            path = f"{SERVICES}/{service['metadata']['name']}"
            self.api.patch(path, {"metadata": {"labels": {"team": "unknown", "theirs": "yes"}}})
            self.wait(lambda: self.labels(path).get("team") == "one", "the label of one")
            self.assertEqual(self.labels(path).get("theirs"), "yes")
        self.assertEqual(load.problems(), [])

    def labels(self, path: str) -> dict[str, str]:
        return self.api.get(path)["metadata"]["labels"]

    def test_ports_follow_the_listeners_and_the_address_stays(self) -> None:
        address = self.address_of("one")
        self.wait(lambda: self.app_at(address, 80) == "one", "an answer of one")
        listeners = [{"name": name, "port": port, "protocol": "HTTP"} for name, port in (("http", 80), ("more", 8080))]
        path = self.path("gateways", "one")
        with Load(address, "any.test", 4, 0.01) as load:
            self.api.patch(path, {"spec": {"listeners": listeners}})
            self.wait(lambda: self.app_at(address, 8080) == "one", "an answer at the second port")
        self.assertEqual(load.problems(), [])
        self.assertEqual(self.address_of("one"), address)

    def test_foreign_service_is_not_changed(self) -> None:
        self.address_of("one")
        service = self.service_of("one")
        assert service
        name = service["metadata"]["name"]
        self.api.delete(self.path("gateways", "one"))
        self.wait(lambda: self.service_of("one") is None, "the end of the Service of one")
        theirs = {"metadata": {"name": name}, "spec": {"ports": [{"port": 99}]}}
        self.api.post(SERVICES, theirs)
        self.addCleanup(self.api.delete, f"{SERVICES}/{name}")
        listener = {"name": "http", "port": 80, "protocol": "HTTP"}
        self.create("gateways", "one", gatewayClassName="sheave", listeners=[listener])
        message = self.wait(lambda: self.programmed("one"), "what is said of the Gateway")
        self.assertIn("not Sheave's", message)
        self.assertEqual([it["port"] for it in self.api.get(f"{SERVICES}/{name}")["spec"]["ports"]], [99])

    def programmed(self, name: str) -> str | None:
        """Returns the message that the Gateway's address is in use, if there is one."""
        conditions = self.gateway(name).get("status", {}).get("conditions", [])
        found = [
            it["message"] for it in conditions if it["type"] == "Programmed" and it["reason"] == "AddressNotAssigned"
        ]
        return next((message for message in found if "already" in message), None)
