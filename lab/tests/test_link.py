"""The long-distance link, measured with ping and iperf3."""

import subprocess
import sys
import tempfile
import unittest

from lab import experiment
from lab.paths import REPOSITORY
from lab.tests import line_measured

FOUND = experiment.find("long-line")
OBSTACLE = FOUND.module().obstacle()


class LongLineTest(unittest.TestCase):
    @unittest.skipIf(OBSTACLE, f"no long line here: {OBSTACLE}")
    def test_delay_loss_rate_and_queue_are_as_they_are_asked_for(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            argv = [sys.executable, "-m", line_measured.__name__, folder]
            done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if "another lab runs" in done.stderr:
            self.skipTest(done.stderr)
        # The other claims need a whole run on an idle machine.
        asked = sum(claim.quick for claim in FOUND.expectations)
        verdicts = [line.split()[0] for line in done.stdout.splitlines()]
        self.assertEqual(verdicts, ["holds"] * asked, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
