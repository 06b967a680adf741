"""Configurations of balancers, detection of listeners, and atomic replacement of files."""

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from lab import certificate, network
from lab.balancers import (
    BalancerTask,
    FailurePolicy,
    Placement,
    UnsupportedTask,
    balancer,
    caddy,
    envoy,
    haproxy,
    nginx,
    replace_file,
    sheave,
    traefik,
)
from lab.child import Child
from lab.paths import REPOSITORY, MissingRequirement


class ListensTest(unittest.TestCase):
    def test_listener_is_seen_until_it_is_closed(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            self.assertTrue(network.listens([os.getpid()], port))
        self.assertFalse(network.listens([os.getpid()], port))

    def test_another_process_at_the_port_does_not_count(self) -> None:
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
            code = "print(flush=True); input()"
            with Child([sys.executable, "-c", code], Path(folder) / "log", piped=True) as child:
                child.stdout.readline()
                self.assertFalse(network.listens(child.processes(), server.getsockname()[1]))

    def test_connection_is_no_listener(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
            self.assertFalse(network.listens([os.getpid()], client.getsockname()[1]))


class PacketsDroppedTest(unittest.TestCase):
    def test_machines_own_network_is_left_alone(self) -> None:
        with self.assertRaisesRegex(MissingRequirement, "a network namespace of the lab's own"):
            with network.packets_dropped("127.0.1.1"):
                self.fail("the rules are there")

    def test_address_is_unreachable_in_a_namespace_until_the_end(self) -> None:
        if os.geteuid() != 0 or not shutil.which("iptables-restore") or not shutil.which("ip"):
            self.skipTest("it takes root, iproute2 and iptables")
        code = """
import socket
from lab import network
network.isolate()
with socket.create_server(("127.0.1.1", 0)) as server:
    with network.packets_dropped("127.0.1.1"):
        try:
            socket.create_connection(server.getsockname(), timeout=0.1)
        except TimeoutError:
            print("dropped")
    socket.create_connection(server.getsockname(), timeout=10).close()
    print("delivered")
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        self.assertEqual(done.stdout.split(), ["dropped", "delivered"], done.stderr)

    def test_packets_in_the_other_direction_arrive(self) -> None:
        if os.geteuid() != 0 or not shutil.which("iptables-restore") or not shutil.which("ip"):
            self.skipTest("it takes root, iproute2 and iptables")
        code = """
import socket
from lab import network
network.isolate()
first, second = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
first.bind(("127.0.1.1", 0))
second.bind(("127.0.1.2", 0))
with network.packets_dropped("127.0.1.1", only_sent=True):
    first.sendto(b"dropped", second.getsockname())
    second.sendto(b"received", first.getsockname())
    print(first.recv(100).decode())
first.sendto(b"delivered", second.getsockname())
print(second.recv(100).decode())
"""
        argv = [sys.executable, "-c", code]
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=30)
        self.assertEqual(done.stdout.split(), ["received", "delivered"], done.stderr)


class ReplaceFileTest(unittest.TestCase):
    def test_reader_of_the_old_file_keeps_its_content(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "endpoints.yaml"
            replace_file(path, "old")
            with path.open() as reader:
                replace_file(path, "new")
                self.assertEqual((reader.read(), path.read_text()), ("old", "new"))
            self.assertEqual(os.listdir(folder), ["endpoints.yaml"])


class FailurePolicyTest(unittest.TestCase):
    """The same failure policy in each balancer's terms; attempts may exclude the first one."""

    task = BalancerTask(("127.0.0.1:1",), failure_policy=FailurePolicy(attempts=3, failures=5, connect_timeout_ms=1000))

    def test_envoy_retries_elsewhere_and_ejects(self) -> None:
        self.assertEqual(envoy._route(self.task)["route"]["retry_policy"]["num_retries"], 2)
        cluster = envoy._cluster(self.task, Path("endpoints.json"))
        self.assertEqual(cluster["outlier_detection"]["consecutive_5xx"], 5)
        self.assertEqual(cluster["connect_timeout"], "1.0s")

    def test_haproxy_watches_each_server(self) -> None:
        self.assertIn("observe layer7 error-limit 5 on-error mark-down", haproxy._server("127.0.0.1:1", self.task))

    def test_without_a_failure_policy_nothing_is_watched(self) -> None:
        task = BalancerTask(("127.0.0.1:1",), cap=4)
        self.assertEqual(haproxy._server("127.0.0.1:1", task), "127.0.0.1:1 127.0.0.1:1 maxconn 4")
        self.assertNotIn("retry_policy", envoy._route(task)["route"])
        self.assertNotIn("outlier_detection", envoy._cluster(task, Path("endpoints.json")))


class DefaultsTest(unittest.TestCase):
    """Beginner's configurations: only the program's own defaults affect endpoints and failures."""

    task = BalancerTask(("127.0.1.1:1",), defaults=True)

    def test_sheave_has_no_policy(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            config = sheave._write_config(self.task, Placement.pinned(Path(folder), ()))
            self.assertFalse([path for path in config.iterdir() if "Policy" in path.read_text()])

    def test_envoy_has_endpoints_and_nothing_else(self) -> None:
        self.assertEqual(envoy._cluster(self.task, Path("e.json")).keys(), {"name", "type", "eds_cluster_config"})
        self.assertEqual(envoy._route(self.task)["route"], {"cluster": "endpoints"})

    def test_haproxy_sends_a_request_elsewhere_if_it_cannot_connect(self) -> None:
        self.assertEqual(haproxy._failure_policy(self.task), "    option redispatch")
        self.assertEqual(haproxy._server("127.0.1.1:1", self.task), "127.0.1.1:1 127.0.1.1:1")

    def test_defaults_and_a_failure_policy_contradict_each_other(self) -> None:
        with self.assertRaises(ValueError):
            BalancerTask(
                (), defaults=True, failure_policy=FailurePolicy(attempts=3, failures=5, connect_timeout_ms=1000)
            )


class LimitTest(unittest.TestCase):
    """In-flight limits in each balancer's terms, or an error."""

    def test_sheave_has_a_fixed_or_learned_limit(self) -> None:
        for cap, queue, expected in ((4, None, (4, 1024)), ("auto", None, ("auto", 1024)), (4, 0, (4, 0))):
            with self.subTest(cap=cap, queue=queue), tempfile.TemporaryDirectory() as folder:
                config = sheave._write_config(
                    BalancerTask((), cap=cap, queue=queue), Placement.pinned(Path(folder), ())
                )
                text = (config / "gateway.yaml").read_text()
                self.assertIn(f"  maxInFlightPerEndpoint: {expected[0]}\n", text)
                self.assertIn(f"    maxRequests: {expected[1]}\n", text)

    def test_traefik_limits_all_endpoints_together_and_keeps_connections_or_not(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "dynamic.yaml"
            traefik._write_dynamic(path, 24, ["127.0.0.1:1"])
            limited = json.loads(path.read_text())["http"]
            self.assertEqual(limited["middlewares"]["limit"]["inFlightReq"]["amount"], 24)
            self.assertEqual(limited["routers"]["lab"]["middlewares"], ["limit"])
            traefik._write_dynamic(path, None, ["127.0.0.1:1"])
            self.assertNotIn("middlewares", path.read_text())
        idle = [
            traefik._static("a:1", Path(), keep_idle)["serversTransport"]["maxIdleConnsPerHost"] for keep_idle in (0, 1)
        ]
        self.assertEqual(idle, [-1, 1024])

    def test_balancer_without_a_learned_limit_raises(self) -> None:
        for name in ("haproxy", "nginx", "envoy", "traefik", "caddy"):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder, self.assertRaises(UnsupportedTask):
                balancer(name).start(BalancerTask((), cap="auto"), Placement.pinned(Path(folder), ()))

    def test_caddy_is_given_its_endpoints(self) -> None:
        text = json.dumps(caddy._configuration("127.0.0.1:2", BalancerTask(("127.0.0.1:1",))))
        self.assertIn('"upstreams": [{"dial": "127.0.0.1:1"}]', text)
        self.assertIn('"policy": "least_conn"', text)
        self.assertNotIn("tls", text)


class Http2Test(unittest.TestCase):
    """Endpoint protocols and stream limits in each balancer's terms."""

    task = BalancerTask(("127.0.0.1:1",), endpoint_protocol="grpc", client_streams=5000)

    def test_haproxy_speaks_http2_to_its_servers(self) -> None:
        self.assertEqual(haproxy._server("127.0.0.1:1", self.task), "127.0.0.1:1 127.0.0.1:1 proto h2")

    def test_nginx_has_a_directive_for_calls(self) -> None:
        self.assertIn("grpc_pass grpc://endpoints;", nginx._proxy(self.task))
        self.assertIn("proxy_http_version 2;", nginx._proxy(BalancerTask((), endpoint_protocol="http2")))

    def test_envoy_takes_as_many_streams_as_asked_for(self) -> None:
        self.assertEqual(envoy._http2(self.task.client_streams)["max_concurrent_streams"], 5000)
        self.assertIn("http2_protocol_options", envoy._endpoint_protocol_options(self.task))

    def test_sheave_is_configured_by_objects(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            config = sheave._write_config(self.task, Placement.pinned(Path(folder), ()))
            self.assertIn("kind: GRPCRoute", (config / "routes.yaml").read_text())
            self.assertIn("maxConcurrentStreams: 5000", (config / "gateway.yaml").read_text())
            self.assertFalse((config / "secret.yaml").exists())


class Http3Test(unittest.TestCase):
    """HTTP/3 listeners in each balancer's terms, or an error."""

    def setUp(self) -> None:
        if not shutil.which("openssl"):
            self.skipTest("openssl is not there")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.certificate = certificate.make(self.folder)

    def test_haproxy_binds_the_port_a_second_time(self) -> None:
        task = BalancerTask((), certificate=self.certificate, http3=True)
        self.assertIn("bind quic4@1.2.3.4:5 ssl crt", haproxy._bind_quic(task, "1.2.3.4:5"))
        self.assertNotIn("bind", haproxy._bind_quic(BalancerTask((), certificate=self.certificate), "1.2.3.4:5"))

    def test_sheave_enables_http3_by_policy_and_verifies_endpoints(self) -> None:
        task = BalancerTask(
            (), certificate=self.certificate, http3=True, endpoint_protocol="http3", endpoint_ca=self.certificate
        )
        config = sheave._write_config(task, Placement.pinned(self.folder, ()))
        gateway, trust = ((config / name).read_text() for name in ("gateway.yaml", "trust.yaml"))
        self.assertIn("  http3:\n    enabled: true\n", gateway)
        self.assertIn("    appProtocol: sheave.dev/h3\n", gateway)
        self.assertIn("kind: BackendTLSPolicy", trust)
        self.assertIn("    hostname: lab.example\n", trust)

    def test_sheave_hides_fields_by_a_filter(self) -> None:
        self.assertIn(
            '        remove: ["Alt-Svc"]\n    backendRefs:',
            sheave._routes(BalancerTask((), removed_headers=("Alt-Svc",))),
        )
        self.assertNotIn("filters", sheave._routes(BalancerTask((), routes=2)))

    def test_balancer_without_http3_to_endpoints_raises(self) -> None:
        for name in ("haproxy", "nginx", "envoy", "traefik", "caddy"):
            with self.subTest(name), self.assertRaises(UnsupportedTask):
                balancer(name).start(BalancerTask((), endpoint_protocol="http3"), Placement.pinned(self.folder, ()))


class CertificateTest(unittest.TestCase):
    def test_sheave_gets_it_as_a_secret(self) -> None:
        if not shutil.which("openssl"):
            self.skipTest("openssl is not there")
        with tempfile.TemporaryDirectory() as folder:
            made = certificate.make(Path(folder))
            # HAProxy looks for the key there.
            self.assertEqual(made.key.name, f"{made.chain.name}.key")
            config = sheave._write_config(BalancerTask((), certificate=made), Placement.pinned(Path(folder), ()))
            self.assertIn("    -----BEGIN PRIVATE KEY-----", (config / "secret.yaml").read_text())
            self.assertIn("protocol: HTTPS", (config / "gateway.yaml").read_text())

    def test_client_with_the_same_certificate_is_accepted_at_its_address(self) -> None:
        if not shutil.which("openssl"):
            self.skipTest("openssl is not there")
        with tempfile.TemporaryDirectory() as folder:
            made = certificate.make(Path(folder), "127.0.0.1")
            server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=made.authority)
            server_context.load_cert_chain(made.chain, made.key)
            server_context.verify_mode = ssl.CERT_REQUIRED
            client_context = ssl.create_default_context(cafile=made.authority)
            client_context.load_cert_chain(made.chain, made.key)
            for name in ("127.0.0.1", certificate.HOST):
                client, server = _handshake(client_context, server_context, name)
                self.assertTrue(client and server, name)
            with self.assertRaises(ssl.SSLCertVerificationError):
                _handshake(client_context, server_context, "127.0.0.2")

    def test_caddy_reads_it_and_speaks_http3_if_asked_to(self) -> None:
        pair = certificate.Certificate(Path("/c/chain.pem"), Path("/c/key.pem"), Path("/c/authority.pem"))
        for http3, protocols in ((False, ["h1", "h2"]), (True, ["h1", "h2", "h3"])):
            with self.subTest(http3=http3):
                apps = caddy._configuration("127.0.0.1:2", BalancerTask((), certificate=pair, http3=http3))["apps"]
                self.assertEqual(apps["http"]["servers"]["lab"]["protocols"], protocols)
                files = apps["tls"]["certificates"]["load_files"]
                self.assertEqual(files, [{"certificate": "/c/chain.pem", "key": "/c/key.pem"}])


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> tuple[dict, dict]:
    """Returns the certificate that each end has verified."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(5):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].getpeercert() or {}, ends[1].getpeercert() or {}


class UnsupportedTest(unittest.TestCase):
    def test_task_that_a_balancer_cannot_do_is_refused_before_anything_is_written(self) -> None:
        for name in ("haproxy", "nginx", "envoy", "traefik", "caddy"):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                with self.assertRaises(UnsupportedTask):
                    balancer(name).start(BalancerTask((), routes=5), Placement.pinned(Path(folder), ()))
                self.assertEqual(os.listdir(folder), [])
