"""The article's application and users over HTTP/3. They have their own Python environment, because one of the article's
packages replaces `urllib3` for every other package.
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
# One user class for each way to connect; the first two use a fixed protocol from the start.
KINDS = ("Http2User", "Http3User", "DiscoveringUser")

# The article's configuration; only the advertised port differs by variant.
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
    """Returns the reason why HTTP/3 is not available, or None."""
    return None if PYTHON.is_file() else f"{PYTHON} is not there: run scripts/setup lab"


def application(folder: Path, certificate: Certificate, advertised_port: int) -> Application:
    """Returns the article's application over plain HTTP/1.1, HTTP/2 and HTTP/3; Alt-Svc names `advertised_port`."""
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
    """Returns the command that runs `users` users of one of `KINDS` against an address."""
    return locust_run.locust(f"https://{address}", users, kind, python=PYTHON, file=USERS)
