"""Certificates of a private authority, for measurements with TLS."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab.paths import MissingRequirement

HOST = "lab.example"
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# A leaf certificate, because some clients reject a certificate that is its own authority.
LEAF = """\
subjectAltName={names}
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
"""


@dataclass(frozen=True)
class Certificate:
    """PEM files. The key's name is the chain's with `.key`, where HAProxy looks for it."""

    chain: Path
    key: Path
    # Certificate of the signing authority.
    authority: Path


def make(folder: Path, *addresses: str) -> Certificate:
    """Creates an ECDSA certificate on P-256, valid for a day, and its authority. Both ends of a connection can use it. It
    is for `HOST` and the names below it, and for IP addresses.
    """
    if not shutil.which("openssl"):
        raise MissingRequirement("openssl is not there. Run: sudo apt-get install openssl")
    made = Certificate(folder / "lab.pem", folder / "lab.pem.key", folder / "authority.pem")
    signing_key, request, extensions = (folder / name for name in ("authority.key", "lab.csr", "lab.ext"))
    names = [f"DNS:{HOST}", f"DNS:*.{HOST}", *(f"IP:{address}" for address in addresses)]
    extensions.write_text(LEAF.format(names=",".join(names)))
    _openssl("req", "-x509", *EC, "-days", "1", "-subj", "/CN=lab", "-out", made.authority, "-keyout", signing_key)
    _openssl("req", *EC, "-subj", f"/CN={HOST}", "-out", request, "-keyout", made.key)
    signing = ("-CA", made.authority, "-CAkey", signing_key, "-set_serial", "1", "-days", "1", "-extfile", extensions)
    _openssl("x509", "-req", "-in", request, *signing, "-out", made.chain)
    return made


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise MissingRequirement(f"openssl makes no certificate: {done.stderr.strip()}")
