"""Page loads: complete figures, and no load with an unexpected protocol."""

import itertools
import random
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from lab import experiment
from lab.article004 import browser, pictures, plan, rows, variants
from lab.article004.browser import PROTOCOLS, PageLoad, check_protocol, read
from lab.article004.figures import NEW, RETURNING, WITHOUT, figures, table
from lab.article004.rows import FIRST, NEXT
from lab.article004.sites import SITES
from lab.bench import Bench, Row
from lab.testbed import link
from lab.testbed.link import LinkDirection

SAID = {"ms": 812.34, "protocols": {"h3": 23}, "round_trips": 22, "tls": "QUIC"}


class LoadTest(unittest.TestCase):
    def test_load_by_the_expected_protocol_counts(self) -> None:
        load = check_protocol(read(SAID), PROTOCOLS["h3"], 22)
        self.assertEqual(load, PageLoad(812.3, None, ("h3",), "QUIC", 22))

    def test_load_by_another_protocol_is_a_failure(self) -> None:
        for reported, seen in (
            ({"protocols": {"h2": 23}}, "22 round trips by h2, QUIC"),
            ({"protocols": {"h3": 22, "h2": 1}}, "22 round trips by h3 and h2, QUIC"),
            ({"tls": "TLS 1.3"}, "22 round trips by h3, TLS 1.3"),
            ({"round_trips": 21}, "21 round trips by h3, QUIC"),
        ):
            with self.subTest(seen):
                load = check_protocol(read({**SAID, **reported}), PROTOCOLS["h3"], 22)
                self.assertEqual((load.ms, load.failure), (None, f"unexpected transfer: {seen}"))

    def test_incomplete_load_counts_with_the_timeout(self) -> None:
        load = check_protocol(read({"failure": "not done"}), PROTOCOLS["h3"], 22)
        row = rows.load_columns(load, 60)
        self.assertEqual((row["ms"], row["failure"]), (60_000, "not done"))

    def test_each_protocol_is_forced_at_its_edge(self) -> None:
        flags = PROTOCOLS["h3"].flags_for(8444)
        self.assertIn("--origin-to-force-quic-on=tls13.lab.example:8444", flags)
        self.assertIn("--ssl-version-max=tls1.2", PROTOCOLS["h2-tls12"].flags_for(8444))


class SettingsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.found = experiment.find("article-004")
        self.module = self.found.module()

    def bench(self, extent: str = "usual") -> Bench:
        return Bench(self.found, extent, Path("/nowhere"), Path("/nowhere"))

    def test_variants_name_existing_parts(self) -> None:
        everything = self.found.settings["variants"]
        for variant in variants.read(everything, [each["id"] for each in everything]):
            self.assertLessEqual(set(variant.edges), self.found.settings["balancers"].keys(), variant.id)
            self.assertLessEqual(set(variant.sites), SITES.keys(), variant.id)
            self.assertLessEqual(set(variant.protocols), PROTOCOLS.keys(), variant.id)
            self.assertIn(variant.congestion, self.module.CONTROLLERS, variant.id)

    def test_link_is_symmetric_with_half_the_round_trip_each(self) -> None:
        lossy = variants.read(self.found.settings["variants"], ["loss-bbr"])[0].conditions(1000, 4096)
        self.assertEqual(lossy.forward, LinkDirection(50.0, 1000, 4096, 0.01))
        self.assertEqual(lossy.forward, lossy.reverse)
        self.assertEqual(str(lossy.forward), "delay-us=50000,queue-bytes=4194304,loss=0.01,kbit=1000000")

    def test_resumed_run_has_the_same_order_and_every_sample_once(self) -> None:
        plans = [list(plan.rounds(self.bench())) for _ in range(2)]
        self.assertEqual(*plans)
        planned = [planned_load for each in itertools.chain(*plans[0]) for planned_load in each.planned]
        self.assertEqual(len(planned), len({planned_load.key for planned_load in planned}))
        near = [planned_load for planned_load in planned if planned_load.variant.id == "near"]
        self.assertEqual(len(near), 25 * 3 * 3 * 5)

    def test_variant_has_its_own_number_of_samples(self) -> None:
        for extent, usual, often in (("usual", 25, 100), ("full", 50, 200)):
            samples: dict[str, int] = {}
            for each in itertools.chain(*plan.rounds(self.bench(extent))):
                samples[each.variant.id] = samples.get(each.variant.id, 0) + 1
            self.assertEqual((samples["far"], samples["loss-cubic-often"]), (usual, often))

    def test_samples_of_one_variant_run_concurrently(self) -> None:
        at_once: dict[str, list[int]] = {}
        for together in plan.rounds(self.bench()):
            (id,) = {each.variant.id for each in together}
            at_once.setdefault(id, []).append(len(together))
            self.assertEqual(len({each.seed for each in together}), len(together), "each line loses other packets")
        self.assertEqual(at_once["far"], 25 * [1])
        self.assertEqual(at_once["loss-cubic-medium"], [4, 4, 4, 4, 4, 4, 1])

    def test_interrupted_round_resumes_with_the_remaining_loads(self) -> None:
        ((first,), *_) = plan.rounds(self.bench())
        left = first.without({planned_load.key for planned_load in first.planned[:40]})
        self.assertEqual((left.planned, left.seed), (first.planned[40:], first.seed))

    def test_visit_is_done_with_its_last_page(self) -> None:
        first = {"variant": "blocked", "edge": "sheave", "site": "small", "protocol": NEW, "page": FIRST, "sample": 1}
        self.assertEqual(rows.done([first]), set())
        self.assertEqual(rows.done([first, {**first, "page": NEXT}]), {("blocked", "sheave", "small", NEW, 1)})

    def test_orders_of_samples_differ(self) -> None:
        rounds = itertools.chain(*plan.rounds(self.bench()))
        near = [
            [planned_load.key[:-1] for planned_load in each.planned] for each in rounds if each.variant.id == "near"
        ]
        self.assertNotEqual(near[0], near[1])
        self.assertEqual(sorted(near[0]), sorted(near[1]))


class ObstacleTest(unittest.TestCase):
    def test_machine_without_a_browser_is_reported(self) -> None:
        with mock.patch("shutil.which", return_value=None):
            self.assertIn("no browser is installed (chromium or chromium-browser)", browser.obstacle() or "")

    def test_machine_without_tun_is_reported(self) -> None:
        with mock.patch.object(link, "DEVICE", "/nowhere/tun"):
            self.assertEqual(
                link.obstacle(),
                "/nowhere/tun cannot be opened (No such file or directory); the link to the client requires TUN devices",
            )

    def test_kernel_without_a_congestion_control_is_reported(self) -> None:
        with tempfile.NamedTemporaryFile("w") as known:
            known.write("reno cubic\n")
            known.flush()
            with (
                mock.patch.object(link, "DEVICE", "/dev/null"),
                mock.patch.object(link, "CONTROLLERS", Path(known.name)),
            ):
                message = link.obstacle(["cubic", "bbr"])
        self.assertEqual(message, "the kernel has no congestion control bbr for TCP; it has reno, cubic")


class FiguresTest(unittest.TestCase):
    def setUp(self) -> None:
        self.found = experiment.find("article-004")

    def rows(self, samples: int = 12) -> list[Row]:
        """Returns rows in which H3 takes half as long as H1, H2 a little more, and peers a tenth longer than Sheave."""
        chance = random.Random(1)
        made = []
        everything = self.found.settings["variants"]
        for variant in variants.read(everything, [each["id"] for each in everything]):
            pages = [(by, None) for by in variant.protocols]
            pages = pages or [(by, page) for by in (RETURNING, NEW, WITHOUT) for page in (FIRST, NEXT)]
            for edge in variant.edges:
                for site in variant.sites:
                    for by, page in pages:
                        scale = {"h3": 0.5, "h2-tls12": 0.6, "h2-tls13": 0.6}.get(by, 1.0)
                        scale *= 1.0 if edge == "sheave" else 1.1
                        scale += 0.3 if (by, page) == (RETURNING, FIRST) else 0.0
                        where = {"variant": variant.id, "edge": edge, "site": site, "protocol": by, "page": page}
                        for sample in range(1, samples + 1):
                            load = PageLoad(1000 * scale + chance.random(), None, ("h2",), "TLS 1.3", 22)
                            made.append(rows.EMPTY | where | {"sample": sample} | rows.load_columns(load, 60))
        return made

    def failing(self, *protocols: str) -> list[Row]:
        """Returns rows in which these loads of Sheave fail."""
        return [
            {**row, "ms": 60_000.0, "failure": "not done"}
            if row["edge"] == "sheave" and row["protocol"] in protocols
            else row
            for row in self.rows()
        ]

    def test_each_claim_has_its_figure_and_can_fail(self) -> None:
        known = figures(self.rows())
        refuted = [figures(self.failing("h2-tls13")), figures(self.failing("h3", RETURNING, NEW))]
        for claim in self.found.expectations:
            self.assertTrue(claim.check(known).holds, claim.id)
            self.assertFalse(all(claim.check(each).holds for each in refuted), claim.id)

    def test_ratios_are_of_the_same_sample_and_the_worst_site_counts(self) -> None:
        slow = [
            {**row, "ms": 3 * row["ms"]} if (row["site"], row["protocol"]) == ("medium", "h3") else row
            for row in self.rows()
        ]
        known = figures(slow)
        self.assertAlmostEqual(known["far.sheave.h3 / h1.worst"].value, 1.5, delta=0.01)
        self.assertAlmostEqual(known["far.sheave.small.h3 / h1"].value, 0.5, delta=0.01)

    def test_medians_of_earlier_samples_are_figures(self) -> None:
        known = figures(self.rows())
        self.assertLess(known["far.after 10 samples"].value, 0.01)
        self.assertNotIn("far.after 25 samples", known)

    def test_fallback_is_the_additional_time_compared_with_no_http3(self) -> None:
        known = figures(self.rows())
        self.assertAlmostEqual(known["blocked.returning.first.added.worst"].value, 300, delta=2)
        self.assertAlmostEqual(known["blocked.returning.next.added.worst"].value, 0, delta=2)

    def test_table_has_a_line_for_each_site_and_edge(self) -> None:
        lines = table([row for row in self.rows() if row["variant"] == "far"])
        self.assertEqual(len(lines), 2 + 3 * 3)
        self.assertIn("| far | small | haproxy | ", lines[2])

    def test_pictures_are_known_by_their_columns(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(self.found, "quick", Path(folder), Path(folder))
            bench.record(self.rows(1)[0])
            self.assertTrue(rows.has_format(Path(folder) / "raw.csv"))
        self.assertEqual(len(set(pictures.PICTURES)), 3)
