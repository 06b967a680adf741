"""Control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler in a separate namespace."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from tests.cluster import certificates
from tests.cluster.layout import (
    API_SERVER,
    API_SERVER_PORT,
    CONTROL_PLANE_NAMESPACE,
    PROGRAMS,
    REPOSITORY,
    SERVICES,
    STATE,
)
from tests.cluster.processes import PYTHON, Process, own_group

# A separate group for the API server, so that tests can stop it alone.
GROUP, API_SERVER_GROUP = "control", "api-server"
GROUPS = (GROUP, API_SERVER_GROUP)
ETCD = "http://127.0.0.1:2379"
PEERS = "http://127.0.0.1:2380"
AGGREGATOR = "aggregator"
# A garbage collection of the API server takes two cores for 150 ms, every two seconds under load. With 1,000 routes it
# caused each delay of more than 70 ms until a change was served. With cores of its own the effect disappears.
FEW_COLLECTIONS = {"GOGC": "800", "GOMEMLIMIT": "4GiB"}


def start_etcd() -> Process:
    return _start(
        "etcd",
        # A power failure may lose a test cluster's data.
        unsafe_no_fsync=True,
        data_dir=STATE / "etcd",
        listen_client_urls=ETCD,
        advertise_client_urls=ETCD,
        listen_peer_urls=PEERS,
        log_level="warn",
    )


def start_api_server() -> Process:
    return _start(
        "kube-apiserver",
        API_SERVER_GROUP,
        FEW_COLLECTIONS,
        etcd_servers=ETCD,
        bind_address="::",
        advertise_address=API_SERVER,
        secure_port=API_SERVER_PORT,
        tls_cert_file=certificates.certificate("api-server"),
        tls_private_key_file=certificates.key("api-server"),
        client_ca_file=certificates.authority(),
        service_account_key_file=certificates.service_account_public_key(),
        service_account_signing_key_file=certificates.service_account_key(),
        service_account_issuer="https://kubernetes.default.svc.cluster.local",
        service_cluster_ip_range=",".join(SERVICES),
        authorization_mode="Node,RBAC",
        allow_privileged=True,
        kubelet_certificate_authority=certificates.authority(),
        kubelet_client_certificate=certificates.certificate("to-kubelet"),
        kubelet_client_key=certificates.key("to-kubelet"),
        kubelet_preferred_address_types="InternalIP",
        requestheader_client_ca_file=certificates.authority(),
        requestheader_allowed_names=AGGREGATOR,
        requestheader_username_headers="X-Remote-User",
        requestheader_group_headers="X-Remote-Group",
        requestheader_extra_headers_prefix="X-Remote-Extra-",
        proxy_client_cert_file=certificates.certificate(AGGREGATOR),
        proxy_client_key_file=certificates.key(AGGREGATOR),
        # Nodes and pods route Services, but the control plane does not, so it contacts an aggregated server by its
        # endpoints.
        enable_aggregator_routing=True,
    )


def stop_api_server() -> None:
    """Kills the API server, like a crash."""
    for pid in own_group(API_SERVER_GROUP).processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start_controllers() -> list[Process]:
    manager = certificates.kubeconfig("controller-manager")
    scheduler = certificates.kubeconfig("scheduler")
    return [
        _start(
            "kube-controller-manager",
            kubeconfig=manager,
            authentication_kubeconfig=manager,
            authorization_kubeconfig=manager,
            service_account_private_key_file=certificates.service_account_key(),
            root_ca_file=certificates.authority(),
            cluster_signing_cert_file=certificates.authority(),
            cluster_signing_key_file=certificates.key("authority"),
            use_service_account_credentials=True,
            # Each node registers its own pod range.
            allocate_node_cidrs=False,
            leader_elect=False,
            bind_address="127.0.0.1",
            # Short intervals, because tests stop nodes and wait for the reaction.
            node_monitor_grace_period="20s",
            horizontal_pod_autoscaler_sync_period="5s",
        ),
        _start(
            "kube-scheduler",
            kubeconfig=scheduler,
            authentication_kubeconfig=scheduler,
            authorization_kubeconfig=scheduler,
            leader_elect=False,
            bind_address="127.0.0.1",
        ),
    ]


def start_load_balancers() -> Process:
    return Process(
        "load-balancers",
        [sys.executable, "-m", "tests.cluster.load_balancers"],
        group=own_group(GROUP),
        namespace=CONTROL_PLANE_NAMESPACE,
        folder=REPOSITORY,
        env=PYTHON,
    )


def _start(name: str, part: str = GROUP, env: dict[str, str] | None = None, **flags: object) -> Process:
    argv = [PROGRAMS / name, *(_flag(flag, value) for flag, value in flags.items())]
    return Process(name, argv, group=own_group(part), namespace=CONTROL_PLANE_NAMESPACE, folder=STATE, env=env)


def _flag(name: str, value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"--{name.replace('_', '-')}={text}"
