"""What the kernel remembers of connections: the table that makes kube-proxy's choice last."""

from __future__ import annotations

import re
import subprocess
from collections import Counter

from lab.child import ChildFailed

# The second source is who answers, whatever address was asked.
ANSWERS = re.compile(r"\bESTABLISHED\b.*\bsrc=.*\bsrc=(\S+)")


def established(listing: str) -> Counter[str]:
    """Open connections by the address that really answers, from what `conntrack -L` prints."""
    return Counter(found.group(1) for line in listing.splitlines() if (found := ANSWERS.search(line)))


def of_node() -> Counter[str]:
    return established(_conntrack("-L", "-p", "tcp"))


def forget() -> None:
    _conntrack("-F")


def _conntrack(*arguments: str) -> str:
    done = subprocess.run(["conntrack", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChildFailed(f"conntrack {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
