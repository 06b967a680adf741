"""The kubectl plugin against a Sheave in the cluster: by kubectl itself, over the API server."""

import http.client
import json
import os
import shutil
import struct
import subprocess
import threading
import time
import unittest
from pathlib import Path

from tests.cluster.layout import IMAGES, KUBECONFIG, PROGRAMS, REPOSITORY, STATE
from tests.cluster.tests import running
from tests.cluster.tests.running import ECHO, ClusterTest, container

# NET_BIND_SERVICE, which the image gives the program as a file capability.
CAPABILITIES = struct.pack("<5I", 0x02000000, 1 << 10, 0, 0, 0)
GATEWAY_API = "/apis/gateway.networking.k8s.io/v1"
FOLDER = STATE / "plugin"
WIDTH = 80


def find_binary() -> Path:
    """Returns the program under test; skips the tests if none has been built."""
    builds = (REPOSITORY / "target" / profile / "sheave" for profile in ("debug", "release"))
    named = os.environ.get("SHEAVE_BINARY")
    for binary in [Path(named)] if named else list(builds):
        if binary.exists():
            return binary
    raise unittest.SkipTest("there is no program: run `cargo build --package sheave`")


def setUpModule() -> None:
    binary = find_binary()
    running.start()
    program = STATE / "sheave"
    shutil.copy(binary, program)
    os.setxattr(program, "security.capability", CAPABILITIES)
    IMAGES.write_text(f'["sheave"]\nprogram = "{program}"\n')
    FOLDER.mkdir()
    (FOLDER / "kubectl-sheave").symlink_to(program)
    manifests = (REPOSITORY / "deploy/manifests/install.yaml").read_text()
    manifests = manifests.replace("--access-log=off", "--access-log=on")
    kubectl("apply", "--server-side", "--filename", "-", text=manifests)
    kubectl("--namespace", "sheave-system", "rollout", "status", "--timeout=60s", "deployment/sheave")


tearDownModule = running.stop


def run(*words: str, text: str | None = None, kubeconfig: Path = KUBECONFIG) -> subprocess.CompletedProcess[str]:
    """Runs kubectl, which finds the plugin on PATH."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{FOLDER}:{os.environ['PATH']}"}
    argv = [str(PROGRAMS / "kubectl"), *words]
    return subprocess.run(
        argv, input=text, capture_output=True, text=True, check=False, timeout=120, env=environment, cwd=FOLDER
    )


def kubectl(*words: str, text: str | None = None) -> str:
    done = run(*words, text=text)
    if done.returncode:
        raise AssertionError(f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


class PluginTest(ClusterTest):
    def plugin(self, *words: str, kubeconfig: Path = KUBECONFIG, status: int = 0) -> str:
        """Runs `kubectl sheave`; returns what it prints."""
        done = run("sheave", *words, kubeconfig=kubeconfig)
        self.assertEqual(done.returncode, status, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def assert_fits(self, text: str) -> None:
        self.assertLessEqual(max(len(line) for line in text.splitlines()), WIDTH, text)

    def serve(self) -> None:
        """Runs a pod behind a Gateway, and an Ingress with an error."""
        self.host = f"{self.namespace}.test"
        probe = {"httpGet": {"path": "/", "port": 3000}, "periodSeconds": 1}
        pod = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        space = {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
        self.make_pod("web", container(ECHO, env=[pod, space], readinessProbe=probe))
        self.make("services", "web", spec={"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 3000}]})
        listener = {"name": "http", "port": 80, "protocol": "HTTP", "hostname": self.host}
        self.create("gateways", "Gateway", {"gatewayClassName": "sheave", "listeners": [listener]})
        rule = {"backendRefs": [{"name": "web", "port": 80}]}
        self.create("httproutes", "HTTPRoute", {"parentRefs": [{"name": "web"}], "rules": [rule]})
        self.wait_until_ready("web")
        self.wait(self.find_address, "an address for Sheave")
        self.wait(self.is_served, "an answer through the Gateway")

    def create(self, plural: str, kind: str, spec: dict) -> None:
        body = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": {"name": "web"}, "spec": spec}
        self.api.post(f"{GATEWAY_API}/namespaces/{self.namespace}/{plural}", body)

    def find_address(self) -> bool:
        status = self.api.get("/api/v1/namespaces/sheave-system/services/sheave")["status"]
        addresses = status.get("loadBalancer", {}).get("ingress")
        self.address = addresses[0]["ip"] if addresses else ""
        return bool(addresses)

    def is_served(self) -> bool:
        return self.request("/") == 200

    def request(self, path: str) -> int:
        connection = http.client.HTTPConnection(self.address, timeout=5)
        try:
            connection.request("GET", path, headers={"Host": self.host})
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def ingress(self, name: str, annotations: dict[str, str]) -> None:
        backend = {"service": {"name": "web", "port": {"number": 80}}}
        rule = {"host": f"{name}.test", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
        body = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"ingressClassName": "sheave", "rules": [rule]},
        }
        self.api.post(f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/ingresses", body)

    def test_every_command_answers_for_a_running_sheave(self) -> None:
        self.serve()
        where = ("--namespace", self.namespace)
        status = self.plugin("status")
        self.assertIn("Sheave in namespace sheave-system: 2 replicas, version", status)
        self.assertIn("No object has a problem.", status)
        self.assert_fits(status)

        explained = self.plugin("explain", "GET", f"http://{self.host}/cart?a=b c")
        self.assertIn(f"{self.namespace}/web/0", explained)
        self.assert_fits(explained)

        why = self.plugin("why", "web", *where)
        self.assertIn(f"Service {self.namespace}/web: ready", why)
        self.assertEqual(why.count("serving"), 2, why)
        self.assert_fits(why)

        top = self.plugin("top", "--count", "1")
        self.assertIn("2 replicas", top)
        self.assertIn("web:80 ", top)
        self.assert_fits(top)

        self.check_tap()
        self.check_dashboard()

        self.ingress("moved", {"nginx.ingress.kubernetes.io/rewrite-target": "/new"})
        migrated = self.plugin("migrate", *where)
        self.assertIn("kind: HTTPRoute", migrated)
        self.assertIn(f"Ingress {self.namespace}/moved: served", migrated)
        checked = self.plugin_binary("check", "--cluster")
        self.assertIn("objects, fine", checked)

        self.ingress("broken", {"nginx.ingress.kubernetes.io/limit-rps": "many"})
        self.api.patch(
            f"{GATEWAY_API}/namespaces/{self.namespace}/httproutes/web",
            {"spec": {"rules": [{"backendRefs": [{"name": "absent", "port": 80}]}]}},
        )
        # Both replicas have it.
        self.wait(lambda: "many" in (text := run("sheave", "status").stdout) and "absent" in text, "the problems")
        status = self.plugin("status")
        self.assertIn(f"- HTTPRoute {self.namespace}/web: spec.rules[0].backendRefs[0].name", status)
        self.assertNotIn("ResolvedRefs", status)
        self.assert_fits(status)
        self.assertIn(f"- Ingress {self.namespace}/broken: ", status)
        ingresses = f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/ingresses"
        for name in ("moved", "broken"):
            self.api.delete(f"{ingresses}/{name}")
        unrouted = "no route or Ingress of Sheave refers to this Service"
        self.wait(lambda: unrouted in self.reasons("web"), "the reason of a Service without a route")

    def reasons(self, pod: str) -> str:
        """Returns the page of `why` without its line breaks."""
        return " ".join(self.plugin("why", f"{self.namespace}/{pod}").split())

    def plugin_binary(self, *words: str) -> str:
        """Runs the program under its own name."""
        environment = {**os.environ, "KUBECONFIG": str(KUBECONFIG)}
        argv = [str(STATE / "sheave"), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def check_tap(self) -> None:
        ended = threading.Event()

        def send() -> None:
            while not ended.is_set():
                self.request("/tapped?token=s3cret")
                time.sleep(0.05)  # The rate of the requests that are tapped.

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        try:
            words = ("--path", "/tapped", "--status", "2xx", "--count", "3", "--duration", "30s")
            tapped = self.plugin("tap", f"{self.namespace}/web", *words).splitlines()
        finally:
            ended.set()
            sender.join()
        self.assertEqual(len(tapped), 3, tapped)
        for line in tapped:
            self.assertIn(f"GET {self.host}/tapped?...", line)
            self.assertNotIn("s3cret", line)

    def check_dashboard(self) -> None:
        environment = {**os.environ, "KUBECONFIG": str(KUBECONFIG)}
        argv = [str(FOLDER / "kubectl-sheave"), "dashboard"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                address = process.stdout.readline().split("/")[2]
                self.assertIn("<html", fetched(address, "/dashboard/")[1])
                status, body = fetched(address, "/api/v1/overview")
                self.assertEqual((status, json.loads(body)["process"]["phase"]), (200, "ready"))
                self.assertEqual(fetched(address, "/metrics")[0], 404)
                self.assertEqual(fetched(address, "/api/v1/overview", method="POST")[0], 405)
                self.assertEqual(fetched(address, "/api/v1/overview", host="evil.example")[0], 421)
            finally:
                process.terminate()

    def user(self, name: str) -> Path:
        """Returns a kubeconfig that acts as a user of this name."""
        config = json.loads(KUBECONFIG.read_text())
        config["users"][0]["user"]["as"] = name
        path = FOLDER / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def test_missing_permissions_are_named_and_the_documented_role_suffices(self) -> None:
        user = f"viewer-{self.namespace}"
        config = self.user(user)
        refused = self.plugin("status", kubeconfig=config, status=1)
        self.assertIn("you may not list pods in namespace sheave-system", refused)
        role = ("--namespace", "sheave-system", "create", "role", user, "--verb=list", "--resource=pods")
        kubectl(*role)
        kubectl("--namespace", "sheave-system", "create", "rolebinding", user, f"--role={user}", f"--user={user}")
        refused = " ".join(self.plugin("status", kubeconfig=config, status=1).split())
        self.assertIn("you may not get pods/proxy in namespace sheave-system", refused)
        refused = self.plugin("migrate", kubeconfig=config, status=1)
        self.assertIn("you may not list ingresses.networking.k8s.io in the whole cluster", refused)

        kubectl("apply", "--filename", str(REPOSITORY / "deploy/examples/kubectl-rbac.yaml"))
        in_system = ("--namespace", "sheave-system", "create", "rolebinding", f"{user}-view")
        kubectl(*in_system, "--role=sheave-view", f"--user={user}")
        kubectl("create", "clusterrolebinding", user, "--clusterrole=sheave-view-objects", f"--user={user}")
        names = [{"name": name, "value": "x"} for name in ("POD_NAME", "NAMESPACE")]
        self.make_pod("idle", container(ECHO, env=names))
        self.wait_until_ready("idle")
        self.assertIn("2 replicas", self.plugin("status", kubeconfig=config))
        why = self.plugin("why", f"{self.namespace}/idle", kubeconfig=config)
        self.assertIn("no Service has this pod as an endpoint", why)
        none = self.plugin("migrate", "--namespace", self.namespace, kubeconfig=config, status=1)
        self.assertIn("there is no Ingress in the cluster", none)

    def test_what_is_not_there_is_one_sentence(self) -> None:
        for words, part in (
            (("status", "--sheave-namespace", "default"), "there is no Sheave in namespace default"),
            (("status", "--context", "absent"), "the kubeconfig cannot be used"),
            (("status", "--kubeconfig", "/nonexistent"), "the kubeconfig cannot be used"),
            (("why", "absent"), "there is no pod default/absent"),
            (("why", "../secrets"), "cannot be the name of an object"),
            (("top", "--pod", "absent"), "pod sheave-system/absent is no Sheave"),
            (("explain", "GET", "nonsense"), "sheave-"),
        ):
            with self.subTest(words=words):
                text = self.plugin(*words, status=1)
                self.assertIn(part, text)
        config = json.loads(KUBECONFIG.read_text())
        config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
        away = FOLDER / "away.kubeconfig"
        away.write_text(json.dumps(config))
        self.assertIn("cannot reach the API server", self.plugin("status", kubeconfig=away, status=1))


def fetched(address: str, path: str, method: str = "GET", host: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body
