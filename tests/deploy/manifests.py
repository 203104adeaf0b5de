"""What a kustomization builds to, and how its objects hang together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

WORKLOADS = ("Deployment", "StatefulSet")
PART = "app.kubernetes.io/name"
PROCESSES = ("coordinator", "draft", "target")  # names of our own workloads and of their containers


def shown(obj: Object) -> str:
    """As sentences call an object."""
    return f"{obj['kind']} {obj['metadata']['name']}"


def labels(obj: Object) -> Mapping[str, str]:
    """Of an object, or of a pod template."""
    return dict(obj["metadata"].get("labels") or {})


def matches(selector: Object, given: Mapping[str, str]) -> bool:
    """A selector of Kubernetes: matchLabels and matchExpressions, both empty: everything."""
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    return wanted.items() <= given.items() and all(
        _expression(each, given.get(each["key"])) for each in selector.get("matchExpressions") or []
    )


def _expression(expression: Object, value: str | None) -> bool:
    operator, values = expression["operator"], expression.get("values") or []
    met: bool = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[operator]
    return met


@dataclass(frozen=True, slots=True)
class Manifests:
    """name: the kustomization's."""

    name: str
    objects: tuple[Object, ...]

    def of(self, *kinds: str) -> list[Object]:
        return [obj for obj in self.objects if obj["kind"] in kinds]

    def find(self, kind: str, name: str) -> Object | None:
        return next((obj for obj in self.of(kind) if obj["metadata"]["name"] == name), None)

    @property
    def workloads(self) -> list[Object]:
        return self.of(*WORKLOADS)

    @property
    def processes(self) -> list[tuple[Object, Object, Mapping[str, str]]]:
        """Workload, container and settings of each process of ours."""
        found = []
        for workload in self.workloads:
            for container in containers(workload):
                if container["name"] in PROCESSES:
                    found.append((workload, container, self.settings(container)))
        return found

    def settings(self, container: Object) -> Mapping[str, str]:
        """What a container finds in its environment, as far as manifests say; what comes later wins."""
        merged: dict[str, str] = {}
        for source in container.get("envFrom") or []:
            found = self.find("ConfigMap", source["configMapRef"]["name"]) if "configMapRef" in source else None
            merged.update((found or {}).get("data") or {})
        merged.update({each["name"]: each["value"] for each in container.get("env") or [] if "value" in each})
        return merged


def pod(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def containers(workload: Object) -> list[Object]:
    return list(pod(workload)["containers"])


def all_containers(workload: Object) -> list[Object]:
    """Those that run before the others too."""
    return [*(pod(workload).get("initContainers") or []), *containers(workload)]


def ports(workload: Object) -> Iterator[tuple[str, int]]:
    """Name and number of each port of its pods."""
    for container in containers(workload):
        for port in container.get("ports") or []:
            yield port.get("name", ""), port["containerPort"]
