"""Article 003: Services, the rules and objects that data paths get, and the figures of a run."""

import json
import unittest
from pathlib import Path

from lab import experiment
from lab.article003 import ipvs, manifests, nftables, pictures, rows, uml
from lab.article003.arms import DATA_PATHS, service_ports
from lab.article003.figures import figures, inverse, ratios
from lab.article003.measures import StreamReport
from lab.article003.services import VIP, services
from lab.bench import Bench, Row
from lab.figure import Figure
from lab.load import LoadReport

POD = "10.244.2.2"


def settings() -> dict:
    return experiment.find("article-003").settings


def measured(case: str, arm: str, *costs: float, unit: str = rows.CPU) -> list[Row]:
    return [{"round": at, "case": case, "arm": arm, "cost": cost, "unit": unit} for at, cost in enumerate(costs)]


class ServicesTest(unittest.TestCase):
    def test_measured_service_is_in_the_middle(self) -> None:
        for count in (1, 2, 1001):
            found = services(count)
            self.assertEqual(len(found), count)
            self.assertEqual(found[(count - 1) // 2].vip, VIP)

    def test_addresses_and_node_ports_are_those_of_one_service_alone(self) -> None:
        found = services(10_000)
        self.assertEqual(len({service.vip for service in found}), 10_000)
        self.assertEqual(len({service.cluster_ip for service in found}), 10_000)
        ports = [port.node_port for service in found for port in service_ports(service)]
        self.assertEqual(len(ports), len(set(ports)))
        self.assertLess(max(ports), 65_536)


class NftablesTest(unittest.TestCase):
    def test_chains_have_the_names_that_every_cluster_knows(self) -> None:
        self.assertEqual(nftables._hashed("ns1/svc1/tcp/p80"), "ULMVA6XW-ns1/svc1/tcp/p80")

    def test_address_of_the_load_balancer_is_masqueraded_and_goes_to_the_pod(self) -> None:
        lines = nftables.rules(services(1), POD, "192.168.100.11").splitlines()
        name = nftables._hashed("default/measured/tcp/p8080")
        self.assertIn(f"add element ip kube-proxy service-ips {{ {VIP} . tcp . 8080 : goto external-{name} }}", lines)
        self.assertIn(f"add rule ip kube-proxy external-{name} mark set mark or 0x4000", lines)
        chosen = [line for line in lines if line.startswith(f"add rule ip kube-proxy service-{name} ")]
        self.assertEqual(len(chosen), 1)
        self.assertTrue(chosen[0].endswith(f"map {{ 0 : {POD} . 8080 }}"))

    def test_table_is_replaced_as_a_whole(self) -> None:
        lines = nftables.rules(services(2), POD, "192.168.100.11").splitlines()
        self.assertEqual(lines[1], "delete table ip kube-proxy")


class IpvsTest(unittest.TestCase):
    def test_every_address_and_port_is_a_virtual_server_of_the_pod(self) -> None:
        lines = ipvs.virtual_servers(services(1)).splitlines()
        self.assertIn(f"-a -t {VIP}:5201 -r {POD}:5201 -m -w 1", lines)
        self.assertEqual(sum(line.startswith("-A") for line in lines), 4)

    def test_address_of_the_load_balancer_is_masqueraded(self) -> None:
        marked = [line for line in ipvs.masquerading(services(1)).splitlines() if VIP in line]
        self.assertEqual(len(marked), 2)
        self.assertTrue(all(line.endswith("-j KUBE-LOAD-BALANCER") for line in marked))


class ManifestsTest(unittest.TestCase):
    objects = [json.loads(text) for text in manifests.documents(services(3)).split("---\n")]

    def test_services_have_an_address_and_the_class_of_sheave(self) -> None:
        found = {each["metadata"]["name"]: each for each in self.objects if each["kind"] == "Service"}
        self.assertEqual(len(found), 3)
        service = found["measured"]
        self.assertEqual(service["spec"]["loadBalancerClass"], "sheave.dev/l4")
        self.assertEqual([each["ip"] for each in service["status"]["loadBalancer"]["ingress"]], [VIP])

    def test_endpoints_name_a_node_that_has_an_address(self) -> None:
        nodes = {each["metadata"]["name"] for each in self.objects if each["kind"] == "Node"}
        slices = [each for each in self.objects if each["kind"] == "EndpointSlice"]
        self.assertEqual(len(slices), 3)
        for each in slices:
            self.assertLessEqual({endpoint["nodeName"] for endpoint in each["endpoints"]}, nodes)


class FiguresTest(unittest.TestCase):
    def test_ratios_are_of_the_same_round(self) -> None:
        data = [*measured("stream-1 CPU", "direct", 1.0, 2.0, 4.0), *measured("stream-1 CPU", "hop", 1.5, 3.0, 6.0)]
        self.assertEqual(figures(data)["stream-1 CPU: hop / direct"].value, 1.5)
        self.assertEqual(figures(data)["stream-1 CPU.direct"].value, 2.0)

    def test_arm_without_a_base_has_no_ratio(self) -> None:
        self.assertEqual(ratios(measured("stream-1 CPU", "hop", 1.0), "stream-1 CPU", "direct"), {})

    def test_inverse_keeps_the_order_of_quartiles(self) -> None:
        self.assertEqual(inverse(Figure(2.0, 1.0, 4.0, 3, "ratio")), Figure(0.5, 0.25, 1.0, 3, "ratio"))

    def test_stream_costs_what_both_ends_take_or_the_whole_machine(self) -> None:
        report = StreamReport(bytes=2_000_000_000, seconds=4.0, cpu_seconds=3.0, machine_cpu_seconds=5.0)
        for whole_machine, cost in ((False, 1.5), (True, 2.5)):
            (row,) = rows.of_stream({"round": 1, "arm": "a"}, "stream-1", report, whole_machine=whole_machine)
            self.assertEqual((row["case"], row["cost"], row["mbit"]), ("stream-1 CPU", cost, 4000.0))
            self.assertEqual(tuple(row), rows.COLUMNS)

    def test_time_without_an_exchange_has_no_quantiles(self) -> None:
        nothing = LoadReport(0, 0, None, 2.0, 0.0, 0.0, 0.0, 0.0, [0], 0, 0)
        found = list(rows.of_exchanges({"round": 1, "arm": "a"}, "connect-1", nothing))
        self.assertEqual([(row["case"], row["cost"]) for row in found], [("connect-1 rate", 0.0)])

    def test_every_claim_has_a_case_and_an_arm(self) -> None:
        cases = {case["id"]: case for case in settings()["cases"]}
        for claim in experiment.find("article-003").expectations:
            measure, _, compared = claim.figure.partition(": ")
            arm, _, base = compared.partition(" / ")
            self.assertLessEqual({arm, base}, set(cases[measure.split()[0]]["arms"]), claim.id)


class SettingsTest(unittest.TestCase):
    def test_cases_name_arms_with_a_data_path(self) -> None:
        arms = settings()["arms"]
        for case in settings()["cases"]:
            self.assertLessEqual(set(case["arms"]), arms.keys(), case["id"])
        self.assertLessEqual({arm["balancer"] for arm in arms.values()}, DATA_PATHS.keys())

    def test_only_a_full_run_has_user_mode_linux(self) -> None:
        found = experiment.find("article-003")
        for extent, only, expected in (("usual", (), False), ("full", (), True), ("usual", ("uml",), True)):
            bench = Bench(found, extent, Path(), Path(), only=only)
            chosen = [case["id"] for case in found.module()._chosen_cases(bench)]
            self.assertEqual("uml" in chosen, expected, extent)

    def test_cases_in_user_mode_linux_exist(self) -> None:
        cases = {case["id"]: case for case in settings()["cases"]}
        self.assertLessEqual(set(cases["uml"]["cases"]), cases.keys())

    def test_script_of_user_mode_linux_is_complete(self) -> None:
        script = uml._init_script(Path("/job.json"), Path("/log.txt"))
        self.assertIn("-m lab.article003.in_uml /job.json >/log.txt", script)
        self.assertNotIn("{", script)


class PicturesTest(unittest.TestCase):
    def test_ours_stand_beside_the_articles(self) -> None:
        data = [
            *measured("stream-1 CPU", "direct", 1.0),
            *measured("stream-1 CPU", "iptables-local", 2.0),
            *measured("stream-1 CPU", "iptables-remote", 4.0),
        ]
        article, ours, *_ = pictures.panels(data)
        self.assertAlmostEqual(article.bars["MetalLB (IPVS), other node"].value, 0.15)
        self.assertAlmostEqual(ours.bars["iptables-remote"].value, 0.5)

    def test_cases_that_were_not_run_have_no_panel(self) -> None:
        self.assertEqual(len(pictures.panels([])), 1)


if __name__ == "__main__":
    unittest.main()
