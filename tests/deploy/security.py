"""What a pod may do, and that its image is always the same one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.deploy.manifests import Manifests, all_containers, pod, shown

# A whole version, perhaps with a variant, or a digest: tags such as `7` or `latest` move.
PINNED = re.compile(r"[^:@]+(/[^:@]+)*(:v?\d+\.\d+\.\d+([-+.][\w.-]+)?(@sha256:[0-9a-f]{64})?|@sha256:[0-9a-f]{64})")

OF_PODS: Mapping[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
OF_CONTAINERS: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
LEFT_OUT: Mapping[str, Any] = {"automountServiceAccountToken": False, "enableServiceLinks": False}


def images(manifests: Manifests) -> list[str]:
    found = []
    for workload in manifests.workloads:
        for container in all_containers(workload):
            if not PINNED.fullmatch(container["image"]):
                found.append(
                    f"{shown(workload)}: container {container['name']} runs image {container['image']}: pin a whole "
                    "version or a digest"
                )
    return found


def contexts(manifests: Manifests) -> list[str]:
    """Nobody is root, writes to the image, gains rights or holds a token of the API server."""
    found = []
    for workload in manifests.workloads:
        spec = pod(workload)
        context = spec.get("securityContext") or {}
        found += _differences(f"{shown(workload)}: securityContext.", context, OF_PODS)
        found += _differences(f"{shown(workload)}: ", spec, LEFT_OUT)
        if not context.get("runAsUser"):
            found.append(
                f"{shown(workload)}: securityContext.runAsUser is {context.get('runAsUser')}: write a number above 0, "
                "the kubelet does not trust a name"
            )
        for container in all_containers(workload):
            name, own = f"{shown(workload)}: container {container['name']}", container.get("securityContext") or {}
            found += _differences(f"{name}: securityContext.", own, OF_CONTAINERS)
            if own.get("runAsUser") == 0 or own.get("runAsNonRoot") is False:
                found.append(f"{name} runs as root: leave that to the pod")
    return found


def _differences(prefix: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return [
        f"{prefix}{key} is {given.get(key)}: write {value}" for key, value in wanted.items() if given.get(key) != value
    ]


def resources(manifests: Manifests) -> list[str]:
    """Each container says what it needs, and memory that it may take is memory that it was given."""
    found = []
    for workload in manifests.workloads:
        for container in all_containers(workload):
            given = container.get("resources") or {}
            requests, limits = given.get("requests") or {}, given.get("limits") or {}
            name = f"{shown(workload)}: container {container['name']}"
            wanted = (("requests", requests), ("limits", limits))
            missing = [f"{kind}.{what}" for kind, has in wanted for what in ("cpu", "memory") if what not in has]
            if missing:
                found.append(f"{name} has no resources.{', '.join(missing)}: write them")
            elif requests["memory"] != limits["memory"]:
                found.append(
                    f"{name}: memory is {requests['memory']} requested and {limits['memory']} allowed: write the same, "
                    "or a full node ends it"
                )
    return found
