"""Control groups of both versions: detection and files, with plain folders in their place."""

import tempfile
import unittest
from pathlib import Path

from lab.testbed.cgroups import CgroupV1, CgroupV2, ControlGroup, detect_version, process_groups

SYSTEMD_MACHINE = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev 0 0\n"
OLD_MACHINE = """\
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
APART = """\
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/cpuacct cgroup rw,relatime,cpuacct 0 0
"""


class VersionTest(unittest.TestCase):
    def test_machine_with_one_hierarchy_has_version_2(self) -> None:
        found = detect_version(SYSTEMD_MACHINE)
        self.assertIsInstance(found, CgroupV2)
        self.assertEqual([str(mount) for mount in found.mounts], ["/sys/fs/cgroup"])

    def test_machine_with_both_has_its_cpu_controller_in_version_1(self) -> None:
        found = detect_version(OLD_MACHINE)
        self.assertIsInstance(found, CgroupV1)
        self.assertEqual([str(mount) for mount in found.mounts], ["/sys/fs/cgroup/cpu,cpuacct"])

    def test_controllers_may_be_mounted_apart(self) -> None:
        self.assertEqual(len(detect_version(APART).mounts), 2)

    def test_machine_without_control_groups_has_none(self) -> None:
        self.assertIsNone(detect_version("proc /proc proc rw 0 0\n"))


class CurrentTest(unittest.TestCase):
    def check(self, mounts: str, text: str, expected: list[str]) -> None:
        found = detect_version(mounts)
        self.assertEqual([str(path) for path in process_groups(found, text)], expected)

    def test_process_is_found_in_both_hierarchies_of_version_1(self) -> None:
        text = "2:cpuacct:/b\n1:cpu:/a\n0::/c\n"
        self.check(APART, text, ["/sys/fs/cgroup/cpu/a", "/sys/fs/cgroup/cpuacct/b"])

    def test_controllers_mounted_together_are_one_hierarchy(self) -> None:
        self.check(OLD_MACHINE, "4:cpu,cpuacct:/a\n0::/c\n", ["/sys/fs/cgroup/cpu,cpuacct/a"])

    def test_process_is_found_in_version_2(self) -> None:
        self.check(SYSTEMD_MACHINE, "0::/user.slice/c\n", ["/sys/fs/cgroup/user.slice/c"])


class GroupTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def text(self, path: str) -> str:
        return (self.root / path).read_text()

    def test_version_1_limits_by_quota_and_counts_elsewhere(self) -> None:
        for name in ("cpu", "cpuacct"):
            (self.root / name).mkdir()
        group = ControlGroup(CgroupV1(self.root / "cpu", self.root / "cpuacct"), "pod").create(millicores=100)
        self.assertEqual(self.text("cpu/pod/cpu.cfs_quota_us"), "10000")
        self.assertEqual(self.text("cpu/pod/cpu.cfs_period_us"), "100000")
        (self.root / "cpuacct/pod/cpuacct.usage").write_text("1500000000\n")
        self.assertEqual(group.cpu_seconds(), 1.5)
        group.limit(None)
        self.assertEqual(self.text("cpu/pod/cpu.cfs_quota_us"), "-1")

    def test_version_2_passes_its_controller_on_and_limits_by_max(self) -> None:
        top = ControlGroup(CgroupV2(self.root), "top").create()
        top.delegate_controllers()
        self.assertEqual(self.text("cgroup.subtree_control"), "+cpu")
        self.assertEqual(self.text("top/cgroup.subtree_control"), "+cpu")
        self.assertEqual(self.text("top/cpu.max"), "max 100000")
        pod = top.child("pod").create(millicores=200)
        self.assertEqual(self.text("top/pod/cpu.max"), "20000 100000")
        (self.root / "top/pod/cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
        self.assertEqual(pod.cpu_seconds(), 2.5)

    def test_command_enters_every_hierarchy_before_it_runs(self) -> None:
        group = ControlGroup(CgroupV1(Path("/a"), Path("/b")), "pod")
        self.assertEqual(group.enter_command(["sleep", "1"])[4:], [Path("/a/pod"), Path("/b/pod"), "--", "sleep", "1"])
