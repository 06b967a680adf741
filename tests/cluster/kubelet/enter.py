"""Becomes a container's first process: mounts its root, drops privileges, and executes its command.

    python enter.py FILE

The file has the specification in JSON, and is emptied when the command starts. The program starts in separate mount,
PID, UTS and IPC namespaces, so its mounts are invisible elsewhere and vanish with it. It imports nothing of the
repository.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from pathlib import Path

READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE = 1, 2, 4, 32, 4096, 16384
DETACH = 2
DROP_FROM_BOUNDING_SET, KEEP_CAPABILITIES, SET_NO_NEW_PRIVILEGES = 24, 8, 38
CAPABILITY_VERSION_3 = 0x20080522

# Parts of the machine that a container sees: programs and libraries, so that a shell exists.
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
CONFIGURATION = (
    "passwd",
    "group",
    "nsswitch.conf",
    "ld.so.cache",
    "localtime",
    "protocols",
    "services",
    "ssl",
    "alternatives",
)
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DESCRIPTORS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
# From linux/capability.h.
CAPABILITIES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE "
    "NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN "
    "SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE "
    "MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
).split()

libc = ctypes.CDLL(None, use_errno=True)


def main(file: str) -> None:
    with open(file, "r+") as spec_file:
        spec = json.load(spec_file)
        set_up_container(spec)
        spec_file.truncate(0)
    os.execvpe(spec["argv"][0], spec["argv"], spec["environment"])


def set_up_container(spec: dict) -> None:
    root = Path(spec["root"])
    make_root(root, spec)
    socket.sethostname(spec["hostname"])
    enter_root(root)
    if spec["read_only"]:
        mount(None, Path("/"), REMOUNT | BIND | READ_ONLY)
    os.umask(0o022)
    drop_privileges(spec)
    os.chdir(spec["folder"])


def make_root(root: Path, spec: dict) -> None:
    root.mkdir(exist_ok=True)
    mount("tmpfs", root, NO_SUID, kind="tmpfs", options="mode=755,size=512m")
    for name in SYSTEM:
        bind_system_path(Path("/", name), root / name)
    for name in CONFIGURATION:
        bind_system_path(Path("/etc", name), root / "etc" / name)
    for name, text in spec["files"].items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    make_kernel_folders(root, spec["privileged"])
    for program in spec["programs"]:
        bind(Path(program["source"]), root / program["target"].lstrip("/"), read_only=True)
    # A mount may lie below another one.
    for volume in sorted(spec["mounts"], key=lambda volume: volume["target"]):
        bind(Path(volume["source"]), root / volume["target"].lstrip("/"), read_only=volume["read_only"])


def make_kernel_folders(root: Path, privileged: bool) -> None:
    """Mounts the kernel's file systems; only a privileged container may change settings."""
    for name in ("proc", "sys", "dev"):
        (root / name).mkdir()
    mount("proc", root / "proc", NO_SUID | NO_DEVICES, kind="proc")
    mount("sysfs", root / "sys", NO_SUID | NO_DEVICES | (0 if privileged else READ_ONLY), kind="sysfs")
    if not privileged:
        bind(root / "proc" / "sys", root / "proc" / "sys", read_only=True)
    # Programs read their CPU quota there.
    groups = Path("/sys/fs/cgroup")
    if groups.is_dir():
        mount(str(groups), root / "sys" / "fs" / "cgroup", BIND | RECURSIVE)
    mount("tmpfs", root / "dev", NO_SUID, kind="tmpfs", options="mode=755,size=64m")
    for name in DEVICES:
        bind(Path("/dev", name), root / "dev" / name, read_only=False)
    for name, target in DESCRIPTORS.items():
        (root / "dev" / name).symlink_to(target)
    (root / "dev" / "shm").mkdir()
    (root / "dev" / "shm").chmod(0o1777)


def bind_system_path(source: Path, target: Path) -> None:
    """Bind-mounts a path of the machine, if it exists; copies a link as a link."""
    if source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.readlink(source))
    elif source.exists():
        bind(source, target, read_only=True)


def bind(source: Path, target: Path, *, read_only: bool) -> None:
    """Bind-mounts a folder or file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.touch()
    mount(str(source), target, BIND | RECURSIVE)
    if read_only:
        mount(None, target, REMOUNT | BIND | READ_ONLY)


def enter_root(root: Path) -> None:
    """Stacks the old root on the new one, and detaches it."""
    os.chdir(root)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount")
    os.chdir("/")


def drop_privileges(spec: dict) -> None:
    kept = {CAPABILITIES.index(name) for name in spec["capabilities"]}
    if not spec["privileged"]:
        for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            if number not in kept:
                check(libc.prctl(DROP_FROM_BOUNDING_SET, number, 0, 0, 0), "dropping a capability")
    # Like a container runtime: a user other than root gets the container's capabilities as permitted, which a program
    # with file capabilities can use.
    keeps = not spec["privileged"] and spec["user"] != 0
    check(libc.prctl(KEEP_CAPABILITIES, int(keeps), 0, 0, 0), "keeping capabilities")
    os.setgroups(spec["groups"])
    os.setgid(spec["group"])
    os.setuid(spec["user"])
    if keeps:
        set_capabilities(sum(1 << number for number in kept))
    if spec["no_new_privileges"]:
        check(libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")


def set_capabilities(permitted: int) -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    low, high = permitted & 0xFFFFFFFF, permitted >> 32
    # Effective, permitted, inheritable, twice.
    sets = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    check(libc.capset(header, sets), "setting capabilities")


def mount(source: str | None, target: Path, flags: int, kind: str | None = None, options: str | None = None) -> None:
    words = (source and source.encode(), bytes(target), kind and kind.encode(), flags, options and options.encode())
    check(libc.mount(*words), f"mounting {source or target}")


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except (OSError, KeyError, ValueError) as error:
        print(f"cannot start the container: {error}", file=sys.stderr)
        sys.exit(128)
