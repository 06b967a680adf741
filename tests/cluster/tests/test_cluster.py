"""A running cluster: pods are reachable, get their configuration, restart, and terminate correctly."""

import hashlib
import json
import os
import pty
import subprocess
import termios
import threading
import time
import unittest
from typing import Any

from tests.cluster import cluster, control_plane, network, nodes
from tests.cluster.api import STRATEGIC_MERGE, ApiUnreachable
from tests.cluster.layout import KUBECONFIG, NODES, PROGRAMS, node
from tests.cluster.tests import running
from tests.cluster.tests.running import ECHO, ClusterTest, container, fetch, is_ready, shell, status_of

setUpModule = running.start
tearDownModule = running.stop

SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "echo"}},
}
ECHO_CONTAINER = container(
    ECHO,
    env=[
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    ],
    readinessProbe={"httpGet": {"path": "/", "port": 3000}, "periodSeconds": 1},
)
TRIED = ("--retry", "20", "--retry-connrefused", "--retry-delay", "1")
QUICK = {"terminationGracePeriodSeconds": 1}


class ServiceTest(ClusterTest):
    def test_deployment_is_reached_by_its_service_from_every_node_in_both_families(self) -> None:
        template = {
            "metadata": {"labels": {"app": "echo"}},
            "spec": {"containers": [ECHO_CONTAINER], "topologySpreadConstraints": [SPREAD], **QUICK},
        }
        selector = {"matchLabels": {"app": "echo"}}
        self.make("deployments", "echo", spec={"replicas": 3, "selector": selector, "template": template})
        ports = [{"port": 80, "targetPort": 3000}]
        dual = {"ipFamilyPolicy": "RequireDualStack", "selector": {"app": "echo"}, "ports": ports}
        service = self.make("services", "echo", spec=dual)
        self.wait(
            lambda: self.api.get(self.path("deployments", "echo"))["status"].get("readyReplicas") == 3,
            "three ready pods",
        )
        four, six = service["spec"]["clusterIPs"]
        for here in NODES:
            for url in (f"http://{four}/", f"http://[{six}]/"):
                with self.subTest(node=here.name, mode=here.proxy_mode, url=url):
                    self.wait(lambda here=here, url=url: self.answers(here, url), "all three pods at the Service")

    def test_load_balancer_of_local_policy_preserves_the_clients_address(self) -> None:
        self.make_pod("echo", ECHO_CONTAINER, nodeName="n2", **QUICK)
        self.wait_until_ready("echo")
        ports = [{"port": 80, "targetPort": 3000}]
        local = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "selector": {"app": "echo"}, "ports": ports}
        self.make("services", "echo", spec=local)
        service = self.wait(lambda: balanced(self.api.get(self.path("services", "echo"))), "an address")
        address = service["status"]["loadBalancer"]["ingress"][0]["ip"]
        self.wait(lambda: '"pod"' in fetch(NODES[0], f"http://{address}/"), "an answer")
        self.wait_for_logs("echo", f"to client ({NODES[0].addresses[0]}:")

    def answers(self, here, url: str) -> bool:
        """Returns true if all pods answer, including those on other nodes."""
        found = set()
        for _ in range(12):
            text = fetch(here, url)
            if text.startswith("{"):
                found.add(json.loads(text)["pod"])
        return len(found) == 3


def balanced(service):
    """Returns the Service when it has an external address."""
    return service if service["status"].get("loadBalancer", {}).get("ingress") else None


class ContentTest(ClusterTest):
    def test_pod_gets_environment_and_volumes_and_sees_them_change(self) -> None:
        self.make("secrets", "s", stringData={"key": "hidden"})
        self.make("configmaps", "m", data={"one": "first\n"})
        script = "echo $NAME $KEY $GREETING; while :; do cat /m/one; sleep 0.05; done"
        self.make_pod(
            "p",
            shell(
                script,
                env=[
                    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
                    {"name": "GREETING", "value": "hello-$(NAME)"},
                ],
                volumeMounts=[{"name": "m", "mountPath": "/m"}],
            ),
            volumes=[{"name": "m", "configMap": {"name": "m"}}],
            **QUICK,
        )
        self.wait_for_logs("p", "p hidden hello-p", "first")
        self.api.patch(self.path("configmaps", "m"), {"data": {"one": "second\n"}})
        self.wait_for_logs("p", "second")

    def test_pod_waits_for_a_missing_object_and_names_it(self) -> None:
        volumes = [{"name": "v", "secret": {"secretName": "late"}}]
        self.make_pod(
            "p", shell("cat /v/key; sleep 100", volumeMounts=[{"name": "v", "mountPath": "/v"}]), volumes=volumes
        )
        self.wait(lambda: any("late" in message for message in self.events("p")), "event that names the Secret")
        self.make("secrets", "late", stringData={"key": "here at last\n"})
        self.wait_for_logs("p", "here at last")

    def test_container_restarts_although_its_secret_is_gone(self) -> None:
        self.make("secrets", "s", stringData={"key": "still here\n"})
        # The container runs while the ConfigMap has this key.
        self.make("configmaps", "m", data={"alive": ""})
        mounts = [{"name": "s", "mountPath": "/s"}, {"name": "m", "mountPath": "/m"}]
        volumes = [{"name": "s", "secret": {"secretName": "s"}}, {"name": "m", "configMap": {"name": "m"}}]
        script = "cat /s/key; while [ -e /m/alive ]; do sleep 0.05; done; exit 1"
        self.make_pod("p", shell(script, volumeMounts=mounts), volumes=volumes, **QUICK)
        self.wait_until_ready("p")
        self.api.delete(self.path("secrets", "s"))
        self.api.patch(self.path("configmaps", "m"), {"data": {"alive": None}})
        self.wait_for_pod("p", lambda pod: status_of(pod)["restartCount"] >= 1, "begun again")
        self.assertEqual(self.logs("p", previous="true"), ["still here"])

    @unittest.skipIf(running.REAL, "there is no image with Python in it")
    def test_pod_asks_the_api_server_with_its_token_by_the_service(self) -> None:
        folder = "/var/run/secrets/kubernetes.io/serviceaccount"
        code = (
            "import os, ssl, urllib.request as r; "
            f"t = open('{folder}/token').read(); c = ssl.create_default_context(cafile='{folder}/ca.crt'); "
            "u = f\"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}/version\"; "
            "print(r.urlopen(r.Request(u, headers={'Authorization': 'Bearer ' + t}), context=c).read().decode())"
        )
        for here in NODES:
            name = f"p-{here.name}"
            self.make_pod(name, container("busybox", "/usr/bin/python3", "-c", code), nodeName=here.name, **QUICK)
            self.wait_for_logs(name, "gitVersion")


class LifeTest(ClusterTest):
    def test_container_with_a_failed_liveness_probe_restarts(self) -> None:
        well = "touch /tmp/well; sleep 1; rm /tmp/well"
        script = f"trap 'echo asked to end; exit 0' TERM; echo begun; {well}; while :; do sleep 0.1; done"
        probe = {"exec": {"command": ["cat", "/tmp/well"]}, "periodSeconds": 1, "failureThreshold": 2}
        self.make_pod("p", shell(script, livenessProbe=probe), **QUICK)
        pod = self.wait_for_pod("p", lambda pod: status_of(pod).get("restartCount", 0) >= 1, "a restart")
        self.assertEqual(status_of(pod)["lastState"]["terminated"]["reason"], "Completed")
        self.assertIn("asked to end", "\n".join(self.logs("p", previous="true")))

    def test_deleted_pod_runs_its_hook_and_has_its_grace(self) -> None:
        hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >/proc/1/fd/1; sleep 1"]}}}
        script = "trap 'echo asked to end; sleep 1; echo done; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
        self.make_pod("p", shell(script, lifecycle=hook), terminationGracePeriodSeconds=20)
        self.wait_for_logs("p", "begun")
        heard: list[str] = []
        following = threading.Thread(target=lambda: heard.extend(self.logs("p", follow="true")))
        following.start()
        began = time.monotonic()
        self.api.delete(self.path("pods", "p"))
        self.wait_until_gone("p")
        self.assertLess(time.monotonic() - began, 15.0)
        following.join()
        self.assertEqual([line for line in heard if line != "begun"], ["hook", "asked to end", "done"])

    def test_pod_that_does_not_listen_is_killed_after_its_grace(self) -> None:
        self.make_pod(
            "p", shell("trap '' TERM; echo begun; while :; do sleep 0.05; done"), terminationGracePeriodSeconds=1
        )
        self.wait_for_logs("p", "begun")
        self.api.delete(self.path("pods", "p"))
        self.wait_until_gone("p")

    def test_terminating_pod_serves_until_it_has_ended(self) -> None:
        hook = {"preStop": {"sleep": {"seconds": 3}}}
        self.make_pod("p", {**ECHO_CONTAINER, "lifecycle": hook}, terminationGracePeriodSeconds=10)
        address = self.wait_until_ready("p")["status"]["podIP"]
        self.api.delete(self.path("pods", "p"))
        pod = self.wait_for_pod("p", lambda pod: "deletionTimestamp" in pod["metadata"], "being deleted")
        self.assertTrue(is_ready(pod))
        self.assertIn('"pod"', fetch(NODES[0], f"http://{address}:3000/"))
        self.wait_until_gone("p")

    def test_init_containers_run_in_order_and_a_sidecar_outlives_the_main_one(self) -> None:
        volume = [{"name": "v", "mountPath": "/v"}]
        first = {**shell("echo one >>/v/log", volumeMounts=volume), "name": "first"}
        sidecar = {**shell("sleep 1000"), "name": "sidecar", "restartPolicy": "Always"}
        second = {**shell("echo two >>/v/log", volumeMounts=volume), "name": "second"}
        self.make_pod(
            "p",
            shell("cat /v/log", volumeMounts=volume),
            initContainers=[first, sidecar, second],
            volumes=[{"name": "v", "emptyDir": {}}],
            restartPolicy="Never",
            **QUICK,
        )
        pod = self.wait_for_pod("p", lambda pod: pod["status"]["phase"] == "Succeeded", "success")
        self.assertEqual(self.logs("p"), ["one", "two"])
        self.assertEqual(
            [status["name"] for status in pod["status"]["initContainerStatuses"]], ["first", "sidecar", "second"]
        )

    def test_pod_is_ready_when_its_port_is_open(self) -> None:
        wrong = {
            **ECHO_CONTAINER,
            "name": "wrong",
            "env": [{"name": "HTTP_PORT", "value": "3100"}, *ECHO_CONTAINER["env"]],
        }
        wrong["env"] += [{"name": "H2C_PORT", "value": "3101"}]
        wrong["readinessProbe"] = {"tcpSocket": {"port": 9}, "periodSeconds": 1}
        right = {**ECHO_CONTAINER, "readinessProbe": {"tcpSocket": {"port": 3000}, "periodSeconds": 1}}
        self.make_pod("p", right, wrong, **QUICK)

        def is_half_ready(pod) -> bool:
            return [known["ready"] for known in pod["status"].get("containerStatuses", [])] == [True, False]

        self.assertFalse(is_ready(self.wait_for_pod("p", is_half_ready, "half of it ready")))

    def test_ready_status_is_restored_after_a_controller_changed_it(self) -> None:
        self.make_pod("p", ECHO_CONTAINER, **QUICK)
        self.wait_until_ready("p")
        lost = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
        self.assertFalse(is_ready(self.api.patch(self.path("pods", "p") + "/status", lost, STRATEGIC_MERGE)))
        self.wait_until_ready("p")

    def test_unknown_image_is_reported(self) -> None:
        self.make_pod("p", container("registry.example/nothing:1"))
        pod = self.wait_for_pod("p", lambda pod: "waiting" in status_of(pod).get("state", {}), "waiting")
        pod = self.wait_for_pod(
            "p", lambda pod: status_of(pod)["state"]["waiting"]["reason"] == "ErrImagePull", "no image"
        )
        if not running.REAL:
            self.assertIn("images.toml", status_of(pod)["state"]["waiting"]["message"])

    def test_container_has_the_user_and_capabilities_and_cpu_that_were_asked_for(self) -> None:
        context = {
            "runAsUser": 65532,
            "capabilities": {"drop": ["ALL"]},
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
        }
        script = "id -u; grep -E 'CapBnd|NoNewPrivs' /proc/self/status; touch /tmp/x || echo read-only; sleep 100"
        limits = {"limits": {"cpu": "200m"}}
        self.make_pod("p", shell(script, securityContext=context, resources=limits), **QUICK)
        lines = self.wait_for_logs("p", "65532", "read-only")
        self.assertIn("CapBnd:\t0000000000000000", lines)
        self.assertIn("NoNewPrivs:\t1", lines)


class ExecTest(ClusterTest):
    """`kubectl exec`, by each of its protocols."""

    WEBSOCKETS = {"WebSocket": "true", "SPDY": "false"}
    RIGHTS = "grep -E '^(Uid|Gid|Groups|CapBnd|NoNewPrivs)' /proc/%s/status"

    def exec(self, *words: str, protocol: str = "WebSocket", **how: Any) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": self.WEBSOCKETS[protocol]}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        nothing = {} if "input" in how else {"stdin": subprocess.DEVNULL}
        return subprocess.run(self.argv(*words), env=environment, check=False, timeout=60, **(pipes | nothing | how))

    def argv(self, *words: str) -> list[str]:
        return [str(PROGRAMS / "kubectl"), "--kubeconfig", str(KUBECONFIG), "exec", "-n", self.namespace, *words]

    def make_sleeping_pod(self) -> None:
        self.make_pod("p", shell("sleep 600"), **QUICK)
        self.wait_until_ready("p")

    def test_command_has_its_output_errors_and_exit_code(self) -> None:
        self.make_sleeping_pod()
        for protocol in self.WEBSOCKETS:
            with self.subTest(protocol=protocol):
                done = self.exec("p", "--", "sh", "-c", "echo out; echo err >&2; exit 7", protocol=protocol)
                self.assertEqual((done.returncode, done.stdout), (7, b"out\n"))
                self.assertTrue(done.stderr.startswith(b"err\n"), done.stderr)
                self.assertEqual(self.exec("p", "--", "true", protocol=protocol).returncode, 0)

    def test_command_reads_input_to_its_end_and_writes_much(self) -> None:
        self.make_sleeping_pod()
        much = os.urandom(3_000_000)
        for protocol in self.WEBSOCKETS:
            with self.subTest(protocol=protocol):
                done = self.exec("-i", "p", "--", "cat", protocol=protocol, input=much)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(hashlib.sha256(done.stdout).digest(), hashlib.sha256(much).digest())

    def test_command_that_ends_does_not_wait_for_its_input(self) -> None:
        self.make_sleeping_pod()
        reading, writing = os.pipe()
        try:
            done = self.exec("-i", "p", "--", "echo", "done", stdin=reading)
        finally:
            os.close(reading)
            os.close(writing)
        self.assertEqual((done.returncode, done.stdout), (0, b"done\n"))

    def test_terminal_has_the_size_of_the_clients(self) -> None:
        self.make_sleeping_pod()
        ours, theirs = pty.openpty()
        try:
            termios.tcsetwinsize(theirs, (40, 100))
            wait_for_size = "test -t 0 && until stty size 2>/dev/null | grep -q '40 100'; do sleep 0.1; done; stty size"
            words = ("-it", "p", "--", "sh", "-c", wait_for_size)
            done = self.exec(*words, stdin=theirs, stdout=theirs, stderr=theirs)
            self.assertEqual((done.returncode, os.read(ours, 100)), (0, b"40 100\r\n"))
        finally:
            os.close(ours)
            os.close(theirs)

    def test_command_has_the_rights_of_its_container(self) -> None:
        limited = {
            "runAsUser": 1000,
            "runAsGroup": 2000,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        root = {"capabilities": {"drop": ["NET_RAW"]}}
        for name, rights in (("limited", limited), ("root", root)):
            self.make_pod(name, shell("sleep 600", securityContext=rights), **QUICK)
        for name in ("limited", "root"):
            self.wait_until_ready(name)
            own = self.exec(name, "--", "sh", "-c", self.RIGHTS % "self").stdout
            self.assertEqual(own, self.exec(name, "--", "sh", "-c", self.RIGHTS % "1").stdout)
            self.assertIn(b"Uid", own)

    def test_container_that_does_not_run_is_named(self) -> None:
        done = {**shell("exit 0"), "name": "done"}
        self.make_pod("p", shell("sleep 600"), done, restartPolicy="Never", **QUICK)
        self.wait_for_pod("p", lambda pod: "terminated" in json.dumps(pod["status"]), "one ended")
        refused = self.exec("-c", "done", "p", "--", "true")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(b"container not found", refused.stderr)

    @unittest.skipIf(running.REAL, "containerd may let the process go on")
    def test_process_ends_with_its_client(self) -> None:
        self.make_sleeping_pod()
        argv = self.argv("p", "--", "sh", "-c", "echo begun; sleep 54321; true")
        # With WebSocket the API server keeps its connection to the kubelet if the command writes nothing.
        environment = {**os.environ, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"}
        client = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment)
        self.assertEqual(client.stdout.readline(), b"begun\n")
        self.assertTrue(self.runs(b"sleep\x0054321"))
        client.kill()
        client.communicate()
        self.wait(lambda: not self.runs(b"sleep\x0054321"), "the end of the command")

    def runs(self, command: bytes) -> bool:
        """Returns true if the pod has a process with this command line."""
        return command in self.exec("p", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline").stdout


class OutageTest(ClusterTest):
    def test_pods_continue_during_an_outage_of_the_api_server(self) -> None:
        self.make_pod("p", ECHO_CONTAINER, nodeName="n2", **QUICK)
        address = self.wait_until_ready("p")["status"]["podIP"]
        control_plane.stop_api_server()
        try:
            with self.assertRaises(ApiUnreachable):
                self.api.get("/version")
            self.assertIn('"pod"', fetch(NODES[0], f"http://{address}:3000/"))
        finally:
            cluster.start_api_server()
        pod = self.api.get(self.path("pods", "p"))
        self.assertEqual((pod["status"]["podIP"], status_of(pod)["restartCount"]), (address, 0))
        self.make_pod("after", ECHO_CONTAINER, nodeName="n2", **QUICK)
        self.wait_until_ready("after")

    def test_node_that_lost_its_power_comes_back_with_its_pods(self) -> None:
        self.make_pod("p", ECHO_CONTAINER, nodeName="n3", **QUICK)
        address = self.wait_until_ready("p")["status"]["podIP"]
        nodes.stop(node("n3"))
        self.assertNotIn('"pod"', fetch(NODES[0], f"http://{address}:3000/"))
        cluster.restart_node(node("n3"))
        pod = self.wait_for_pod("p", lambda pod: status_of(pod)["restartCount"] == 1 and is_ready(pod), "begun again")
        self.assertIn('"pod"', fetch(NODES[0], f"http://{pod['status']['podIP']}:3000/"))


class WayTest(unittest.TestCase):
    def test_address_of_the_pool_is_reached_from_the_machine_wherever_it_is(self) -> None:
        for here in NODES[:2]:
            prefix = network.netns_prefix(here.namespace)
            link = [*prefix, "ip", "address"]
            subprocess.run([*link, "add", "10.200.1.7/32", "dev", "eth0"], check=True)
            serving = subprocess.Popen(
                [*prefix, "python3", "-m", "http.server", "--bind", "10.200.1.7", "8080"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
            )  # fmt: skip
            try:
                answer = subprocess.run(
                    ["curl", "--silent", *TRIED, "http://10.200.1.7:8080/etc/hostname"],
                    capture_output=True,
                    check=False,
                    timeout=60,
                )
                self.assertEqual(answer.returncode, 0)
            finally:
                serving.kill()
                serving.wait()
                subprocess.run([*link, "delete", "10.200.1.7/32", "dev", "eth0"], check=True)
                subprocess.run(["ip", "neighbour", "flush", "to", "10.200.1.7"], check=False)


if __name__ == "__main__":
    unittest.main()
