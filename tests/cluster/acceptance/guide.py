"""Manifests in the documentation, which tests apply as they are."""

from __future__ import annotations

import re

from tests.cluster.layout import REPOSITORY

GUIDE = REPOSITORY / "docs" / "guide" / "autoscaling.md"
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def manifest(kind: str, namespace: str) -> str:
    """Returns the manifest of this kind in the guide to autoscaling, for another namespace than that of the guide."""
    blocks = [block for block in YAML_BLOCK.findall(GUIDE.read_text()) if f"\nkind: {kind}\n" in block]
    if len(blocks) != 1:
        raise AssertionError(f"{GUIDE} has {len(blocks)} manifests of the kind {kind}")
    return blocks[0].replace("namespace: shop", f"namespace: {namespace}")
