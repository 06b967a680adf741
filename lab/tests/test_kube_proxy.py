"""kube-proxy's rules: chain names, probabilities, and removal of stale chains."""

import unittest
from dataclasses import replace

from lab.testbed.conntrack import established
from lab.testbed.kube_proxy import ServicePort, _hash, rules

SERVICE = ServicePort("default/app:http", "10.43.0.80", 80, 30080, 5080, cluster_subnet="10.42.0.0/16")
QUIC = ServicePort("default/app:quic", "10.43.0.80", 443, 30443, 5443, cluster_subnet="10.42.0.0/16", transport="udp")


def nat(*pods: str) -> list[str]:
    return list(rules([SERVICE], pods)["nat"])


class RulesTest(unittest.TestCase):
    def test_chains_have_the_names_that_every_cluster_knows(self) -> None:
        self.assertEqual(_hash("default/kubernetes:httpstcp"), "NPX46M4PTMTKRN6Y")
        self.assertEqual(_hash("kube-system/kube-dns:dnsudp"), "TCOU7JCQXEZGVUNU")

    def test_each_endpoint_is_as_likely_as_any_other(self) -> None:
        drawn = [rule for rule in nat("a", "b", "c") if "statistic" in rule]
        chances = [rule.split("--probability ")[1].split()[0] for rule in drawn]
        self.assertEqual(chances, ["0.3333333333", "0.5000000000"])

    def test_endpoint_that_asks_itself_is_masqueraded(self) -> None:
        self.assertTrue(any(" -s 10.42.0.11 -j KUBE-MARK-MASQ" in rule for rule in nat("10.42.0.11")))

    def test_node_port_is_looked_at_last(self) -> None:
        self.assertIn("--dst-type LOCAL -j KUBE-NODEPORTS", nat("a")[-1])
        several = rules([SERVICE, QUIC], ["a"])["nat"]
        self.assertEqual(sum("-j KUBE-NODEPORTS" in rule for rule in several), 1)

    def test_port_of_udp_has_rules_of_its_own(self) -> None:
        several = rules([SERVICE, QUIC], ["10.42.0.11"])["nat"]
        leading = [rule for rule in several if "-j DNAT" in rule]
        self.assertTrue(leading[0].endswith("-m tcp -p tcp -j DNAT --to-destination 10.42.0.11:5080"))
        self.assertTrue(leading[1].endswith("-m udp -p udp -j DNAT --to-destination 10.42.0.11:5443"))

    def test_address_of_the_load_balancer_is_external_traffic(self) -> None:
        balanced = replace(SERVICE, load_balancer_address="192.0.2.80")
        chain = f"KUBE-EXT-{_hash('default/app:httptcp')}"
        found = [rule for rule in rules([balanced], ["10.42.0.11"])["nat"] if "192.0.2.80" in rule]
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith('-A KUBE-SERVICES -m comment --comment "default/app:http loadbalancer IP"'))
        self.assertTrue(found[0].endswith(f"-m tcp -p tcp -d 192.0.2.80 --dport 80 -j {chain}"))

    def test_service_without_endpoints_is_refused(self) -> None:
        tables = rules([SERVICE], ())
        self.assertEqual(sum("-j REJECT" in rule for rule in tables["filter"]), 2)
        self.assertFalse(any("DNAT" in rule for rule in tables["nat"]))


class LocalTest(unittest.TestCase):
    """externalTrafficPolicy: Local."""

    service = ServicePort(
        "default/app:http", "10.43.0.80", 80, 30080, 5080, "10.42.0.0/16", external_traffic_policy="Local"
    )

    def rules(self, *local: str) -> list[str]:
        return list(rules([self.service], ["10.42.0.11", "10.42.3.12"], local)["nat"])

    def test_external_traffic_goes_to_pods_of_this_node_without_masquerading(self) -> None:
        chain = f"KUBE-SVL-{_hash('default/app:httptcp')}"
        own = [rule for rule in self.rules("10.42.3.12") if rule.startswith(f"-A {chain}")]
        self.assertEqual(len(own), 1)
        self.assertIn("-> 10.42.3.12:5080", own[0])
        external = [rule for rule in self.rules("10.42.3.12") if rule.startswith("-A KUBE-EXT-")]
        self.assertEqual(external[-1].split()[-1], chain)
        self.assertTrue(all("--src-type LOCAL" in rule for rule in external if "KUBE-MARK-MASQ" in rule))

    def test_pods_of_the_cluster_go_to_any(self) -> None:
        inside = [rule for rule in self.rules("10.42.3.12") if rule.startswith("-A KUBE-EXT-") and "-s 10.42" in rule]
        self.assertEqual([rule.split()[-1] for rule in inside], [f"KUBE-SVC-{_hash('default/app:httptcp')}"])

    def test_cluster_ip_chooses_among_all(self) -> None:
        drawn = [rule for rule in self.rules("10.42.3.12") if rule.startswith("-A KUBE-SVC-") and "->" in rule]
        self.assertEqual(len(drawn), 2)


class ConntrackTest(unittest.TestCase):
    def test_open_connections_count_for_the_endpoint_that_answers(self) -> None:
        listing = (
            "tcp      6 431999 ESTABLISHED src=10.42.1.2 dst=10.43.0.80 sport=4 dport=80"
            " src=10.42.0.11 dst=10.42.1.2 sport=5080 dport=4 [ASSURED] mark=0 use=1\n"
            "tcp      6 119 TIME_WAIT src=10.42.1.2 dst=10.43.0.80 sport=5 dport=80"
            " src=10.42.0.12 dst=10.42.1.2 sport=5080 dport=5 [ASSURED] mark=0 use=1\n"
        )
        self.assertEqual(established(listing), {"10.42.0.11": 1})

    def test_flow_counts_once_both_sides_go_on(self) -> None:
        listing = (
            "udp      17 119 src=10.42.1.2 dst=10.43.0.80 sport=4 dport=443"
            " src=10.42.0.11 dst=10.42.1.2 sport=5443 dport=4 [ASSURED] mark=0 use=1\n"
            "udp      17 29 src=10.42.1.2 dst=10.43.0.80 sport=5 dport=443 [UNREPLIED]"
            " src=10.42.0.12 dst=10.42.1.2 sport=5443 dport=5 mark=0 use=1\n"
        )
        self.assertEqual(established(listing, "udp"), {"10.42.0.11": 1})
