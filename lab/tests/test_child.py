"""Child processes: CPU pinning, exit detection and clean-up."""

import os
import select
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from lab.child import Child, ChildFailed, wait_until


class ChildTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = Path(folder.name) / "log"

    def start(self, code: str, **options: Any) -> Child:
        return Child([sys.executable, "-c", code], self.log, **options)

    def test_stopping_a_child_stops_its_descendants(self) -> None:
        code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
        with self.start(code, piped=True) as child:
            grandchild = int(child.stdout.readline())
            self.assertIn(grandchild, child.processes())
            handle = os.pidfd_open(grandchild)
            self.addCleanup(os.close, handle)
        # The socket is readable when the process has ended; the signal may take a moment.
        ended, _, _ = select.select([handle], [], [], 30)
        self.assertTrue(ended)

    def test_child_that_ends_early_shows_its_log(self) -> None:
        ended = self.assertRaisesRegex(ChildFailed, "port in use")
        with self.start("raise SystemExit('port in use')") as child, ended:
            wait_until(lambda: False, child, "the listener")

    def test_child_that_reads_no_more_can_be_stopped(self) -> None:
        child = self.start("import os, time; os.close(0); print(flush=True); time.sleep(600)", piped=True)
        child.stdout.readline()
        with self.assertRaises(BrokenPipeError):
            child.stdin.write("not read\n")
            child.stdin.flush()
        child.stop()
        self.assertFalse(child.alive())

    def test_child_stays_on_its_cpus(self) -> None:
        cpu = min(os.sched_getaffinity(0))
        code = "import os; print(sorted(os.sched_getaffinity(0)), flush=True); input()"
        with self.start(code, piped=True, cpus=[cpu]) as child:
            self.assertEqual(child.stdout.readline().strip(), str([cpu]))
            self.assertGreater(child.pss_bytes(), 1_000_000)
