"""The article's application and users over HTTP/3, in a Python environment of their own: one of the article's packages
puts itself in the place of `urllib3` for everything beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lab.article import locust_run
from lab.certificate import Certificate
from lab.paths import CACHE, MissingRequirement
from lab.testbed.pods import PORT, SECURE_PORT, Application

PYTHON = CACHE / "venv-http3" / "bin" / "python"
USERS = Path(__file__).with_name("http3_users.py")
# One of a kind of user for each way to come; the first two know from the start what to speak.
KINDS = ("Http2User", "Http3User", "DiscoveringUser")

# As the article's, but for the port that clients are told: that is the variant's.
HYPERCORN = """\
worker_class = "trio"
workers = 0
bind = "{ip}:{secure_port}"
quic_bind = "{ip}:{secure_port}"
insecure_bind = "{ip}:{port}"
alt_svc_headers = ["h3=\\":{advertised_port}\\"; ma=86400"]
certfile = "{certificate.chain}"
keyfile = "{certificate.key}"
# As without TLS.
backlog = 1024
"""


def obstacle() -> str | None:
    """Why there is no HTTP/3 here, in a sentence; None if there is."""
    return None if PYTHON.is_file() else f"{PYTHON} is not there: run scripts/setup lab"


def application(folder: Path, certificate: Certificate, advertised_port: int) -> Application:
    """The article's, over HTTP/1.1 in the clear, HTTP/2 and HTTP/3; advertised_port is what its Alt-Svc says."""
    if reason := obstacle():
        raise MissingRequirement(reason)
    return Application(partial(_hypercorn, folder, certificate, advertised_port), locust_run.responds)


def _hypercorn(folder: Path, certificate: Certificate, advertised_port: int, address: str) -> Sequence[object]:
    ip = address.partition(":")[0]
    path = folder / f"hypercorn-{ip}.toml"
    path.write_text(
        HYPERCORN.format(
            ip=ip, port=PORT, secure_port=SECURE_PORT, advertised_port=advertised_port, certificate=certificate
        )
    )
    return [PYTHON, "-m", "hypercorn", "--config", path, "lab.article.app:app"]


def locust(address: str, users: int, kind: str) -> list[object]:
    """The command that sends so many users of one of `KINDS` to an address."""
    return locust_run.locust(f"https://{address}", users, kind, python=PYTHON, file=USERS)
