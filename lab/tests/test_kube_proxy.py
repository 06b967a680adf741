"""kube-proxy's rules: named as it names them, with its probabilities, and nothing stale."""

import unittest

from lab.testbed.conntrack import established
from lab.testbed.kube_proxy import Service, _hash, rules

SERVICE = Service("default/app:http", "10.43.0.80", 80, 30080, cluster_subnet="10.42.0.0/16")


def nat(*endpoints: str) -> list[str]:
    return list(rules(SERVICE, endpoints)["nat"])


class RulesTest(unittest.TestCase):
    def test_chains_have_the_names_that_every_cluster_knows(self) -> None:
        self.assertEqual(_hash("default/kubernetes:httpstcp"), "NPX46M4PTMTKRN6Y")
        self.assertEqual(_hash("kube-system/kube-dns:dnsudp"), "TCOU7JCQXEZGVUNU")

    def test_each_endpoint_is_as_likely_as_any_other(self) -> None:
        drawn = [rule for rule in nat("a:1", "b:1", "c:1") if "statistic" in rule]
        chances = [rule.split("--probability ")[1].split()[0] for rule in drawn]
        self.assertEqual(chances, ["0.3333333333", "0.5000000000"])

    def test_endpoint_that_asks_itself_is_masqueraded(self) -> None:
        self.assertTrue(any(" -s 10.42.0.11 -j KUBE-MARK-MASQ" in rule for rule in nat("10.42.0.11:5080")))

    def test_node_port_is_looked_at_last(self) -> None:
        self.assertIn("--dst-type LOCAL -j KUBE-NODEPORTS", nat("a:1")[-1])

    def test_service_without_endpoints_is_refused(self) -> None:
        tables = rules(SERVICE, ())
        self.assertEqual(sum("-j REJECT" in rule for rule in tables["filter"]), 2)
        self.assertFalse(any("DNAT" in rule for rule in tables["nat"]))


class ConntrackTest(unittest.TestCase):
    def test_open_connections_count_for_who_answers(self) -> None:
        listing = (
            "tcp      6 431999 ESTABLISHED src=10.42.1.2 dst=10.43.0.80 sport=4 dport=80"
            " src=10.42.0.11 dst=10.42.1.2 sport=5080 dport=4 [ASSURED] mark=0 use=1\n"
            "tcp      6 119 TIME_WAIT src=10.42.1.2 dst=10.43.0.80 sport=5 dport=80"
            " src=10.42.0.12 dst=10.42.1.2 sport=5080 dport=5 [ASSURED] mark=0 use=1\n"
        )
        self.assertEqual(established(listing), {"10.42.0.11": 1})
