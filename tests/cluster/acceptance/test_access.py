"""What objects of the cluster make Sheave read and reach: Secrets by name alone, and DNS names in allowed networks."""

import base64
import http.client
import json
import socket
import ssl
import struct
import threading
from typing import ClassVar

from tests.cluster import certificates
from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.gateway import NAMESPACE, POD_NAME, PROBE, GatewayTest, conditions, kubectl
from tests.cluster.layout import MACHINE
from tests.cluster.tests import running
from tests.cluster.tests.running import ECHO, container

CERTS = "certs"
ACCOUNT = "system:serviceaccount:sheave-system:sheave"
A_RECORD = 1
TTL_SECONDS = 1


class NameServer:
    """Answers queries for A records from a table, over UDP."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((MACHINE[0], 0))
        self.address = f"{MACHINE[0]}:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                query, client = self._socket.recvfrom(512)
                self._socket.sendto(self._answer(query), client)
            except OSError:
                return

    def _answer(self, query: bytes) -> bytes:
        labels, end = [], 12
        while length := query[end]:
            labels.append(query[end + 1 : end + 1 + length].decode())
            end += 1 + length
        (kind,) = struct.unpack_from(">H", query, end + 1)
        known = self.addresses.get(".".join(labels).lower(), []) if kind == A_RECORD else []
        record = struct.pack(">HHHIH", 0xC00C, A_RECORD, 1, TTL_SECONDS, 4)
        answers = b"".join(record + socket.inet_aton(address) for address in known)
        return query[:2] + struct.pack(">HHHHH", 0x8180, 1, len(known), 0, 0) + query[12 : end + 5] + answers

    def close(self) -> None:
        self._socket.close()


def setUpModule() -> None:
    gateway.install_chart(
        f"rbac.certificates[0].namespace={CERTS}",
        "rbac.certificates[0].secrets={web-tls}",
        "externalNames.networks={10.244.0.0/16}",
        workload="deployment",
        namespaces=(CERTS,),
    )


tearDownModule = running.stop


class AccessTest(GatewayTest):
    def run_app(self) -> None:
        """Runs a pod behind the Service `web`."""
        labels = {"app": "web"}
        image = container(ECHO, env=[POD_NAME, NAMESPACE], readinessProbe=PROBE)
        template = {"metadata": {"labels": labels}, "spec": {"containers": [image]}}
        self.make("deployments", "web", spec={"replicas": 1, "selector": {"matchLabels": labels}, "template": template})
        self.make("services", "web", spec={"selector": labels, "ports": [{"port": 80, "targetPort": 3000}]})

    def wait_for_message(self, path: str, text: str) -> None:
        """Waits for a condition whose message contains this text."""
        messages = lambda: [it["message"] for it in conditions(self.api.get(path).get("status"))]  # noqa: E731
        self.wait(lambda: any(text in message for message in messages()), f"{text!r} in the status of {path}")


class CertificatesTest(AccessTest):
    SECRETS: ClassVar = f"/api/v1/namespaces/{CERTS}/secrets"

    def make_secret(self, name: str, certificate: str) -> None:
        files = {"tls.crt": certificates.certificate(certificate), "tls.key": certificates.key(certificate)}
        data = {key: base64.b64encode(file.read_bytes()).decode() for key, file in files.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
        self.api.apply(f"{self.SECRETS}/{name}", secret)

    def served_certificate(self, host: str) -> bytes | None:
        """Returns the certificate that a client of this host gets, if the handshake succeeds."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with (
                socket.create_connection((self.address, 443), timeout=5) as connection,
                context.wrap_socket(connection, server_hostname=host) as client,
            ):
                return client.getpeercert(binary_form=True)
        except OSError:
            return None

    def wait_for_certificate(self, host: str, certificate: str | None) -> None:
        expected = certificate and ssl.PEM_cert_to_DER_cert(certificates.certificate(certificate).read_text())
        self.wait(lambda: self.served_certificate(host) == expected, f"certificate {certificate} of {host}")

    def can(self, *words: str) -> bool:
        """True if Sheave's token permits this."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": ACCOUNT,
                "resourceAttributes": dict(zip(("verb", "resource", "name"), words, strict=False), namespace=CERTS),
            },
        }
        return self.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"]

    def test_named_secrets_are_served_and_rotated_and_others_are_refused(self) -> None:
        self.assertTrue(self.can("watch", "secrets", "web-tls"))
        for words in (("list", "secrets"), ("get", "secrets", "other-tls"), ("list", "configmaps")):
            self.assertFalse(self.can(*words), words)
        self.make_secret("web-tls", "api-server")
        self.make_secret("other-tls", "api-server")
        listeners = [
            {
                "name": name,
                "port": 443,
                "protocol": "HTTPS",
                "hostname": f"{name}.{self.host}",
                "tls": {"certificateRefs": [{"name": f"{name}-tls"}]},
            }
            for name in ("web", "other")
        ]
        self.create("gateways", "web", CERTS, gatewayClassName="sheave", listeners=listeners)
        path = self.path("gateways", "web", CERTS)
        self.addCleanup(self.api.delete, path)
        self.wait_for_certificate(f"web.{self.host}", "api-server")
        self.wait_for_message(path, f"Secret {CERTS}/other-tls cannot be read: the API server refuses it")
        self.assertIsNone(self.served_certificate(f"other.{self.host}"))

        self.make_secret("web-tls", "to-kubelet")
        self.wait_for_certificate(f"web.{self.host}", "to-kubelet")
        self.api.delete(f"{self.SECRETS}/web-tls")
        self.wait_for_certificate(f"web.{self.host}", None)
        self.wait_for_message(path, f"there is no Secret {CERTS}/web-tls")
        self.make_secret("web-tls", "api-server")
        self.wait_for_certificate(f"web.{self.host}", "api-server")


class ExternalNamesTest(AccessTest):
    names: ClassVar[NameServer]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.names = NameServer()
        cls.addClassCleanup(cls.names.close)
        flag = {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": f"--dns={cls.names.address}"}
        deployment = ("--namespace", "sheave-system")
        kubectl(*deployment, "patch", "deployment/sheave", "--type=json", f"--patch={json.dumps([flag])}")
        kubectl(*deployment, "rollout", "status", "--timeout=90s", "deployment/sheave")

    def serve_name(self, name: str) -> None:
        """Creates an ExternalName Service with a route to it, for the host of the same name."""
        service = {"type": "ExternalName", "externalName": name, "ports": [{"port": 3000}]}
        self.make("services", name.split(".")[0], spec=service)
        listener = {"name": "http", "port": 80, "protocol": "HTTP", "hostname": name}
        short = name.split(".")[0]
        self.create("gateways", short, gatewayClassName="sheave", listeners=[listener])
        rules = [{"backendRefs": [{"name": short, "port": 3000}]}]
        self.create("httproutes", short, parentRefs=[{"name": short}], rules=rules)

    def status(self, host: str) -> int | None:
        """Returns the status of a response, or None if there is none yet."""
        connection = http.client.HTTPConnection(self.address, 80, timeout=2)
        try:
            connection.request("GET", "/", headers={"Host": host})
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()

    def pod_address(self) -> str:
        pods = lambda: self.api.get(self.path("pods"), labelSelector="app=web")["items"]  # noqa: E731
        ready = self.wait(lambda: [pod for pod in pods() if running.is_ready(pod)], "a ready pod")
        return ready[0]["status"]["podIP"]

    def test_answers_outside_the_allowed_networks_are_no_endpoints(self) -> None:
        self.run_app()
        pod = self.pod_address()
        own = self.api.get("/api/v1/namespaces/sheave-system/pods")["items"][0]["status"]["podIP"]
        bad = {
            "loopback": "127.0.0.1",
            "metadata": "169.254.169.254",
            "service": "10.96.0.1",
            "own": own,
        }
        self.names.addresses = {f"{name}.{self.host}": [address] for name, address in bad.items()}
        self.names.addresses[f"good.{self.host}"] = [pod, "127.0.0.1"]
        for name in ("good", *bad):
            self.serve_name(f"{name}.{self.host}")
        self.wait(lambda: self.status(f"good.{self.host}") == 200, "an answer of the allowed address")
        for name, address in bad.items():
            self.wait_for_message(self.path("httproutes", name), address)
            self.wait(lambda host=f"{name}.{self.host}": self.status(host) == 503, f"status 503 for {name}")
        # An answer that changes later (DNS rebinding) is filtered too.
        self.names.addresses[f"good.{self.host}"] = ["127.0.0.1"]
        self.wait(lambda: self.status(f"good.{self.host}") == 503, "no endpoint after the answer has changed")

    def test_names_of_the_cluster_are_refused(self) -> None:
        self.serve_name("web.other.svc.cluster.local")
        self.wait_for_message(self.path("httproutes", "web"), "cluster")
