"""Certificates of a cluster: one authority signs everything, and each component has a kubeconfig."""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path

from lab.paths import MissingRequirement
from tests.cluster.layout import API_SERVER, API_SERVER_PORT, API_SERVICE, CERTIFICATES, KUBECONFIG, NODES, Node

DAYS = "30"
CLIENT = "extendedKeyUsage=clientAuth"
API_SERVER_NAMES = (
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster.local",
    "DNS:localhost",
    "IP:127.0.0.1",
    f"IP:{API_SERVER}",
    *(f"IP:{address}" for address in API_SERVICE),
)
# Settings of `openssl ca`, which signs for any time.
CA_CONFIG = """
[ca]
default_ca = own
[own]
database = {folder}/index.txt
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
policy = names
[names]
organizationName = optional
commonName = supplied
"""
CA_TIME = "%Y%m%d%H%M%SZ"
# File name and subject; the organisation is the group for the API server.
CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "to-kubelet": "/O=system:masters/CN=kube-apiserver-kubelet-client",
    "aggregator": "/CN=aggregator",
}


def make() -> None:
    CERTIFICATES.mkdir(mode=0o700)
    _make_authority()
    _make_service_account_keys()
    _sign("api-server", "/CN=kube-apiserver", _server_extensions(API_SERVER_NAMES))
    for name, subject in CLIENTS.items():
        _sign(name, subject, CLIENT)
        kubeconfig(name).write_text(_kubeconfig(name))
    for node in NODES:
        make_kubelet(node)
    KUBECONFIG.write_text(kubeconfig("admin").read_text())
    KUBECONFIG.chmod(0o600)


def make_kubelet(node: Node) -> None:
    """Makes the certificate and the kubeconfig of a node's kubelet."""
    _sign(node.name, f"/O=system:nodes/CN=system:node:{node.name}", _kubelet_extensions(node))
    kubeconfig(node.name).write_text(_kubeconfig(node.name))


def sign_for_time(name: str, begin: datetime, end: datetime) -> None:
    """Signs the certificate of this name again, valid from `begin` to `end`; its key stays."""
    with tempfile.TemporaryDirectory() as folder:
        config, signed = Path(folder) / "ca.conf", Path(folder) / "signed.crt"
        (Path(folder) / "index.txt").touch()
        (Path(folder) / "serial").write_text("1000")
        config.write_text(CA_CONFIG.format(folder=folder))
        times = ("-startdate", begin.strftime(CA_TIME), "-enddate", end.strftime(CA_TIME))
        request = ("-in", CERTIFICATES / f"{name}.csr", "-extfile", CERTIFICATES / f"{name}.ext", "-out", signed)
        signing = ("-cert", authority(), "-keyfile", key("authority"))
        _openssl("ca", "-batch", "-notext", "-config", config, *signing, *request, *times)
        certificate(name).write_bytes(signed.read_bytes())


def authority() -> Path:
    return CERTIFICATES / "authority.crt"


def certificate(name: str) -> Path:
    return CERTIFICATES / f"{name}.crt"


def key(name: str) -> Path:
    return CERTIFICATES / f"{name}.key"


def kubeconfig(name: str) -> Path:
    return CERTIFICATES / f"{name}.kubeconfig"


def service_account_key() -> Path:
    """Returns the private key that signs service account tokens; the public key verifies them."""
    return CERTIFICATES / "service-accounts.key"


def service_account_public_key() -> Path:
    return CERTIFICATES / "service-accounts.pub"


def _kubelet_extensions(node: Node) -> str:
    """Returns the extensions of a kubelet's certificate, for client and server use: the API server fetches logs."""
    names = [f"DNS:{node.name}", *(f"IP:{address}" for address in node.addresses)]
    return f"subjectAltName={','.join(names)}\nextendedKeyUsage=serverAuth,clientAuth"


def _server_extensions(names: tuple[str, ...]) -> str:
    return f"subjectAltName={','.join(names)}\nextendedKeyUsage=serverAuth"


def _make_authority() -> None:
    _make_key("authority")
    request = ("req", "-x509", "-new", "-key", key("authority"), "-days", DAYS, "-subj", "/CN=sheave-cluster")
    _openssl(*request, "-out", authority())


def _make_service_account_keys() -> None:
    _openssl("genrsa", "-out", service_account_key(), "2048")
    _openssl("rsa", "-in", service_account_key(), "-pubout", "-out", service_account_public_key())


def _make_key(name: str) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key(name))


def _sign(name: str, subject: str, extensions: str) -> None:
    """Makes the certificate and the key of this name."""
    request, extension_file = CERTIFICATES / f"{name}.csr", CERTIFICATES / f"{name}.ext"
    extension_file.write_text(extensions)
    _make_key(name)
    _openssl("req", "-new", "-key", key(name), "-subj", subject, "-out", request)
    signing = (
        "-CA",
        authority(),
        "-CAkey",
        key("authority"),
        "-CAcreateserial",
        "-days",
        DAYS,
        "-extfile",
        extension_file,
    )
    _openssl("x509", "-req", "-in", request, *signing, "-out", certificate(name))


def _kubeconfig(name: str) -> str:
    """Writes a kubeconfig as JSON, which is valid YAML."""
    server = {"server": f"https://{API_SERVER}:{API_SERVER_PORT}", "certificate-authority-data": _base64(authority())}
    user = {"client-certificate-data": _base64(certificate(name)), "client-key-data": _base64(key(name))}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "sheave-cluster", "cluster": server}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "sheave-cluster", "context": {"cluster": "sheave-cluster", "user": name}}],
        "current-context": "sheave-cluster",
    }
    return json.dumps(config, indent=2) + "\n"


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise MissingRequirement(f"openssl makes no certificate: {done.stderr.strip()}")
