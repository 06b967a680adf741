"""A node with containerd and the real kubelet, the reference for ours. It runs only imported images.

Both run in a separate mount namespace with a copy of /var, so all their mounts and files vanish with them. Their
control groups of every hierarchy are below the cluster's.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from lab.debian import DebianSuite
from lab.paths import MissingRequirement
from tests.cluster import archives, certificates, nodes, programs
from tests.cluster.archives import Archive
from tests.cluster.layout import CACHE, NAME, Node
from tests.cluster.processes import Process, own_group

KUBELET = programs.kubernetes("kubelet")
PACKAGES = CACHE / "debian"
# Newer versions need a newer C library than the machine may have, and cannot run under another loader.
OF_MACHINE = "bookworm"
PATIENCE_SECONDS = 30.0
CONTROLLERS = Path("/sys/fs/cgroup")
# containerd keeps sockets there regardless of its configuration.
SOCKETS = Path("/run/containerd")
SCRIPT = """\
set -e
mkdir -p "$1/upper" "$1/work" /run/containerd
mount -t overlay overlay -o "lowerdir=/var,upperdir=$1/upper,workdir=$1/work" /var
mount -t tmpfs tmpfs /run/netns
mount -t tmpfs tmpfs /run/containerd
shift
exec "$@"
"""
PLUGINS_THAT_LACK_SOMETHING = ("btrfs", "zfs", "devmapper", "erofs", "blockfile")


def make() -> None:
    """Unpacks and builds the programs of such a node."""
    for package, path, suite in (
        ("containerd", "usr/bin/containerd", programs.SUITE),
        ("containernetworking-plugins", "usr/lib/cni/ptp", programs.SUITE),
        ("runc", "usr/sbin/runc", OF_MACHINE),
        ("busybox-static", "bin/busybox", OF_MACHINE),
    ):
        DebianSuite(suite, PACKAGES).file(package, path)
    KUBELET.make()


def start(node: Node) -> list[Process]:
    node.folder.mkdir(exist_ok=True)
    for controller in _controllers():
        _make_group(controller, node)
    containerd = _start_containerd(node)
    _wait_for(containerd, node)
    for number, archive in enumerate(_archives()):
        _ctr(node, "images", "import", str(archive.write(node.folder / f"{number}.tar")))
    return [nodes.start_proxy(node), containerd, _start_kubelet(node, containerd.pid)]


def is_real_node(node: Node) -> bool:
    """Returns true if the node was started as a real one."""
    return _configuration(node).exists()


def remove_groups() -> None:
    """Removes the groups of hierarchies that the cluster's own groups do not use."""
    for controller in _controllers():
        top = controller / NAME
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()
    if SOCKETS.is_dir() and not any(SOCKETS.iterdir()):
        SOCKETS.rmdir()


def _start_containerd(node: Node) -> Process:
    environment = {"PATH": f"{_program('usr/bin')}:{_program('usr/sbin', OF_MACHINE)}:{os.environ['PATH']}"}
    argv = [_program("usr/bin/containerd"), "--config", _containerd_configuration(node)]
    return Process(
        f"containerd-{node.name}",
        ["unshare", "--mount", "--", "sh", "-c", SCRIPT, "containerd", node.folder / "var", *argv],
        group=own_group(node.name),
        namespace=node.namespace,
        folder=node.folder,
        env=environment,
    )


def _start_kubelet(node: Node, beside: int) -> Process:
    argv = [
        *("nsenter", f"--mount=/proc/{beside}/ns/mnt", "--"),
        KUBELET.path,
        f"--config={_kubelet_configuration(node)}",
        f"--kubeconfig={certificates.kubeconfig(node.name)}",
        f"--root-dir={node.folder / 'kubelet'}",
        f"--hostname-override={node.name}",
        f"--node-ip={','.join(node.addresses)}",
    ]
    name = f"kubelet-{node.name}"
    return Process(name, argv, group=own_group(node.name), namespace=node.namespace, folder=node.folder)


def _archives() -> list[Archive]:
    echo = programs.ECHO.path
    names = [
        f"registry.k8s.io/gateway-api/echo-basic:{tag}" for tag in ("v1", "v1.5.1", "v1.6.0-dev.2", "v1.6.0-dev.3")
    ]
    busybox = archives.busybox(_program("bin/busybox", OF_MACHINE))
    return [*busybox, Archive(names, echo, "/echo-basic", ["/echo-basic"])]


def _containerd_configuration(node: Node) -> Path:
    lacking = [f"io.containerd.snapshotter.v1.{name}" for name in PLUGINS_THAT_LACK_SOMETHING]
    folder = node.folder
    path = _configuration(node)
    path.write_text(f"""\
version = 3
root = "{folder}/containerd"
state = "{folder}/state"
disabled_plugins = {json.dumps([*lacking, "io.containerd.nri.v1.nri"])}
[grpc]
  address = "{_socket(node)}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{archives.PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_selinux = false
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_unprivileged_ports = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{_program("usr/lib/cni")}"]
  conf_dir = "{_network_configuration(node)}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "{_program("usr/sbin/runc", OF_MACHINE)}"
  SystemdCgroup = false
""")
    return path


def _network_configuration(node: Node) -> Path:
    """Returns a configuration with a link for each pod, like our own kubelet's."""
    ipam = {
        "type": "host-local",
        "dataDir": str(node.folder / "addresses"),
        "ranges": [[{"subnet": subnet}] for subnet in node.pods],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    }
    plugins = [{"type": "ptp", "ipMasq": False, "ipam": ipam}]
    folder = node.folder / "cni"
    folder.mkdir(exist_ok=True)
    text = json.dumps({"cniVersion": "1.0.0", "name": NAME, "plugins": plugins})
    (folder / "10-cluster.conflist").write_text(text)
    return folder


def _kubelet_configuration(node: Node) -> Path:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{NAME}/{node.name}",
        "enforceNodeAllocatable": [],
        "containerRuntimeEndpoint": f"unix://{_socket(node)}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(certificates.authority())},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "tlsCertFile": str(certificates.certificate(node.name)),
        "tlsPrivateKeyFile": str(certificates.key(node.name)),
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "resolvConf": "",
        "nodeStatusUpdateFrequency": "5s",
        "podLogsDir": str(node.folder / "pod-logs"),
    }
    path = node.folder / "kubelet.json"
    path.write_text(json.dumps(config, indent=2))
    return path


def _wait_for(containerd: Process, node: Node) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        containerd.check()
        try:
            _ctr(node, "version")
            return
        except MissingRequirement:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _ctr(node: Node, *words: str) -> None:
    argv = [_program("usr/bin/ctr"), f"--address={_socket(node)}", "--namespace=k8s.io", *words]
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MissingRequirement(f"`ctr {' '.join(words)}` failed: {done.stderr.strip()}")


def _configuration(node: Node) -> Path:
    return node.folder / "containerd.toml"


def _socket(node: Node) -> Path:
    return node.folder / "containerd.sock"


def _program(path: str, suite: str = programs.SUITE) -> Path:
    return PACKAGES / suite / "root" / path


def _controllers() -> list[Path]:
    """Returns the mount point of each hierarchy; version 2 has one."""
    if (CONTROLLERS / "cgroup.controllers").exists():
        return [CONTROLLERS]
    return [path for path in CONTROLLERS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _make_group(controller: Path, node: Node) -> None:
    for group in (controller / NAME, controller / NAME / node.name):
        group.mkdir(exist_ok=True)
        # Without cpus and mems the cpuset accepts no process.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (group / setting).exists() and controller.name == "cpuset":
                (group / setting).write_text((group.parent / setting).read_text())
