"""The kubelet without a cluster: images, environments, volumes, logs and privileges."""

import os
import socket
import tempfile
import threading
import unittest
from datetime import UTC, datetime
from pathlib import Path

from tests.cluster.kubelet import environment, grpc_health, images, logs, resource_metrics, security, volumes
from tests.cluster.kubelet.environment import MissingSource
from tests.cluster.kubelet.images import ImageNotFound
from tests.cluster.kubelet.resource_metrics import RunningContainer
from tests.cluster.kubelet.volumes import VolumeFile

ADDRESSES = {
    "hostname": "p",
    "status.podIP": "10.0.0.1",
    "status.podIPs": "10.0.0.1,fd00::1",
    "status.hostIP": "10.1.1.1",
}
POD = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"app": "a", "tier": "b"}},
    "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
}
DATA = {("secrets", "ns", "s"): {"key": b"hidden"}, ("configmaps", "ns", "m"): {"one": b"1", "two": b"2"}}


def data(kind: str, namespace: str, name: str) -> dict[str, bytes] | None:
    return DATA.get((kind, namespace, name))


class ImagesTest(unittest.TestCase):
    def test_image_is_known_by_its_path_suffix_without_registry_and_tag(self) -> None:
        names = images.names("registry.example:5000/gateway-api/echo-basic:v1@sha256:00")
        self.assertIn("gateway-api/echo-basic", names)
        self.assertLess(names.index("echo-basic:v1"), names.index("gateway-api/echo-basic"))

    def test_missing_program_is_reported(self) -> None:
        with self.assertRaisesRegex(ImageNotFound, r"image x is /nowhere, which does not exist"):
            images.parse("x", {"program": "${PLACE}"}, {"PLACE": "/nowhere"})
        with self.assertRaisesRegex(
            ImageNotFound, r"image x is \$\{PLACE\}, which is not in the cluster's environment"
        ):
            images.parse("x", {"program": "${PLACE}"}, {})

    def test_program_is_the_command_unless_another_is_named(self) -> None:
        image = images.parse("x", {"program": "/bin/sh", "args": ["-c"]}, {})
        self.assertEqual((image.path, image.command, image.args), ("/sh", ["/sh"], ["-c"]))

    def test_every_known_image_parses(self) -> None:
        self.assertEqual(images.find("docker.io/library/busybox:1.36").command, ["sh"])
        with self.assertRaisesRegex(ImageNotFound, "images.toml has no program for it"):
            images.find("registry.example/unknown:1")


class FixedGroup:
    """A control group of this process, with a fixed CPU time."""

    def cpu_seconds(self) -> float:
        return 1.5

    def processes(self) -> set[int]:
        return {os.getpid()}


class EndedGroup(FixedGroup):
    def cpu_seconds(self) -> float:
        raise FileNotFoundError("cpuacct.usage")


class ResourceMetricsTest(unittest.TestCase):
    def test_page_has_cpu_memory_and_start_of_running_containers(self) -> None:
        containers = [
            RunningContainer("ns", "p", "c", FixedGroup(), 1234.5),
            RunningContainer("ns", "gone", "c", EndedGroup(), 1234.5),
        ]
        lines = resource_metrics.text(containers, FixedGroup()).splitlines()
        samples = {line.split()[0]: line.split()[1:] for line in lines if not line.startswith("#")}
        labels = '{container="c",namespace="ns",pod="p"}'
        self.assertEqual(samples[f"container_cpu_usage_seconds_total{labels}"][0], "1.500000")
        self.assertEqual(samples[f"container_start_time_seconds{labels}"], ["1234.500"])
        resident, at = samples[f"container_memory_working_set_bytes{labels}"]
        self.assertGreater(int(resident), 1_000_000)
        self.assertGreater(int(at), 1_700_000_000_000, "milliseconds since the epoch")
        self.assertEqual(samples["node_cpu_usage_seconds_total"][0], "1.500000")
        self.assertFalse([name for name in samples if "gone" in name])


class EnvironmentTest(unittest.TestCase):
    def check(self, container: dict, expected: dict[str, str]) -> None:
        built = environment.build(POD, container, ADDRESSES, data)
        self.assertEqual({name: built.get(name) for name in expected}, expected)

    def test_values_come_from_fields_secrets_and_config_maps(self) -> None:
        self.check(
            {
                "env": [
                    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
                    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "m"}, "prefix": "M_"}],
                "resources": {"limits": {"cpu": "1500m"}},
            },
            {"NAME": "p", "APP": "a", "IP": "10.0.0.1", "SECRET": "hidden", "M_one": "1", "M_two": "2", "CPU": "2"},
        )

    def test_variables_expand_in_order_and_dollars_can_be_meant(self) -> None:
        entries = [{"name": "A", "value": "a"}, {"name": "B", "value": "$(A)-$(C)-$$(A)"}, {"name": "C", "value": "c"}]
        self.check({"env": entries}, {"B": "a-$(C)-$(A)"})

    def test_api_server_is_found_by_its_service(self) -> None:
        self.check({}, {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"})

    def test_missing_source_is_reported_unless_it_is_optional(self) -> None:
        source = {"name": "none", "key": "k"}
        with self.assertRaisesRegex(MissingSource, 'secret "none" not found'):
            environment.build(POD, {"env": [{"name": "X", "valueFrom": {"secretKeyRef": source}}]}, ADDRESSES, data)
        optional = {"secretKeyRef": {**source, "optional": True}}
        self.check({"env": [{"name": "X", "valueFrom": optional}]}, {"X": None})

    def test_quantities(self) -> None:
        for text, value in (("500m", 0.5), ("1Gi", 2**30), ("2", 2), ("1e3", 1000), ("100k", 1e5)):
            self.assertAlmostEqual(environment.quantity(text), value)
        with self.assertRaises(MissingSource):
            environment.quantity("much")


class VolumesTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_content_changes_as_a_whole(self) -> None:
        owner = (os.getuid(), os.getgid())
        self.assertTrue(
            volumes.write(self.folder, {"a": VolumeFile(b"1", 0o644), "b/c": VolumeFile(b"2", 0o600)}, owner)
        )
        before = os.readlink(self.folder / "..data")
        self.assertFalse(
            volumes.write(self.folder, {"a": VolumeFile(b"1", 0o644), "b/c": VolumeFile(b"2", 0o600)}, owner)
        )
        self.assertEqual((self.folder / "b/c").read_bytes(), b"2")
        self.assertTrue(volumes.write(self.folder, {"a": VolumeFile(b"3", 0o644)}, owner))
        self.assertEqual((self.folder / "a").read_bytes(), b"3")
        self.assertFalse((self.folder / "b").is_symlink())
        self.assertFalse((self.folder / before).exists())

    def test_projected_volume_joins_its_sources(self) -> None:
        volume = {
            "name": "v",
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
                    {"configMap": {"name": "m", "items": [{"key": "one", "path": "x/one"}]}},
                    {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                ]
            },
        }
        sources = volumes.VolumeSources(data, lambda audience, seconds: f"{audience} for {seconds}", ADDRESSES)
        files = volumes.Volumes(self.folder, sources)._content(volume, POD)
        contents = {name: file.content for name, file in files.items()}
        self.assertEqual(contents, {"token": b"None for 600", "x/one": b"1", "labels": b'app="a"\ntier="b"\n'})
        self.assertEqual(files["token"].mode, 0o600)

    def test_unknown_kind_of_volume_is_named(self) -> None:
        sources = volumes.VolumeSources(data, lambda audience, seconds: "", ADDRESSES)
        with self.assertRaisesRegex(MissingSource, 'volume "v" is of nfs'):
            volumes.Volumes(self.folder, sources)._content({"name": "v", "nfs": {}}, POD)


class LogsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = Path(folder.name) / "0.log"

    def record(self, text: bytes) -> None:
        reading, writing = os.pipe()
        os.write(writing, text)
        os.close(writing)
        logs.record(reading, self.log)

    def lines(self, since: bytes = b"", tail: int | None = None) -> list[bytes]:
        return [logs.without_stamp(line) for line in logs.read(self.log, since, tail)[0]]

    def test_lines_are_kept_with_their_time(self) -> None:
        self.record(b"one\ntwo\nthree")
        self.assertEqual(self.lines(), [b"one\n", b"two\n", b"three\n"])
        self.assertEqual(self.lines(tail=1), [b"three\n"])
        self.assertEqual(self.lines(since=logs.stamp(datetime.now(UTC))), [])
        self.assertEqual(self.lines(since=logs.stamp(datetime(2020, 1, 1, tzinfo=UTC)))[0], b"one\n")

    def test_last_lines_are_read_although_the_file_is_removed(self) -> None:
        self.record(b"one\n")
        goes_on = iter([True, False])
        heard = []
        for line in logs.follow(self.log, b"", None, lambda: next(goes_on, False)):
            if not line:
                self.record(b"last\n")
                self.log.unlink()
            heard.append(logs.without_stamp(line))
        self.assertEqual(heard, [b"one\n", b"", b"last\n"])

    def test_following_ends_with_the_container_and_loses_nothing(self) -> None:
        self.record(b"one\n")
        goes_on = iter([True, True, False])
        heard = []
        for line in logs.follow(self.log, b"", None, lambda: next(goes_on, False)):
            if line:
                heard.append(logs.without_stamp(line))
            else:
                self.record(b"more\n")
        self.assertEqual(heard[0], b"one\n")
        self.assertIn(b"more\n", heard)


class SecurityTest(unittest.TestCase):
    def test_capabilities_are_dropped_and_added(self) -> None:
        self.assertEqual(security.capabilities({"drop": ["ALL"], "add": ["NET_ADMIN"]}), ["NET_ADMIN"])
        self.assertNotIn("NET_RAW", security.capabilities({"drop": ["NET_RAW"]}))
        self.assertIn("SYS_ADMIN", security.capabilities({"add": ["ALL"]}))

    def test_container_may_not_be_root_where_it_must_not(self) -> None:
        pod = {**POD, "spec": {**POD["spec"], "securityContext": {"runAsNonRoot": True}}}
        with self.assertRaisesRegex(MissingSource, "image will run as root"):
            security.identity(pod, {})
        who = security.identity(pod, {"securityContext": {"runAsUser": 65532, "readOnlyRootFilesystem": True}})
        self.assertEqual((who.user, who.read_only), (65532, True))


class GrpcHealthTest(unittest.TestCase):
    """gRPC health probe against recorded bytes of a real server."""

    def check(self, body: bytes, expected: str | None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            answering = threading.Thread(target=self.answer, args=(server, body))
            answering.start()
            try:
                self.assertEqual(grpc_health.serves(*server.getsockname(), "a.service", 5.0), expected)
            finally:
                answering.join()

    @staticmethod
    def answer(server: socket.socket, body: bytes) -> None:
        connection, _ = server.accept()
        with connection:
            received = b""
            while b"a.service" not in received:
                received += connection.recv(4096)
            settings = grpc_health._frame(grpc_health.SETTINGS, 0, 0, b"")
            head = grpc_health._frame(grpc_health.HEADERS, grpc_health.END_HEADERS, 1, b"\x88")
            data = grpc_health._frame(grpc_health.DATA, 0, 1, b"\0" + len(body).to_bytes(4) + body)
            connection.sendall(settings + head + data)
            connection.recv(4096)

    def test_serving_is_well(self) -> None:
        self.check(b"\x08\x01", None)

    def test_any_other_status_is_not(self) -> None:
        self.check(b"\x08\x02", "service is in status 2")
        self.check(b"", "service is in status 0")


if __name__ == "__main__":
    unittest.main()
