"""The kinds that operators add, key by key. An API server prunes a key that it does not know without a word, and so a
misspelt field is a default. The models of these kinds on the package index accept unknown keys too, are of older
versions and bring an HTTP client along: what these manifests may use is written down here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.deploy.manifests import Object

Keys = Mapping[str, Any]  # what may stand below each key: more keys, or a type

METADATA: Keys = {"name": str, "namespace": str, "labels": dict, "annotations": dict}
POLICIES: Keys = {"type": str, "value": int, "periodSeconds": int}
DIRECTION: Keys = {"stabilizationWindowSeconds": int, "selectPolicy": str, "policies": POLICIES}
SELECTOR: Keys = {"matchLabels": dict, "matchExpressions": {"key": str, "operator": str, "values": list}}
PROMETHEUS: Keys = dict.fromkeys(
    ("serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues", "namespace", "unsafeSsl"), str
) | {"customHeaders": str, "queryParameters": str, "authModes": str, "timeout": str}

CRDS: Mapping[str, Keys] = {
    "ScaledObject": {
        "scaleTargetRef": {"apiVersion": str, "kind": str, "name": str},
        "pollingInterval": int,
        "cooldownPeriod": int,
        "minReplicaCount": int,
        "maxReplicaCount": int,
        "fallback": {"failureThreshold": int, "replicas": int, "behavior": str},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": DIRECTION, "scaleDown": DIRECTION}}},
        "triggers": {"type": str, "name": str, "metricType": str, "useCachedMetrics": bool, "metadata": PROMETHEUS},
    },
    "ServiceMonitor": {
        "selector": SELECTOR,
        "namespaceSelector": {"matchNames": list, "any": bool},
        "endpoints": {"port": str, "path": str, "interval": str, "scrapeTimeout": str, "scheme": str},
    },
}
VERSIONS: Mapping[str, str] = {"ScaledObject": "keda.sh/v1alpha1", "ServiceMonitor": "monitoring.coreos.com/v1"}


def strict(obj: Object) -> list[str]:
    kind = obj["kind"]
    keys = {"apiVersion": str, "kind": str, "metadata": METADATA, "spec": CRDS[kind]}
    found = list(_below(obj, keys, ""))
    if obj["apiVersion"] != VERSIONS[kind]:
        found.append(f"apiVersion is {obj['apiVersion']}: write {VERSIONS[kind]}")
    return found


def _below(value: Any, keys: Any, where: str) -> Iterator[str]:
    if isinstance(keys, type):
        if not isinstance(value, keys) or (keys is int and isinstance(value, bool)):
            yield f"{where} is {value!r}: write a {keys.__name__}"
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _below(each, keys, f"{where}.{i}")
    elif isinstance(value, dict):
        for key, each in value.items():
            path = f"{where}.{key}".lstrip(".")
            if key not in keys:
                yield f"{path}: there is no such key: it has {', '.join(keys)}"
            else:
                yield from _below(each, keys[key], path)
    else:
        yield f"{where} is {value!r}: write an object with {', '.join(keys)}"
