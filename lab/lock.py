"""File locks of the kernel, which end with their process."""

from __future__ import annotations

import fcntl
import time
from typing import IO

POLL_SECONDS = 0.05


def try_lock(file: IO[str], seconds: float = 0.0) -> bool:
    """Locks the file, waiting at most `seconds`; returns true on success."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
        else:
            return True
