"""Invalid input: each error is reported on its object, and does not affect a neighbour under load."""

import base64
import http.client
import time
from pathlib import Path

from tests.cluster import certificates
from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.gateway import CLIENTS, GATEWAY_API, KINDS, WEB, GatewayTest, conditions
from tests.cluster.api import APPLY, MERGE
from tests.cluster.tests import running

setUpModule = gateway.install
tearDownModule = running.stop

GRANT = {"apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", "metadata": {"name": "web"}}
# Maximum length of a Service's name and of a label.
LONG = "a" * 63
# Time in which nothing may be written once all statuses are complete.
IDLE_SECONDS = 3.0


class BadInputTest(GatewayTest):
    """`web` is valid and has load; `other` is invalid."""

    def setUp(self) -> None:
        super().setUp()
        self.serve(1, WEB)

    def route(self, name: str, namespace: str = "", service: str = "web") -> None:
        """Creates a route to a Service of the namespace under load, with a host named after the route."""
        parent = {"name": "web", "namespace": self.namespace}
        backend = {"name": service, "port": 80, "namespace": self.namespace}
        hosts, rules = [self.host_of(name)], [{"backendRefs": [backend]}]
        self.create("httproutes", name, namespace, parentRefs=[parent], hostnames=hosts, rules=rules)

    def host_of(self, name: str) -> str:
        return f"{name}.{self.host}"

    def open_gateway(self) -> None:
        """Opens the Gateway to routes of any namespace with subdomains of its host."""
        listener_settings = {"port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}}
        listeners = [
            {"name": "http", "hostname": self.host, **listener_settings},
            {"name": "others", "hostname": f"*.{self.host}", **listener_settings},
        ]
        self.api.patch(self.path("gateways", "web"), {"spec": {"listeners": listeners}})

    def status(self, host: str) -> int:
        connection = http.client.HTTPConnection(self.address, 80, timeout=5)
        try:
            connection.request("GET", "/", headers={"Host": host})
            return connection.getresponse().status
        finally:
            connection.close()

    def wait_for_status(self, host: str, status: int) -> None:
        self.wait(lambda: self.status(host) == status, f"status {status} for {host}")

    def wait_for_reason(self, path: str, kind: str, reason: str) -> str:
        """Waits until a condition at any depth of the status has this reason; returns its message."""

        def message() -> str | None:
            found = conditions(self.api.get(path).get("status", {}))
            messages = (it["message"] for it in found if (it["type"], it["reason"]) == (kind, reason))
            return next((words or "(no words)" for words in messages), None)

        return self.wait(message, f"{kind} with {reason}")

    def test_secret_without_a_key_affects_only_its_own_listener(self) -> None:
        chain = Path(certificates.certificate("api-server")).read_bytes()
        secret = {"metadata": {"name": "half"}, "data": {"tls.crt": base64.b64encode(chain).decode()}}
        self.api.post(f"/api/v1/namespaces/{self.namespace}/secrets", secret)
        listeners = [
            {"name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "half"}]}},
            {"name": "http", "port": 80, "protocol": "HTTP", "hostname": self.host_of("other")},
        ]
        with self.load():
            self.create("gateways", "other", gatewayClassName="sheave", listeners=listeners)
            path = self.path("gateways", "other")
            message = self.wait_for_reason(path, "ResolvedRefs", "InvalidCertificateRef")
            self.assertIn("tls.key", message)
            # The listener serves, although it has no route yet.
            self.wait_for_status(self.host_of("other"), 404)

    def test_port_conflict_of_protocols_is_reported_on_the_younger_listener(self) -> None:
        listener = {"name": "raw", "port": 80, "protocol": "TCP"}
        with self.load():
            self.create("gateways", "other", gatewayClassName="sheave", listeners=[listener])
            path = self.path("gateways", "other")
            self.assertIn("speaks another protocol", self.wait_for_reason(path, "Conflicted", "ProtocolConflict"))

    def test_withdrawn_grant_revokes_its_references(self) -> None:
        namespace = f"{self.namespace}-guest"
        self.api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self.addCleanup(self.api.delete, f"/api/v1/namespaces/{namespace}")
        self.open_gateway()
        come = [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": namespace}]
        grant = {**GRANT, "spec": {"from": come, "to": [{"group": "", "kind": "Service"}]}}
        grants = f"/apis/gateway.networking.k8s.io/v1beta1/namespaces/{self.namespace}/referencegrants"
        self.api.post(grants, grant)
        with self.load():
            self.route("guest", namespace)
            self.wait_for_status(self.host_of("guest"), 200)
            self.api.delete(f"{grants}/web")
            self.wait_for_status(self.host_of("guest"), 500)
            path = self.path("httproutes", "guest", namespace)
            self.wait_for_reason(path, "ResolvedRefs", "RefNotPermitted")

    def test_deleted_service_affects_only_its_own_route(self) -> None:
        self.open_gateway()
        ports = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 3000}]}
        self.make("services", "other", spec=ports)
        self.route("other", service="other")
        path = self.path("httproutes", "other")
        with self.load():
            self.wait_for_status(self.host_of("other"), 200)
            self.api.delete(self.path("services", "other"))
            self.wait_for_status(self.host_of("other"), 500)
            self.wait_for_reason(path, "ResolvedRefs", "BackendNotFound")
            self.make("services", "other", spec=ports)
            self.wait_for_status(self.host_of("other"), 200)
            self.wait_for_reason(path, "ResolvedRefs", "ResolvedRefs")

    def test_names_may_have_the_maximum_length_of_kubernetes(self) -> None:
        self.open_gateway()
        self.make("services", LONG, spec={"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 3000}]})
        with self.load() as load:
            self.route(LONG, service=LONG)
            self.wait_for_status(self.host_of(LONG), 200)
            self.wait(lambda: len(load.answers) > 10 * CLIENTS, "answers")

    def test_duplicate_endpoint_counts_once_and_endpoint_without_conditions_counts(self) -> None:
        self.open_gateway()
        self.make("services", "other", spec={"ports": [{"port": 80, "targetPort": 3000}]})
        pod = self.api.get(self.path("pods"), labelSelector="app=web")["items"][0]["status"]["podIP"]
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        for name, endpoints in (
            ("other-1", [{"addresses": [pod]}] * 2),
            ("other-2", [{"addresses": [pod]}]),
            ("other-3", []),
        ):
            labels = {"kubernetes.io/service-name": "other"}
            body = {"metadata": {"name": name, "labels": labels}, "addressType": "IPv4"}
            self.api.post(slices, {**body, "ports": [{"port": 3000, "protocol": "TCP"}], "endpoints": endpoints})
        with self.load():
            self.route("other", service="other")
            self.wait_for_status(self.host_of("other"), 200)
            self.api.delete(f"{slices}/other-2")
            self.api.delete(f"{slices}/other-1")
            # A backend without endpoints.
            self.wait_for_status(self.host_of("other"), 503)

    def test_foreign_status_is_corrected_once_or_left_if_it_is_not_ours(self) -> None:
        path = self.path("gateways", "web")
        time_of_it = {"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1, "message": ""}
        foreign = {**time_of_it, "type": "example.com/Checked", "status": "True", "reason": "Checked"}
        wrong = {**time_of_it, "type": "Accepted", "status": "False", "reason": "Invalid"}
        body = {**KINDS["gateways"], "metadata": {"name": "web"}, "status": {"conditions": [foreign, wrong]}}
        with self.load():
            self.api.patch(f"{path}/status", body, APPLY, fieldManager="another", force="true")
            self.wait_for_reason(path, "Accepted", "Accepted")
            mended = self.api.get(path)
            time.sleep(IDLE_SECONDS)
            self.assertEqual(self.api.get(path)["metadata"]["resourceVersion"], mended["metadata"]["resourceVersion"])
            kinds = [it["type"] for it in mended["status"]["conditions"]]
            self.assertIn("example.com/Checked", kinds)

    def test_class_of_another_controller_is_ignored(self) -> None:
        theirs = {"metadata": {"name": self.namespace}, "spec": {"controllerName": "example.com/another"}}
        classes = f"{GATEWAY_API}/gatewayclasses"
        self.api.post(classes, {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", **theirs})
        self.addCleanup(self.api.delete, f"{classes}/{self.namespace}")
        with self.load():
            listener = {"name": "http", "port": 80, "protocol": "HTTP", "hostname": self.host_of("other")}
            self.create("gateways", "other", gatewayClassName=self.namespace, listeners=[listener])
            time.sleep(IDLE_SECONDS)
            path = self.path("gateways", "other")
            self.assertEqual({it["reason"] for it in conditions(self.api.get(path)["status"])}, {"Pending"})
            self.api.patch(path, {"spec": {"gatewayClassName": "sheave"}}, MERGE)
            self.wait_for_reason(path, "Programmed", "Programmed")
