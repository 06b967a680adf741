"""Replicas that share a cap: the load of an arm, the counts of the pods, and what is read from both."""

import statistics
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from unittest import mock

from lab import experiment
from lab.balancers import BalancerTask, ReplicaSet, envoy, haproxy, sheave
from lab.bench import Bench
from lab.replicas import cases, plan, rows
from lab.replicas.arms import ArmSetup, Traffic, shares
from lab.replicas.faults import FAULTS, Recovery
from lab.replicas.figures import figures
from lab.replicas.plan import PlannedRequest
from lab.replicas.pods import Pod
from lab.replicas.report import OverCapRequest, ServedRequest, TrafficReport

ENDPOINTS = ("127.0.1.1:1", "127.0.1.2:1", "127.0.1.3:1")
EXTENT = {"warmup_seconds": 0.0, "seconds": 0.2, "drain_seconds": 5.0}


class PlanTest(unittest.TestCase):
    def test_plans_of_one_seed_differ_by_their_split_alone(self) -> None:
        options = {"rate": 400.0, "service_seconds": 0.1, "seconds": 20.0, "seed": 7}
        even = plan.draw(split=[1, 1, 1], **options)
        uneven = plan.draw(split=[0.7, 0.2, 0.1], **options)
        self.assertEqual([each.at_seconds for each in even], [each.at_seconds for each in uneven])
        self.assertEqual([each.service_seconds for each in even], [each.service_seconds for each in uneven])
        counts = Counter(each.replica for each in uneven)
        for replica, share in enumerate((0.7, 0.2, 0.1)):
            self.assertAlmostEqual(counts[replica] / len(uneven), share, delta=0.03)

    def test_rate_and_service_times_use_the_wanted_part_of_all_slots(self) -> None:
        rate = plan.rate(load=0.85, cap=4, endpoints=10, service_seconds=0.1)
        planned = plan.draw(rate=rate, split=[1], service_seconds=0.1, seconds=100.0, seed=1)
        work = sum(each.service_seconds for each in planned)
        self.assertAlmostEqual(work / (100.0 * 40), 0.85, delta=0.02)
        gaps = [later.at_seconds - each.at_seconds for each, later in zip(planned, planned[1:], strict=False)]
        self.assertAlmostEqual(statistics.stdev(gaps), 1 / rate, delta=0.05 / rate)


class PodTest(unittest.TestCase):
    def test_requests_over_the_cap_are_counted_with_their_time(self) -> None:
        pod = Pod(number=3, cap=2)
        for now in (0.0, 1.0, 2.0):
            pod.begin(now)
        pod.end(2.5, abandoned=False)
        pod.begin(4.0)
        pod.end(4.25, abandoned=False)
        self.assertEqual([(it.at_seconds, it.endpoint, it.in_flight) for it in pod.over], [(2.0, 3, 3), (4.0, 3, 3)])
        self.assertEqual((pod.max_in_flight, pod.requests, pod.over_seconds), (3, 4, 0.75))

    def test_request_without_a_balancer_stays_in_flight(self) -> None:
        pod = Pod(number=0, cap=1)
        pod.begin(0.0)
        pod.abandoned += 1
        pod.begin(1.0)
        self.assertEqual([(it.in_flight, it.abandoned) for it in pod.over], [(2, 1)])
        pod.end(2.0, abandoned=True)
        self.assertEqual((pod.in_flight, pod.abandoned), (1, 0))


class SharesTest(unittest.TestCase):
    def test_shares_add_up_to_the_cap_and_are_even(self) -> None:
        for cap in (1, 4, 16):
            with self.subTest(cap=cap):
                divided = [shares(ENDPOINTS, cap, 3, number) for number in range(3)]
                for endpoint in ENDPOINTS:
                    self.assertEqual(sum(share.get(endpoint, 0) for share in divided), cap)
                self.assertEqual({sum(share.values()) for share in divided}, {cap})

    def test_balancers_get_their_share_or_the_whole_cap(self) -> None:
        task = BalancerTask(ENDPOINTS, cap=4, caps={ENDPOINTS[0]: 2})
        limits = [haproxy._server(endpoint, task).split()[-1] for endpoint in ENDPOINTS]
        self.assertEqual(limits, ["2", "4", "4"])
        breakers = envoy._cluster(BalancerTask(ENDPOINTS, cap=4), Path("e.json"))["circuit_breakers"]
        self.assertEqual(breakers["per_host_thresholds"], [{"max_connections": 4}])

    def test_sheave_is_told_its_replicas(self) -> None:
        for leases, expected in ((True, ["--lease-slots"]), (False, [])):
            replicas = ReplicaSet(("127.0.2.1:1", "127.0.2.2:1"), "127.0.2.2:1", lease_slots=leases)
            task = BalancerTask(ENDPOINTS, cap=4, replicas=replicas)
            arguments = sheave._replica_arguments(task)
            named = ["--replicas", "127.0.2.1:1,127.0.2.2:1", "--replica", "127.0.2.2:1"]
            self.assertEqual(arguments, [*named, *expected])


class TrafficTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = Path(folder.name) / "traffic.log"

    def test_each_request_goes_to_the_target_of_its_replica_and_pods_count_those_over_the_cap(self) -> None:
        planned = [PlannedRequest(0.0, replica, 0.15) for replica in (0, 0, 1)]
        with Traffic(self.log, cpus=(), endpoints=2, cap=1) as traffic:
            load = traffic.begin(traffic.endpoints, planned, EXTENT, connections=1, processes=())
            report = load.report()
        self.assertEqual((report.failed(), report.served, report.max_in_flight), (0, 3, 2))
        self.assertEqual([(it.endpoint, it.in_flight, it.abandoned) for it in report.over], [(0, 2, 0)])
        for request in report.requests:
            self.assertGreaterEqual(request.served, 0.15)
            self.assertGreaterEqual(request.wait, 0)

    def test_request_to_an_address_where_nothing_listens_has_failed(self) -> None:
        planned = [PlannedRequest(0.0, 0, 0.0), PlannedRequest(0.0, 1, 0.0)]
        with Traffic(self.log, cpus=(), endpoints=1, cap=1) as traffic:
            targets = [traffic.endpoints[0], "127.0.1.9:1"]
            load = traffic.begin(targets, planned, EXTENT, connections=0, processes=())
            report = load.report()
        self.assertEqual((report.failed(), report.failures()), (1, "refused: 1"))


def report_of(requests: list[ServedRequest], over: tuple[OverCapRequest, ...] = ()) -> TrafficReport:
    return TrafficReport(
        requests=tuple(requests),
        warmup_seconds=1.0,
        seconds=4.0,
        cpu_seconds=0.01,
        served=len(requests),
        max_in_flight=5,
        over_seconds=0.0,
        over=over,
        began=100.0,
    )


class ReportTest(unittest.TestCase):
    def test_wait_is_of_requests_after_the_warm_up_without_their_service(self) -> None:
        report = report_of([ServedRequest(0.5, 3.0, 0.1, "200", 0), *[ServedRequest(2.0, 0.3, 0.1, "200", 0)] * 4])
        self.assertAlmostEqual(report.mean_wait_ms(), 200)
        self.assertAlmostEqual(report.p99_wait_ms(), 200)
        self.assertEqual(report.throughput(), 5 / 4)

    def test_request_without_an_answer_has_waited_until_the_end(self) -> None:
        raw = {"sent": [0.05], "took": [0.0], "served_seconds": [0.0], "outcomes": ["no answer"], "cpu_seconds": 0.0}
        counts = {"served": 0, "max_in_flight": 0, "over_seconds": 0.0, "over": []}
        report = TrafficReport.of({**raw, "counts": counts}, [PlannedRequest(0.05, 0, 0.1)], EXTENT, 0.0)
        self.assertAlmostEqual(report.requests[0].wait, 5.15)
        self.assertEqual((report.failed(), report.throughput()), (1, 0))

    def test_request_beside_abandoned_ones_alone_is_told_apart(self) -> None:
        over = (OverCapRequest(2.0, 0, 5, 1), OverCapRequest(2.0, 0, 5, 0), OverCapRequest(2.0, 0, 6, 1))
        self.assertEqual(report_of([], over).over_beyond_abandoned(4), 2)


class FiguresTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        found = experiment.find("replicas")
        self.bench = Bench(found, "usual", Path(folder.name), Path(folder.name))
        self.cases = {case.id: case for case in cases.read(self.bench)}

    def test_every_claim_has_its_figure(self) -> None:
        requests = [ServedRequest(2.0, 0.3, 0.1, "200", replica) for replica in range(3)]
        for case in self.cases.values():
            for arm in case.arms:
                recovery = Recovery(onset=102.0, end=105.0, all_held=106.5, fewest_held=20)
                recorded = (
                    rows.fault_rows(0, case, arm, report_of(requests), recovery)
                    if case.fault
                    else rows.wait_rows(0, case.id, arm, report_of(requests), 6)
                )
                for row in recorded:
                    self.bench.record(row)
        found = figures(self.bench, list(self.cases.values()))
        for claim in self.bench.experiment.expectations:
            self.assertIn(claim.figure, found, claim.id)
        self.assertEqual(found["killed: held"].value, 1.5)
        self.assertEqual(found["cap-4-even-0.85: messages.sheave-leases"].value, 2)
        self.assertTrue(rows.has_format(self.bench.folder / "raw.csv"))

    def test_cases_name_existing_parts(self) -> None:
        settings = self.bench.settings
        for case in self.cases.values():
            self.assertLessEqual(set(case.arms), settings["arms"].keys(), case.id)
            self.assertIn(case.split, settings["splits"], case.id)
            self.assertIn(str(case.cap), settings["pods"], case.id)
            self.assertIn(case.fault, {None, *FAULTS}, case.id)
        self.assertLessEqual(set(settings["quick_variants"]), self.cases.keys())

    def test_each_member_of_an_arm_has_an_address_of_its_own(self) -> None:
        arms = self.bench.settings["arms"]
        with mock.patch("lab.network.free_port", return_value=7):
            of_leases = ArmSetup.of(arms["sheave-leases"], 4, ENDPOINTS, self.bench.folder, (0,))
            of_central = ArmSetup.of(arms["sheave-central"], 4, ENDPOINTS, self.bench.folder, (0,))
        self.assertEqual(of_leases.members, ("127.0.2.1:7", "127.0.2.2:7", "127.0.2.3:7"))
        self.assertEqual(of_central._task(0), BalancerTask(ENDPOINTS, cap=4))
        self.assertEqual(of_leases._task(1).replicas, ReplicaSet(of_leases.members, "127.0.2.2:7", lease_slots=True))
