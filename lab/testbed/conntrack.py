"""The kernel's connection tracking table, which makes kube-proxy's choice permanent for a connection."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from typing import Literal

from lab.child import ChildFailed

Transport = Literal["tcp", "udp"]

# The second source is the endpoint that answers, whatever the destination of the request. UDP has no connections: a
# flow counts after both sides have sent more than once.
ANSWERS = {
    "tcp": re.compile(r"\bESTABLISHED\b.*\bsrc=.*\bsrc=(\S+)"),
    "udp": re.compile(r"^udp\b.*\bsrc=.*\bsrc=(\S+).*\[ASSURED\]"),
}


def established(listing: str, transport: Transport = "tcp") -> Counter[str]:
    """Counts open connections by the endpoint that answers, from the output of `conntrack -L`."""
    return Counter(found.group(1) for line in listing.splitlines() if (found := ANSWERS[transport].search(line)))


def node_connections(transport: Transport = "tcp") -> Counter[str]:
    return established(entries(transport), transport)


def entries(transport: Transport) -> str:
    """Returns all entries, one a line."""
    return _conntrack("-L", "-p", transport)


def flush() -> None:
    _conntrack("-F")


def _conntrack(*arguments: str) -> str:
    done = subprocess.run(["conntrack", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChildFailed(f"conntrack {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
