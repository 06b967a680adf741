"""Article 001 without a testbed: service times, parsers, scalers and figures."""

import http.server
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from html import escape
from pathlib import Path
from typing import Any

from lab import experiment
from lab.article001 import ab, listing, page, rows, scaling, sheave_admin, uwsgi, variants
from lab.article001.deployment import DeploymentSample, PodLoad, count_served
from lab.article001.figures import figures
from lab.article001.scalers import DemandScaler, RefusalScaler, ReplicaBounds
from lab.article001.work import ServiceTimes, WorkPipe
from lab.child import ChildFailed
from lab.testbed.backlog import Backlog

REPORT = """\
INFO: POST header ==
WARNING: Response code not 2xx (502)
WARNING: Response code not 2xx (500)
WARNING: Response code not 2xx (502)
Concurrency Level:      24
Time taken for tests:   7.500 seconds
Complete requests:      753
Failed requests:        0
Non-2xx responses:      3
Keep-Alive requests:    753
Requests per second:    100.40 [#/sec] (mean)
Time per request:       239.043 [ms] (mean)
Time per request:       9.960 [ms] (mean, across all concurrent requests)

Percentage of the requests served within a certain time (ms)
  50%    214
  99%   1361
 100%   1912 (longest request)
"""


class AbTest(unittest.TestCase):
    def test_report_counts_answers_of_the_application_alone(self) -> None:
        read = ab.read(REPORT)
        self.assertEqual((read.requests, read.seconds, read.mean_ms, read.p99_ms), (753, 7.5, 239.043, 1361))
        self.assertEqual(read.statuses(), {"status_500": 1, "status_502": 2, "status_other": 0, "broken": 0})
        self.assertEqual(read.rps, 100)

    def test_run_that_did_not_finish_is_an_error_with_its_words(self) -> None:
        with self.assertRaisesRegex(ChildFailed, "apr_socket_recv: Connection refused"):
            ab.read("apr_socket_recv: Connection refused (111)")


class WorkTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = WorkPipe(Path(folder.name) / "work")
        self.addCleanup(self.work.close)
        self._reader = os.open(self.work.path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, self._reader)

    def take(self) -> float:
        return struct.unpack("=d", os.read(self._reader, 8))[0]

    def test_workers_take_the_times_in_their_order_and_never_run_out(self) -> None:
        self.work.restart(itertools.count(0.0))
        for expected in range(300_000):
            self.assertEqual(self.take(), expected)
            if expected % 10_000 == 0:
                self.work.fill()

    def test_other_work_leaves_nothing_of_the_old(self) -> None:
        self.work.restart(itertools.repeat(1.0))
        self.work.restart(itertools.repeat(2.0))
        self.assertEqual([self.take() for _ in range(200_000 // 2)], [2.0] * 100_000)

    def test_times_are_the_same_for_the_same_seed_and_of_the_mean(self) -> None:
        for distribution in ("exponential", "uniform", "fixed"):
            with self.subTest(distribution):
                service = ServiceTimes(distribution, 0.34)
                times = list(itertools.islice(service.times("7"), 1, 10_001))
                self.assertEqual(times, list(itertools.islice(service.times("7"), 1, 10_001)))
                self.assertAlmostEqual(sum(times) / len(times), 0.34, delta=0.01)

    def test_first_request_takes_no_time(self) -> None:
        self.assertEqual(next(ServiceTimes("exponential", 1).times("7")), 0)


class ScalerTest(unittest.TestCase):
    def desired(self, pods: int, demand: float, **settings: Any) -> int:
        scaler = DemandScaler(target=4, bounds=ReplicaBounds(1, 20), stabilization_seconds=0, **settings)
        return scaler.desired(0, pods, demand)

    def test_formula_of_kubernetes(self) -> None:
        for pods, demand, expected in (
            (10, 40.0, 10),
            # Within the tolerance of a tenth the number stays.
            (10, 43.9, 10),
            (10, 44.1, 12),
            (9, 40.0, 10),
            (10, 35.0, 9),
            # Four more at most, or twice as many.
            (1, 40.0, 5),
            (5, 200.0, 10),
            (15, 400.0, 20),
            (3, 0.0, 1),
        ):
            with self.subTest(pods=pods, demand=demand):
                self.assertEqual(self.desired(pods, demand), expected)

    def test_fewer_pods_wait_until_they_have_been_enough_for_a_while(self) -> None:
        scaler = DemandScaler(target=4, bounds=ReplicaBounds(1, 20), stabilization_seconds=60)
        self.assertEqual(scaler.desired(0, 10, 40), 10)
        self.assertEqual([scaler.desired(at, 10, 8) for at in (15, 30, 45)], [10, 10, 10])
        self.assertEqual(scaler.desired(61, 10, 8), 2)

    def test_script_adds_the_pods_that_refusals_would_keep_busy(self) -> None:
        scaler = RefusalScaler(workers=4, service_seconds=0.34, bounds=ReplicaBounds(1, 20))
        for pods, rate, expected in ((1, 0.0, 1), (1, 0.1, 2), (1, 32.0, 4), (4, 20.0, 6), (1, 1000.0, 20)):
            with self.subTest(pods=pods, rate=rate):
                self.assertEqual(scaler.desired(pods, rate), expected)


METRICS = """\
# HELP sheave_endpoint_limit Requests that an endpoint may have in flight.
# TYPE sheave_endpoint_limit gauge
sheave_endpoint_limit{backend="default/endpoints:80",endpoint="10.42.0.11:5080"} 4
sheave_endpoint_limit{backend="default/endpoints:80",endpoint="10.42.0.12:5080"} 5.5
sheave_failures_total{reason="queue_full"} 12
sheave_failures_total{reason="queue_timeout"} 1
sheave_failures_total{reason="no_route"} 7
sheave_backend_demand{backend="default/endpoints:80"} 16.25
"""


class AdminTest(unittest.TestCase):
    def test_metrics_are_read_by_name_and_label(self) -> None:
        samples = list(sheave_admin.read(METRICS))
        self.assertEqual(sheave_admin.limits(samples), {"10.42.0.11:5080": 4, "10.42.0.12:5080": 5.5})
        self.assertEqual(sheave_admin.refused(samples), 13)
        self.assertEqual(sheave_admin.demand(samples), 16.25)

    def test_sheave_without_the_signal_is_an_error(self) -> None:
        with self.assertRaisesRegex(ChildFailed, "no metric sheave_backend_demand"):
            sheave_admin.demand([])


class PodsTest(unittest.TestCase):
    def test_workers_record_serving_flags_and_counts(self) -> None:
        with tempfile.TemporaryFile() as busy:
            busy.write(b"".join(struct.pack("=QQ", *record) for record in ((1, 10), (0, 5), (1, 7))))
            busy.flush()
            self.assertEqual(uwsgi.read_busy(busy.fileno()), uwsgi.WorkerCounts(serving=2, served=22))

    def test_answers_are_counted_between_two_moments(self) -> None:
        samples = [DeploymentSample(at, (PodLoad(1, 0, 10 * at), PodLoad(4, 2, at))) for at in range(10)]
        self.assertEqual(count_served(samples, 2, 5), 33)
        self.assertEqual(samples[0].pods[1].requests, 6)

    def test_unaccepted_connection_waits(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("entering a namespace takes root")
        with socket.create_server(("127.0.0.1", 0)) as server:
            backlog = Backlog(os.getpid())
            self.addCleanup(backlog.close)
            before = backlog.length()
            with socket.create_connection(server.getsockname()), socket.create_connection(server.getsockname()):
                self.assertEqual(backlog.length() - before, 2)
                server.accept()[0].close()
                self.assertEqual(backlog.length() - before, 1)


class ClientsTest(unittest.TestCase):
    def test_refused_client_asks_again_after_its_pause(self) -> None:
        statuses = iter((429, 200))

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(next(statuses, 200))
                self.send_header("Content-Length", "0")
                self.send_header("Retry-After", "3600")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, tempfile.TemporaryDirectory() as at:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            posted = listing.write(Path(at) / "listing.json")
            address = f"127.0.0.1:{server.server_address[1]}"
            argv = [sys.executable, scaling.CLIENTS, address, posted, "--clients", "1", "--seconds", "2"]
            done = subprocess.run([*argv, "--pause", "0"], capture_output=True, text=True, check=True)
            server.shutdown()
        answers = [json.loads(line)["status"] for line in done.stdout.splitlines()]
        self.assertEqual(answers[:2], [429, 200])
        self.assertEqual(set(answers[2:]) | {200}, {200})

    def test_listing_is_of_the_articles_size(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertAlmostEqual(listing.write(Path(folder) / "listing.json").stat().st_size, 2000, delta=300)


class FiguresTest(unittest.TestCase):
    """Figures of one measurement of each variant, and of two of the paired ones."""

    def setUp(self) -> None:
        self.experiment = experiment.find("article-001")
        everything = [*self.experiment.settings["variants"], *self.experiment.settings["cluster"]["variants"]]
        self.variants = variants.read(everything, tuple(variant["id"] for variant in everything))

    def rows(self) -> list[dict[str, Any]]:
        made = {
            "throughput": lambda variant: [self._throughput(variant, name) for name in ("exponential", "uniform")],
            "learning": self._learning,
            "errors": lambda variant: [{"requests": 1000, "rps": 550.0} | self._refusals(variant)],
            "scaling": self._scaling,
        }
        measured = [
            {"kind": variant.kind, "variant": variant.id, "repetition": repetition} | row
            for variant in self.variants
            for repetition in (1, 2)
            for row in made[variant.kind](variant)
        ]
        return [rows.EMPTY | {"status_500": 0, "status_other": 0, "broken": 0} | row for row in measured]

    def _throughput(self, variant: variants.Variant, distribution: str) -> dict[str, Any]:
        good = variant.entry in ("sheave", "haproxy")
        speed = {"rps": 70.0 if good else 50.0, "mean_ms": 340.0, "p99_ms": 1361.0, "busy_share": 1.0}
        return speed | {"distribution": distribution, "requests": 560, "most_at_a_pod": 4, "status_502": 0}

    def _learning(self, variant: variants.Variant) -> list[dict[str, Any]]:
        learned = {"auto": ("4.1 4.0 3.9 4.0 4.0 4.0", 0.1), "fixed": (None, None)}
        return [
            {"workers": variant.workers, "clients": 48, "arm": arm, "rps": rps, "p99_ms": 1500.0, "status_502": 0}
            | {"limits": learned[arm][0], "limit_error": learned[arm][1]}
            for arm, rps in (("auto", 69.0), ("fixed", 70.0))
        ]

    def _refusals(self, variant: variants.Variant) -> dict[str, Any]:
        pooling = variant.id in ("502-traefik", "502-caddy", "502-nginx")
        return {"status_502": 80 if pooling else 0}

    def _scaling(self, variant: variants.Variant) -> list[dict[str, Any]]:
        ours = variant.scaler == "demand"
        refused = {"demand": 900, "cpu": 3000}.get(variant.scaler, 1500)
        row = {"clients": 40, "workers": 4, "refused": refused, "syncs": 3 if ours else 4}
        pods = {"last_refusal_second": 50.0, "pods_steady": 10.0, "pods_most": 10}
        costs = {"pod_seconds": 1000.0, "node_seconds": 300.0}
        return [row | pods | costs | {"p99_ms": 1500.0, "status_502": 0}]

    def test_every_claim_is_about_a_figure_that_a_run_has(self) -> None:
        found = figures(self.rows())
        for claim in self.experiment.expectations:
            with self.subTest(claim.id):
                self.assertTrue(claim.check(found).holds, found.get(claim.figure))

    def test_columns_are_those_of_the_file(self) -> None:
        self.assertEqual({tuple(row) for row in self.rows()}, {tuple(rows.EMPTY)})

    def test_some_variants_alone_have_figures_of_their_own(self) -> None:
        for variant in self.variants:
            with self.subTest(variant.id):
                self.assertTrue(figures([row for row in self.rows() if row["variant"] == variant.id]))

    def test_lost_limit_refutes_the_claim(self) -> None:
        spoilt = [row | {"limit_error": float("nan")} if row["limit_error"] else row for row in self.rows()]
        claim = next(claim for claim in self.experiment.expectations if claim.id == "learned")
        self.assertFalse(claim.check(figures(spoilt)).holds)

    def test_one_502_of_ours_refutes_the_claim(self) -> None:
        spoilt = [row | {"status_502": 1} if row["variant"] == "learn-8" else row for row in self.rows()]
        claim = next(claim for claim in self.experiment.expectations if claim.id == "no-502")
        self.assertFalse(claim.check(figures(spoilt)).holds)

    def test_page_has_a_line_for_each_entry_point_with_the_articles_result(self) -> None:
        text = page.tables(self.experiment.settings["variants"], figures(self.rows()))
        for variant in self.experiment.settings["variants"]:
            if variant["kind"] != "learning":
                self.assertIn(f"<th>{variant['title']}</th><td>{escape(variant['article'])}</td>", text)
        self.assertIn("<td>70.0 <small>70.0–70.0</small></td>", text)


class PartsTest(unittest.TestCase):
    def test_variants_name_the_balancers_they_need(self) -> None:
        found = experiment.find("article-001")
        self.assertEqual(found.balancers(["clusterip", "haproxy-rr", "502-caddy"]), ["haproxy", "caddy"])
