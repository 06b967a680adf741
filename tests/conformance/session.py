"""Niquests session that prints the HTTP version of each answer, one a line.

    python session.py URL AUTHORITY forced|discovering|unchecked COUNT

`forced` starts with HTTP/3, like the users of article 000; `discovering` starts over TCP and follows `Alt-Svc`;
`unchecked` is forced and checks no certificate, like those users.
"""

from __future__ import annotations

import sys
import warnings
from urllib.parse import urlsplit

import niquests

warnings.simplefilter("ignore")
TIMEOUT_SECONDS = 30
VERSIONS = {11: "HTTP/1.1", 20: "HTTP/2", 30: "HTTP/3"}


def main(url: str, authority: str, mode: str, count: int) -> None:
    only = {} if mode == "discovering" else {"disable_http1": True, "disable_http2": True}
    with niquests.Session(multiplexed=False, **only) as session:
        if only:
            place = urlsplit(url)
            session.quic_cache_layer.add_domain(place.hostname, place.port)
        verify = False if mode == "unchecked" else authority
        for _ in range(count):
            answer = session.get(url, verify=verify, timeout=TIMEOUT_SECONDS)
            print(VERSIONS[answer.http_version], answer.status_code, len(answer.content))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
