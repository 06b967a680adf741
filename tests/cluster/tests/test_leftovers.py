"""Clean-up of a cluster, however it ended."""

import os
import signal
import subprocess
import unittest
from pathlib import Path

from tests.cluster import cluster, network
from tests.cluster.layout import REPOSITORY, STATE
from tests.cluster.processes import top_group
from tests.cluster.tests import running


class LeftoverTest(unittest.TestCase):
    def setUp(self) -> None:
        running.start()
        self.addCleanup(running.stop)

    def test_two_at_once_are_refused_and_nothing_is_left_of_one(self) -> None:
        with self.assertRaisesRegex(cluster.ClusterExists, "a cluster, or its leftovers, exist already"):
            cluster.up()
        of_cluster = {pid for pid in pids() if in_cluster(pid)}
        self.assertGreater(len(of_cluster), 8)
        cluster.down()
        self.assertEqual([pid for pid in of_cluster if alive(pid)], [])
        self.assertFalse(STATE.exists() or network.exists())
        self.assertEqual([folder for folder in top_group().folders if folder.exists()], [])
        self.assertNotIn(str(STATE), Path("/proc/mounts").read_text())
        links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("sheave-cluster", links)

    def test_leftovers_of_a_killed_up_are_removed(self) -> None:
        cluster.down()
        argv = ["scripts/python", "-m", "tests.cluster", "up"]
        with subprocess.Popen(
            argv, cwd=REPOSITORY, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
        ) as starting:
            next(line for line in starting.stderr if "waiting for the nodes" in line)
            os.killpg(starting.pid, signal.SIGKILL)
        self.assertTrue(cluster.exists())
        cluster.down()
        self.assertFalse(cluster.exists())


def pids() -> list[str]:
    return [path.name for path in Path("/proc").glob("[0-9]*")]


def in_cluster(pid: str) -> bool:
    try:
        return "/sheave-cluster/" in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def alive(pid: str) -> bool:
    """Returns true if the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    unittest.main()
