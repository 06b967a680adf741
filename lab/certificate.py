"""A certificate that nobody trusts, for what is to be measured with TLS."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab.paths import Missing

HOST = "lab.example"


@dataclass(frozen=True)
class Certificate:
    """Files in PEM. The key's name is the other one's with `.key`, where HAProxy looks for it."""

    chain: Path
    key: Path


def make(folder: Path) -> Certificate:
    """One with an ECDSA key on P-256, valid for a day, for `HOST`."""
    if not shutil.which("openssl"):
        raise Missing("openssl is not there. Run: sudo apt-get install openssl")
    made = Certificate(folder / "lab.pem", folder / "lab.pem.key")
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "1", "-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}", "-out", str(made.chain)]
    done = subprocess.run([*argv, "-keyout", str(made.key)], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f"openssl makes no certificate: {done.stderr.strip()}")
    return made
