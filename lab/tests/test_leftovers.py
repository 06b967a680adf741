"""Clean-up after a killed lab: no process, namespace, control group or rule remains after the next command."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import unittest
import uuid
from pathlib import Path

from lab.paths import REPOSITORY
from lab.testbed import cgroups, cluster, ownership
from lab.testbed.cgroups import ControlGroup
from lab.testbed.ownership import TestbedBusy
from lab.tests import testbed_owner

KILLS = 10
SEED = 20261120


@unittest.skipIf(cluster.obstacle(), f"no testbed here: {cluster.obstacle()}")
class LeftoversTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # Identifies every process that the testbed owner starts.
        self.mark = f"LAB_TEST={uuid.uuid4()}"
        try:
            with ownership.acquire():
                pass
        except TestbedBusy as error:
            self.skipTest(str(error))

    def test_killed_labs_leave_nothing(self) -> None:
        chance = random.Random(SEED)
        rules = iptables()
        for number in range(KILLS):
            step = chance.choice(testbed_owner.STEPS)
            ending = (signal.SIGINT, signal.SIGKILL)[number % 2]
            with self.subTest(step=step, ending=ending.name):
                running = self.start_owner(until=step)
                made = {namespace(pid) for pid in self.processes()} - {namespace("self"), None}
                running.send_signal(ending)
                running.wait(timeout=30)
                self.clean()
                self.assertEqual(self.processes(), [])
                self.assertEqual([folder for folder in top_folders() if folder.exists()], [])
                self.assertTrue(made.isdisjoint(map(namespace, pids())))
                self.assertEqual(iptables(), rules)

    def test_living_lab_is_left_alone_and_keeps_others_out(self) -> None:
        running = self.start_owner(until="running")
        self.clean()
        self.assertGreater(len(self.processes()), 3)
        second = subprocess.run(self.command(), cwd=REPOSITORY, capture_output=True, text=True, check=False)
        self.assertIn(f"another lab runs (process {running.pid}): wait until it ends, or end it", second.stderr)
        running.send_signal(signal.SIGINT)
        self.assertEqual(running.wait(timeout=30), 130)
        self.assertEqual(self.processes(), [])

    def start_owner(self, until: str) -> subprocess.Popen[str]:
        """Starts a testbed owner and returns after the given step."""
        name, _, value = self.mark.partition("=")
        running = subprocess.Popen(
            self.command(), cwd=REPOSITORY, env={**os.environ, name: value}, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(running.stdout.close)
        self.addCleanup(running.kill)
        for line in running.stdout:
            if line.strip() == until:
                return running
        raise AssertionError(f"the testbed owner ended before it said {until}")

    def command(self) -> list[str]:
        return [sys.executable, "-m", "lab.tests.testbed_owner", self.folder]

    def clean(self) -> None:
        """Runs the lab's next command, whichever it is."""
        done = subprocess.run([sys.executable, "-m", "lab", "list"], cwd=REPOSITORY, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def processes(self) -> list[str]:
        return [pid for pid in pids() if self.mark in environment(pid)]


def pids() -> list[str]:
    return [path.name for path in Path("/proc").glob("[0-9]*")]


def environment(pid: str) -> str:
    """Returns the environment of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


def namespace(pid: str) -> str | None:
    """Returns the network namespace of a process, None if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def top_folders() -> list[Path]:
    return ControlGroup(cgroups.machine_version()).folders


def iptables() -> list[str]:
    """Returns the machine's own rules without the comments, which contain the time."""
    text = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    return [line for line in text.splitlines() if not line.startswith("#")]
