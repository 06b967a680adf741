"""Experiments in the test cluster, without one: objects, output of nodes and pods, claims and the command line."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from lab import experiment, report
from lab.article.answers import Answer
from lab.article.in_cluster import renamed, replica_template
from lab.article.locust_run import parse
from lab.article002.calls import Call, common_time, scaled_result
from lab.article002.in_cluster import read_client
from lab.article002.rows import REPLICAS
from lab.kubernetes import containers, session
from lab.kubernetes.agents import has_address
from lab.kubernetes.client_pods import OutputReader
from lab.kubernetes.deployment import established, objects
from lab.kubernetes.endpoints import ready_pods
from lab.paths import REPOSITORY
from tests.cluster.api import Object

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue\n"


def endpoint(name: str, *, ready: bool = True) -> Object:
    return {
        "nodeName": "n1",
        "targetRef": {"kind": "Pod", "name": name, "uid": f"uid-of-{name}"},
        "conditions": {"ready": ready},
    }


class ObjectsTest(unittest.TestCase):
    def test_folders_within_others_are_mounted_once(self) -> None:
        self.assertEqual(containers.outermost(["/a", "/a/.cache/venv", "/opt/python", "/a"]), ["/a", "/opt/python"])
        self.assertFalse(containers.is_within("/usrlocal", "/usr"))

    def test_replica_has_the_article_s_quota_and_writes_to_its_folder_alone(self) -> None:
        spec = replica_template(100, Path("/logs"))
        (container,) = spec["containers"]
        self.assertEqual(container["resources"]["limits"], {"cpu": "100m"})
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        self.assertEqual(writable, [containers.SHARED])
        self.assertIn({"name": "shared", "hostPath": {"path": "/logs"}}, spec["volumes"])
        self.assertIn(str(REPOSITORY), [mount["mountPath"] for mount in container["volumeMounts"]])

    def test_service_selects_the_pods_of_the_deployment(self) -> None:
        service, deployment = objects({"containers": []}, 5080, 2)
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        self.assertEqual(service["spec"]["selector"], labels)
        self.assertEqual(service["spec"]["ports"], [{"port": 80, "targetPort": 5080}])
        self.assertEqual(deployment["spec"]["replicas"], 2)


class ReadingTest(unittest.TestCase):
    def test_only_ready_pods_are_endpoints(self) -> None:
        slices = [{"endpoints": [endpoint("a"), endpoint("b", ready=False)]}, {"endpoints": None}, {}]
        self.assertEqual(ready_pods(slices), [("a", "uid-of-a", "n1")])

    def test_established_connections_of_a_port_are_counted(self) -> None:
        rows = (
            "   0: 00000000:13D8 00000000:0000 0A 00000000:00000000\n"
            "   1: 0301F40A:13D8 0201F40A:C350 01 00000000:00000000\n"
            "   2: 0301F40A:13D8 0201F40A:C351 06 00000000:00000000\n"
            "   3: 0301F40A:C352 0201F40A:13D8 01 00000000:00000000\n"
        )
        self.assertEqual(established(HEAD + rows, 5080), 1)
        self.assertEqual(established(HEAD, 5080), 0)

    def test_address_counts_in_a_set_of_sheave_s_alone(self) -> None:
        def listing(table: str, *elements: object) -> str:
            found = {"family": "inet", "name": "services4", "table": table, "elem": list(elements)}
            return json.dumps({"nftables": [{"metainfo": {}}, {"set": found}]})

        ours = listing("sheave_15006", {"concat": ["10.96.0.7", 80]})
        self.assertTrue(has_address(ours, "10.96.0.7", 80))
        self.assertFalse(has_address(ours, "10.96.0.7", 443))
        self.assertFalse(has_address(listing("kube-proxy", {"concat": ["10.96.0.7", 80]}), "10.96.0.7", 80))
        self.assertFalse(has_address(listing("sheave_15006", "10.96.0.7"), "10.96.0.7", 80))

    def test_file_is_read_line_by_line_while_it_grows(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "output"
            reader = OutputReader(path)
            self.assertEqual((reader.has_content(), reader.lines()), (False, []))
            with path.open("a") as file:
                for written, lines in (("one\ntw", ["one"]), ("o\n\n", ["two", ""]), ("three", []), ("\n", ["three"])):
                    file.write(written)
                    file.flush()
                    self.assertEqual(reader.lines(), lines)
            self.assertTrue(reader.has_content())

    def test_lines_of_users_are_answers_or_joins(self) -> None:
        answer = Answer(sent=1.5, seconds=0.5, replica="app-5b7b768947-vg8nq", failure=None)
        self.assertEqual(parse('{"joined": 1.0}'), 1.0)
        line = '{"sent": 1.5, "seconds": 0.5, "replica": "app-5b7b768947-vg8nq", "failure": null}'
        self.assertEqual(parse(line), answer)
        self.assertIsNone(parse("[2026-11-20] n1/WARNING/root: CPU usage above 90%!"))
        self.assertEqual(renamed(answer, {"app-5b7b768947-vg8nq": "app-1"}).replica, "app-1")
        self.assertIsNone(renamed(Answer(1.0, 0.5, None, "503"), {}).replica)

    def test_calls_of_clients_count_while_all_send(self) -> None:
        names = {"app-x": "app-1"}
        first = read_client(["ready", "1.0,0.1,app-x,OK", "2.0,0.1,app-x,OK", "3.0,0.1,,Unavailable"], names)
        second = read_client(["ready", "1.5,0.1,app-x,OK", "2.5,0.1,app-x,OK"], names)
        self.assertEqual(first[0], Call(1.0, 0.1, "app-1", "OK"))
        self.assertEqual([call.sent for call in common_time([first, second])], [1.5, 2.0, 2.5])

    def test_result_of_new_servers_is_that_of_the_worst(self) -> None:
        calls = [Call(at / 10, 0.1, REPLICAS[at % 3], "OK") for at in range(300)]
        result = scaled_result(calls, {"app-2": 9.95, "app-3": 10.15})
        self.assertAlmostEqual(result.first_call_ms, 250)
        self.assertAlmostEqual(result.lowest_share or 0, 1 / 3, delta=0.02)
        idle = scaled_result(calls, {"app-2": 9.95, "app-4": 10.35})
        self.assertEqual((idle.first_call_ms, idle.lowest_share), (float("inf"), 0.0))


class ExperimentTest(unittest.TestCase):
    def test_settings_and_variants_are_those_of_the_cluster(self) -> None:
        for name in ("article-000", "article-002"):
            found = experiment.find(name)
            there = found.with_cluster()
            self.assertEqual(there.parts(["cluster-sheave"]), ("cluster-sheave",))
            self.assertEqual(there.balancers(["cluster-clusterip", "cluster-sheave"]), ["sheave"])
            self.assertLess(set(there.titles), set(found.titles))
            with self.assertRaises(experiment.UnknownName):
                found.parts(["cluster-sheave"])

    def test_claims_of_the_cluster_are_about_its_variants(self) -> None:
        for name in ("article-000", "article-002"):
            found = experiment.find(name)
            variants = {variant["id"] for variant in found.with_cluster().settings["variants"]}
            for claim in found.expectations:
                self.assertEqual(claim.figure.partition(".")[0] in variants, claim.cluster, claim.id)

    def test_other_experiment_or_machine_is_refused_with_the_reason(self) -> None:
        with self.assertRaisesRegex(experiment.UnknownName, "long-line does not run .*: article-000, article-001, article-002"):
            experiment.find("long-line").with_cluster()
        with mock.patch("os.geteuid", return_value=1000):
            self.assertRegex(session.obstacle() or "", "no test cluster: root is required")
        built = mock.patch("tests.cluster.programs.missing", return_value=["etcd"])
        with mock.patch("tests.cluster.cluster.obstacle", return_value=None), built:
            self.assertRegex(session.obstacle() or "", r"is not built \(etcd\): run ")

    def test_experiment_that_runs_only_in_the_cluster_needs_no_flag(self) -> None:
        found = experiment.find("transparent-cost")
        self.assertTrue(found.in_cluster)
        self.assertIs(found.with_cluster(), found)
        self.assertTrue(all(claim.cluster for claim in found.expectations))

    def test_cost_of_transparent_mode_is_compared_within_rounds(self) -> None:
        costs = {
            ("p50", "clusterip"): (100, 200),
            ("p50", "sheave"): (150, 270),
            ("p50", "haproxy"): (160, 280),
            ("proxy CPU", "sheave"): (10, 20),
            ("proxy CPU", "haproxy"): (20, 40),
            ("other address", "without rules"): (50, 100),
            ("other address", "with rules"): (51, 102),
        }
        costs |= {("p99", arm): (900, 900) for arm in ("clusterip", "sheave", "haproxy")}
        rows = [
            {"round": number, "case": case, "arm": arm, "cost": cost}
            for (case, arm), both in costs.items()
            for number, cost in enumerate(both)
        ]
        found = experiment.find("transparent-cost").module().figures(rows)
        self.assertEqual(found["added p50.sheave"].value, 60)
        self.assertEqual(found["proxy CPU: sheave / haproxy"].value, 0.5)
        self.assertEqual(found["other address: with rules / without rules"].value, 1.02)

    def test_refusal_is_a_sentence_and_exit_code_1(self) -> None:
        argv = [sys.executable, "-m", "lab", "run", "proxy-cost", "--cluster"]
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("lab: proxy-cost does not run in the test cluster; these do: article-000", done.stderr)

    def test_runs_in_the_cluster_are_told_from_others(self) -> None:
        found = experiment.find("article-000")
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "raw.csv"
            for variant, expected in (("cluster-sheave", True), ("sheave", False)):
                raw.write_text(f"variant,repetition\n{variant},1\n")
                self.assertEqual(report.is_in_cluster(found, Path(folder)), expected)
