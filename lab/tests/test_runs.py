"""Runs as arguments of `lab plot`."""

import unittest

from lab import experiment, plot


class PlotTest(unittest.TestCase):
    def test_plot_takes_all_experiments_one_or_one_run(self) -> None:
        folders = [folder for _, folder in plot.runs(None)]
        self.assertEqual(len(folders), len(set(folders)))
        of_one = list(plot.runs("article-000"))
        self.assertLess(len(of_one), len(folders))
        found, folder = of_one[0]
        self.assertEqual((found.name, folder.parent), ("article-000", found.folder / "runs"))
        self.assertEqual([(run.name, path) for run, path in plot.runs(f"{folder}/")], [("article-000", folder)])

    def test_plot_refuses_a_folder_that_is_not_a_run(self) -> None:
        with self.assertRaisesRegex(experiment.UnknownName, "runs is not a run folder: it has no raw.csv"):
            list(plot.runs("lab/experiments/article-000/runs"))
        with self.assertRaisesRegex(experiment.UnknownName, "there is no experiment 'nonsense'"):
            list(plot.runs("nonsense"))
