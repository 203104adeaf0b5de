"""What must agree for a message to arrive: ports, selectors, names."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.deploy.manifests import Manifests, Object, labels, matches, pod, ports, shown

POOLS = ("draft", "target")


def service_ports(manifests: Manifests) -> list[str]:
    """Each port of a Service is one of the pods that it stands for."""
    found = []
    for service in manifests.of("Service"):
        chosen = [w for w in manifests.workloads if _selected(service["spec"].get("selector") or {}, w)]
        if len(chosen) != 1:
            names = ", ".join(map(shown, chosen)) or "no workload"
            found.append(f"{shown(service)}: spec.selector finds {names}: it must find one workload's pods")
            continue
        offered = list(ports(chosen[0]))
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            if not any(target in each for each in offered):
                found.append(
                    f"{shown(service)}: port {port['port']} goes to targetPort {target!r}, which {shown(chosen[0])} "
                    f"does not open: it opens {', '.join(f'{name} {number}' for name, number in offered)}"
                )
            elif port["port"] not in (number for name, number in offered if target in (name, number)):
                found.append(
                    f"{shown(service)}: port {port['port']} stands for another number behind targetPort {target!r}: "
                    "a headless name gives pods' addresses, so both must be the same"
                )
    return found


def selectors(manifests: Manifests) -> list[str]:
    """Whatever selects pods selects some; a workload its own."""
    found = []
    for workload in manifests.workloads:
        if not matches(workload["spec"]["selector"], labels(workload["spec"]["template"])):
            found.append(
                f"{shown(workload)}: spec.selector {workload['spec']['selector']} does not match the labels of its own "
                "template: the API server refuses it"
            )
        for spread in pod(workload).get("topologySpreadConstraints") or []:
            if not matches(spread["labelSelector"], labels(workload["spec"]["template"])):
                found.append(f"{shown(workload)}: topologySpreadConstraints count others' pods: select its own")
    for obj in manifests.of("PodDisruptionBudget", "NetworkPolicy"):
        selector = obj["spec"].get("selector") or obj["spec"].get("podSelector") or {}
        if not any(matches(selector, labels(w["spec"]["template"])) for w in manifests.workloads):
            found.append(f"{shown(obj)}: selects no pod by {selector}: write the labels of a workload's template")
    return found


def listening(manifests: Manifests) -> list[str]:
    """A container's ports are those that its process is told to open, on an interface that others reach."""
    found = []
    for workload, container, settings in manifests.processes:
        opened = {port.get("name"): port["containerPort"] for port in container.get("ports") or []}
        for name, setting in (("grpc", "PORT"), ("metrics", "METRICS_PORT")):
            if str(opened.get(name)) != settings.get(setting):
                found.append(
                    f"{shown(workload)}: containerPort {name} is {opened.get(name)}, but {setting} is "
                    f"{settings.get(setting)}: write the same number"
                )
        if settings.get("HOST") != "0.0.0.0":
            found.append(f"{shown(workload)}: HOST is {settings.get('HOST')}: write 0.0.0.0, or nobody reaches the pod")
    return found


def addresses(manifests: Manifests) -> list[str]:
    """Every host that a process is told is a Service with that port; the pools' are headless: behind a virtual
    address gRPC would keep to one pod."""
    found = []
    for workload, _, settings in manifests.processes:
        for setting, host, port in _named(settings):
            service = manifests.find("Service", host)
            if service is None:
                found.append(f"{shown(workload)}: {setting} names {host}, and there is no such Service")
            elif port not in [each["port"] for each in service["spec"]["ports"]]:
                found.append(f"{shown(workload)}: {setting} asks {host} for port {port}, which its Service has not")
    for name in POOLS:
        service = manifests.find("Service", name)
        if service is not None and service["spec"].get("clusterIP") != "None":
            found.append(
                f"{shown(service)}: spec.clusterIP is {service['spec'].get('clusterIP')}: write None, or every call of "
                "a coordinator goes to one pod"
            )
    return found


def _named(settings: object) -> Iterator[tuple[str, str, int]]:
    assert isinstance(settings, dict)
    for name, value in settings.items():
        if name.endswith("_ADDRESSES"):
            for address in value.split(","):
                host, _, port = address.rpartition(":")
                yield name, host, int(port)
        elif name.endswith("_STORE_URL"):
            url = urlsplit(value)
            yield name, url.hostname or "", url.port or 6379


def _selected(selector: Object, workload: Object) -> bool:
    return bool(selector) and matches({"matchLabels": selector}, labels(workload["spec"]["template"]))
