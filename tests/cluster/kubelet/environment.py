"""Environment of a container: literal values, and values from the pod, Secrets and ConfigMaps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.cluster.api import Object
from tests.cluster.layout import API_SERVICE

PATH = "/:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip

# Maps (kind, namespace, name) to content, or None if it is missing. The kind is "secrets" or "configmaps".
Data = Callable[[str, str, str], Mapping[str, bytes] | None]


class MissingSource(Exception):
    """A container's requirement is missing; the message may appear in a status."""


def build(pod: Object, container: Object, addresses: Mapping[str, str], data: Data) -> dict[str, str]:
    """Returns the environment; later entries override earlier ones, as the API specifies."""
    four, six = API_SERVICE
    environment = {
        "PATH": PATH,
        "HOSTNAME": addresses["hostname"],
        "KUBERNETES_SERVICE_HOST": four,
        "KUBERNETES_SERVICE_PORT": "443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "443",
        "HOME": "/root" if container.get("securityContext", {}).get("runAsUser", 0) == 0 else "/",
    }
    for source in container.get("envFrom", []):
        environment |= _all_keys(source, pod["metadata"]["namespace"], data)
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            value = _value_from(entry["valueFrom"], pod, container, addresses, data)
        else:
            value = expand(entry.get("value", ""), environment)
        if value is not None:
            environment[entry["name"]] = value
    return environment


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Expands `$(NAME)` if the variable exists; `$$` is one dollar."""
    return REFERENCE.sub(lambda found: _expanded(found, environment), text)


def expand_all(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    return [expand(word, environment) for word in words]


def field(pod: Object, path: str, addresses: Mapping[str, str]) -> str:
    """Returns a field of the pod, for the paths that the API allows."""
    metadata, spec = pod["metadata"], pod["spec"]
    if found := SUBSCRIPT.fullmatch(path):
        return metadata.get(found[1], {}).get(found[2], "")
    if path in ("metadata.labels", "metadata.annotations"):
        return "".join(f'{key}="{value}"\n' for key, value in sorted(metadata.get(path[9:], {}).items()))
    plain = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec["nodeName"],
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        **addresses,
    }
    if path not in plain:
        raise MissingSource(f"unsupported field path {path}")
    return plain[path]


def resource(pod: Object, reference: Mapping[str, str], container: Object | None = None) -> str:
    """Returns a container's limit or request in units of the divisor, rounded up."""
    if name := reference.get("containerName"):
        container = next(found for found in pod["spec"]["containers"] if found["name"] == name)
    kind, _, name = reference["resource"].partition(".")
    amount = ((container or {}).get("resources", {}).get(kind) or {}).get(name, "0")
    return str(math.ceil(quantity(amount) / (quantity(str(reference.get("divisor", "1"))) or 1)))


def quantity(text: str) -> float:
    """Parses quantities such as `500m` or `1Gi`."""
    found = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", text)
    if not found or found[2] not in SUFFIXES:
        raise MissingSource(f"{text} is not a quantity")
    return float(found[1]) * SUFFIXES[found[2]]


def _expanded(found: re.Match[str], environment: Mapping[str, str]) -> str:
    if found[0] == "$$":
        return "$"
    return environment.get(found[1], found[0])


def _all_keys(source: Object, namespace: str, data: Data) -> dict[str, str]:
    prefix = source.get("prefix", "")
    for word, kind in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
        if reference := source.get(word):
            held = _source_data(kind, namespace, reference, data)
            return {prefix + key: value.decode(errors="replace") for key, value in (held or {}).items()}
    raise MissingSource(f"unsupported source of an environment: {source}")


def _value_from(source: Object, pod: Object, container: Object, addresses: Mapping[str, str], data: Data) -> str | None:
    """Returns a value, or None if an optional source is missing."""
    namespace = pod["metadata"]["namespace"]
    if reference := source.get("fieldRef"):
        return field(pod, reference["fieldPath"], addresses)
    if reference := source.get("resourceFieldRef"):
        return resource(pod, reference, container)
    for word, kind in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if reference := source.get(word):
            held = _source_data(kind, namespace, reference, data)
            if held is None or reference["key"] not in held:
                if reference.get("optional"):
                    return None
                raise MissingSource(
                    f"couldn't find key {reference['key']} in {kind[:-1]} {namespace}/{reference['name']}"
                )
            return held[reference["key"]].decode(errors="replace")
    raise MissingSource(f"unsupported source of a variable: {source}")


def _source_data(kind: str, namespace: str, reference: Mapping[str, Any], data: Data) -> Mapping[str, bytes] | None:
    held = data(kind, namespace, reference["name"])
    if held is None and not reference.get("optional"):
        raise MissingSource(f'{kind[:-1]} "{reference["name"]}" not found')
    return held
