"""Settings that the processes would take: every key is one of theirs, every value one that they accept."""

from __future__ import annotations

from collections.abc import Mapping

from specdec.core.errors import ConfigError
from specdec.edge.config import read_config
from tests.deploy.compose import CONFIGS, is_setting, size
from tests.deploy.manifests import Manifests, Object, containers, pod, shown

# What each Redis must be told, beside its memory.
STORES = {
    "redis": {"maxmemory-policy": "noeviction", "appendonly": "yes"},
    "redis-kv": {"maxmemory-policy": "allkeys-lru", "appendonly": "no"},
}


def names(manifests: Manifests) -> list[str]:
    """A key that no process knows is a setting that nobody reads."""
    found = []
    for workload, container, _ in manifests.processes:
        for configmap in _read_by(manifests, container):
            for key in configmap.get("data") or {}:
                if not is_setting(container["name"], key):
                    found.append(
                        f"{shown(configmap)}: {key} is no setting of {container['name']}: see `python -m "
                        f"{_module(container['name'])} --help` ({shown(workload)} reads it)"
                    )
    return found


def values(manifests: Manifests) -> list[str]:
    """Each process starts with what it is given."""
    found = []
    for workload, container, settings in manifests.processes:
        try:
            read_config(CONFIGS[container["name"]], [], settings, container["name"])
        except ConfigError as error:
            found.append(f"{shown(workload)}: it would not start: {error}")
    return found


def references(manifests: Manifests) -> list[str]:
    """ConfigMaps that pods cannot start without are there; Secrets are never in the manifests."""
    remedy = "refer to it and create it in the cluster: it is not for a repository"
    found = [f"{shown(secret)}: {remedy}" for secret in manifests.of("Secret")]
    for workload in manifests.workloads:
        wanted = [source.get("configMapRef", {}) for c in containers(workload) for source in c.get("envFrom") or []]
        wanted += [volume.get("configMap", {}) for volume in pod(workload).get("volumes") or []]
        for reference in wanted:
            name = reference.get("name")
            if name and not reference.get("optional") and manifests.find("ConfigMap", name) is None:
                found.append(f"{shown(workload)}: needs ConfigMap {name}, which is not there: generate it, or optional")
    return found


def stores(manifests: Manifests) -> list[str]:
    """Sessions are never forgotten, blocks may be; neither Redis outgrows its container."""
    found = []
    for name, wanted in STORES.items():
        workload = next((w for w in manifests.workloads if w["metadata"]["name"] == name), None)
        if workload is None:
            continue
        told = _redis_settings(manifests, workload)
        for key, value in wanted.items():
            if told.get(key) != value:
                found.append(f"{shown(workload)}: {key} is {told.get(key)} in redis.conf: write {value}")
        limit = containers(workload)[0].get("resources", {}).get("limits", {}).get("memory", "0Mi")
        if size(told.get("maxmemory", "0")) > 0.7 * size(limit) or not size(told.get("maxmemory", "0")):
            found.append(
                f"{shown(workload)}: maxmemory is {told.get('maxmemory')} of a limit of {limit}: write at most 70 % of "
                "it, or the kernel ends the server"
            )
        durable = bool(workload["spec"].get("volumeClaimTemplates"))
        if durable != (wanted["appendonly"] == "yes"):
            found.append(f"{shown(workload)}: volumeClaimTemplates and appendonly belong together")
    return found


def _redis_settings(manifests: Manifests, workload: Object) -> Mapping[str, str]:
    for volume in pod(workload).get("volumes") or []:
        configmap = manifests.find("ConfigMap", volume.get("configMap", {}).get("name", ""))
        text = ((configmap or {}).get("data") or {}).get("redis.conf")
        if text is not None:
            lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
            return {line[0]: line[1].strip() for line in lines}
    return {}


def _read_by(manifests: Manifests, container: Object) -> list[Object]:
    sources = [source.get("configMapRef", {}).get("name", "") for source in container.get("envFrom") or []]
    return [found for name in sources if (found := manifests.find("ConfigMap", name)) is not None]


def _module(process: str) -> str:
    return process if process == "coordinator" else f"{process}_service"
