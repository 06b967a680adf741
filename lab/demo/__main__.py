"""Runs the demo: the article's application behind Sheave, Locust before it, a second replica in the middle.

Exit codes: 0 the new replica got its share, 1 the demo cannot run here, 2 it did not, 130 interrupted.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from lab.child import ChildFailed
from lab.demo.loopback import Demo
from lab.paths import Missing, build

ARTICLE = "»Fixing Kubernetes Load Balancing with HTTP/3« (April 2026)"


def main() -> int:
    print(f"As in {ARTICLE}: FastAPI on Hypercorn, a second per request, Locust users who keep their connections.")
    try:
        build("sheave")
        with ExitStack() as running, tempfile.TemporaryDirectory(prefix="sheave-demo-") as folder:
            return 0 if Demo(running, Path(folder)).run() else 2
    except (Missing, ChildFailed) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; everything it started has been stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
