"""Settings and claims of every experiment, and error messages of the command line."""

import itertools
import subprocess
import sys
import tomllib
import unittest
from pathlib import Path
from unittest import mock

from lab import cost_check, experiment
from lab.article004 import plan
from lab.balancers import balancer
from lab.bench import Bench
from lab.paths import REPOSITORY, MissingRequirement
from lab.testbed import cluster


def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "lab", *arguments]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)


class ExperimentTest(unittest.TestCase):
    def test_folders_are_complete(self) -> None:
        for name in experiment.names():
            with self.subTest(name):
                found = experiment.find(name)
                self.assertTrue((found.folder / "README.md").is_file())
                self.assertTrue(callable(found.module().run))
                self.assertTrue(found.expectations)

    def test_claims_have_ids_of_their_own(self) -> None:
        for name in experiment.names():
            ids = [claim.id for claim in experiment.find(name).expectations]
            self.assertEqual(len(ids), len(set(ids)), name)

    def test_cases_name_arms_and_balancers_that_exist(self) -> None:
        settings = experiment.find("proxy-cost").settings
        for case in settings["cases"]:
            self.assertLessEqual(set(case["arms"]), settings["arms"].keys(), case["id"])
            self.assertLessEqual(set(case["against"]), set(case["arms"][1:]), case["id"])
        for name, arm in settings["arms"].items():
            self.assertIn(arm["balancer"], settings["balancers"], name)

    def test_another_build_takes_the_place_of_all_peers(self) -> None:
        found = experiment.find("proxy-cost").with_before_build(Path("before"))
        self.assertEqual((found.expectations, [*found.settings["balancers"]]), ((), ["sheave"]))
        for case in [*found.settings["cases"], found.settings["idle"]]:
            now, then = case["arms"]
            self.assertEqual((then, case["against"]), (f"{now}-before", [then]))
            self.assertEqual(found.settings["arms"][then], {**found.settings["arms"][now], "program": Path("before")})

    def test_another_build_is_an_edge_beside_ours(self) -> None:
        found = experiment.find("article-004").with_before_build(Path("before"))
        self.assertEqual((found.expectations, found.balancers(["far"])), ((), ["sheave"]))
        bench = Bench(found, "quick", Path("/nowhere"), Path("/nowhere"))
        planned = [planned_load for each in itertools.chain(*plan.rounds(bench)) for planned_load in each.planned]
        self.assertEqual({planned_load.edge for planned_load in planned}, {"sheave", *found.settings["builds"]})

    def test_another_build_needs_something_to_stand_against(self) -> None:
        for name in ("article-000", "long-line", "bad-endpoints"):
            with self.subTest(name), self.assertRaises(experiment.UnknownName):
                experiment.find(name).with_before_build(Path("before"))

    def test_chosen_arms_leave_out_the_others_and_their_balancers(self) -> None:
        found = experiment.find("bad-endpoints").with_arms(["sheave-defaults", "nginx-defaults"])
        self.assertEqual([*found.settings["balancers"]], ["sheave", "nginx"])
        arms = {scenario["id"]: scenario["arms"] for scenario in found.settings["scenarios"]}
        self.assertEqual(arms["slow"], ["sheave-defaults", "nginx-defaults"])
        self.assertNotIn("healthy", arms)

    def test_parts_of_an_experiment_name_the_balancers_they_need(self) -> None:
        for name, part, balancers in (
            ("proxy-cost", "routes", ["sheave"]),
            ("proxy-cost", "get-64-KiB", ["sheave", "haproxy", "nginx", "envoy"]),
            ("bad-endpoints", "errors-1-of-3", ["sheave", "haproxy", "nginx", "envoy"]),
            ("article-000", "clusterip", []),
            ("article-000", "nginx", ["nginx"]),
        ):
            with self.subTest(part):
                self.assertEqual(experiment.find(name).balancers([part]), balancers)


class CommandLineTest(unittest.TestCase):
    def test_list_names_each_experiment_with_its_title(self) -> None:
        done = lab("list")
        self.assertEqual(done.returncode, 0)
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()], experiment.names())

    def test_unknown_experiment_is_a_sentence_and_exit_code_1(self) -> None:
        done = lab("run", "nonsense")
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no experiment 'nonsense'; there are: ", done.stderr)

    def test_unknown_variant_balancer_or_size_is_a_sentence_and_exit_code_1(self) -> None:
        for arguments, sentence in {
            ("article-000", "--only", "nonsense"): "article-000 has no part 'nonsense'; there are: one, two, clusterip",
            ("proxy-cost", "--only", "sheave"): "proxy-cost has no part 'sheave'; there are: get-64, get-512",
            ("long-line", "--only", "slow"): "long-line has no part 'slow'; it has no parts",
            ("bad-endpoints", "--arms", "sheave,nonsense"): "bad-endpoints has no arm 'nonsense'; there are: sheave, ",
            ("article-000", "--arms", "sheave"): "article-000 has no arms to choose from",
            ("proxy-cost", "--full"): "proxy-cost has no full size",
        }.items():
            with self.subTest(arguments):
                done = lab("run", *arguments)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(sentence, done.stderr)
        with self.assertRaisesRegex(MissingRequirement, "there is no balancer 'nonsense'; there are: .*sheave"):
            balancer("nonsense")

    def test_testbed_without_root_is_refused(self) -> None:
        with mock.patch("os.geteuid", return_value=1000):
            self.assertRegex(cluster.obstacle() or "", "root is required")

    def test_json_file_in_a_missing_folder_is_refused_before_the_run(self) -> None:
        done = lab("run", "proxy-cost", "--quick", "--json", "/nowhere/at/all.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no such folder", done.stderr)


class CostFileTest(unittest.TestCase):
    def test_update_changes_the_figures_and_nothing_else(self) -> None:
        text = cost_check.FIGURES.read_text()
        cases = tomllib.loads(text)["cases"]
        updated = cost_check._updated(text, {name: 42 for name in cases})
        changed = [line for line in updated.splitlines() if line not in text.splitlines()]
        self.assertEqual(set(changed), {"instructions = 42"})
        self.assertEqual({case["instructions"] for case in tomllib.loads(updated)["cases"].values()}, {42})
