"""User-mode Linux, whose kernel has IPVS: runs the same measurements in it, on the file tree of this machine.

It has one CPU, system calls cost more, and eBPF programs are interpreted: compare only arms of it with one another.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import results
from lab.article003 import ipvs
from lab.bench import Bench, Row, print_status
from lab.child import Child, ChildFailed
from lab.paths import REPOSITORY, SHEAVE_BINARY

KERNEL = "linux.uml"
TOOLS = {KERNEL: "user-mode-linux", "ipvsadm": "ipvsadm", "modprobe": "kmod"}
MEMORY = "1024M"
POLL_SECONDS = 0.2
MODULES = (
    *("veth", "bridge", "vxlan", "sch_tbf", "nf_conntrack", "iptable_nat", "iptable_filter", "xt_MASQUERADE"),
    *("xt_comment", "xt_conntrack", "xt_mark", "xt_nat", "xt_addrtype", "xt_tcpudp", "xt_statistic"),
    *ipvs.MODULES,
)
# Its nf_tables has no IPv4, so iptables is the one with a kernel interface of its own.
LEGACY = "/usr/sbin/iptables-legacy-restore"
# Files that the kernel opens on this machine's tree stay as they are: what the lab writes outside is in memory.
INIT = """\
#!/bin/sh
export PATH=/run/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={repository} {environment}
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t devtmpfs devtmpfs /dev 2>/dev/null
export TMPDIR=/run
mkdir -p /run/bin /run/modules/lib/modules
ln -s {legacy} /run/bin/iptables-restore
ln -s "/usr/lib/uml/modules/$(uname -r)" "/run/modules/lib/modules/$(uname -r)"
printf '#!/bin/sh\\nexec modprobe -d /run/modules "$@"\\n' >/run/modprobe
chmod +x /run/modprobe
echo /run/modprobe >/proc/sys/kernel/modprobe
for module in {modules}; do modprobe -d /run/modules "$module" 2>/dev/null; done
ip link set lo up
cd {repository}
{python} -m lab.article003.in_uml {job} >{log} 2>&1
sync
exec {python} -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)'
"""


def obstacle() -> str | None:
    """Returns the reason why this machine has no user-mode Linux with IPVS, or None."""
    missing = [f"{tool} (Debian's {package})" for tool, package in TOOLS.items() if not shutil.which(tool)]
    return f"missing: {', '.join(missing)}; run scripts/setup lab" if missing else None


def measure(bench: Bench, case: Mapping[str, Any]) -> list[Row]:
    """Returns the rows that the measurements in user-mode Linux recorded."""
    folder = bench.logs / "uml"
    folder.mkdir()
    job, log, init = folder / "job.json", folder / "log.txt", folder / "init"
    job.write_text(json.dumps({"case": case, "extent": bench.extent, "folder": str(folder)}))
    init.write_text(_init_script(job, log))
    init.chmod(0o755)
    print_status("starting user-mode Linux")
    options = [f"mem={MEMORY}", "rootfstype=hostfs", "rootflags=/", "rw", "quiet", "con=null", f"init={init}"]
    _run([KERNEL, *options], folder / "console.txt", case["patience_seconds"])
    raw = folder / "raw.csv"
    if not (folder / "done").is_file() or not raw.is_file():
        end = log.read_text(errors="replace")[-1500:] if log.is_file() else "it has not started"
        raise ChildFailed(f"the measurements in user-mode Linux failed: {end}")
    return results.read_rows(raw)


def _init_script(job: Path, log: Path) -> str:
    environment = f"{SHEAVE_BINARY}={os.environ[SHEAVE_BINARY]}" if SHEAVE_BINARY in os.environ else ""
    return INIT.format(
        repository=REPOSITORY,
        environment=environment,
        legacy=LEGACY,
        modules=" ".join(MODULES),
        python=sys.executable,
        job=job,
        log=log,
    )


def _run(argv: Sequence[object], console: Path, seconds: float) -> None:
    """Runs the kernel until it ends."""
    deadline = time.monotonic() + seconds
    with Child(argv, console) as kernel:
        while kernel.alive():
            if time.monotonic() > deadline:
                raise ChildFailed(f"user-mode Linux has not ended after {seconds:.0f} s; see {console.parent}")
            time.sleep(POLL_SECONDS)
