"""Kubernetes objects of Services and nodes, for `sheave l4 --config`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lab.article003.services import Service
from lab.article003.site import NODES, POD, NodePlan

# Class by which a Service selects Sheave.
LOAD_BALANCER_CLASS = "sheave.dev/l4"
POD_NODE = NODES[1].name


def documents(services: Sequence[Service]) -> str:
    """Returns the objects as documents of YAML, each of them one line of JSON."""
    objects = [*map(_node, NODES), *(each for service in services for each in (_service(service), _slice(service)))]
    return "---\n".join(f"{json.dumps(each)}\n" for each in objects)


def _node(plan: NodePlan) -> dict[str, Any]:
    addresses = [{"type": "InternalIP", "address": plan.address}, {"type": "Hostname", "address": plan.name}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": plan.name},
        "spec": {"podCIDR": plan.pod_subnet, "podCIDRs": [plan.pod_subnet]},
        "status": {"addresses": addresses},
    }


def _service(service: Service) -> dict[str, Any]:
    ports = [{"name": f"p{port}", "protocol": "TCP", "port": port, "targetPort": port} for port in service.ports]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service.name, "namespace": "default"},
        "spec": {
            "type": "LoadBalancer",
            "loadBalancerClass": LOAD_BALANCER_CLASS,
            "clusterIP": service.cluster_ip,
            "clusterIPs": [service.cluster_ip],
            "ipFamilies": ["IPv4"],
            "ports": ports,
        },
        "status": {"loadBalancer": {"ingress": [{"ip": service.vip, "ipMode": "VIP"}]}},
    }


def _slice(service: Service) -> dict[str, Any]:
    conditions = {"ready": True, "serving": True, "terminating": False}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service.name}-1",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service.name},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [POD], "nodeName": POD_NODE, "conditions": conditions}],
        "ports": [{"name": f"p{port}", "protocol": "TCP", "port": port} for port in service.ports],
    }
