"""Probes that ask the right question: a restart for what a restart mends, traffic for whoever can serve it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from protos import draft_pb2, generation_pb2, target_pb2
from specdec.edge.server import LIVE
from tests.deploy.manifests import Manifests, Object, containers, shown

SERVING = {
    "coordinator": generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name,
    "draft": draft_pb2.DESCRIPTOR.services_by_name["DraftService"].full_name,
    "target": target_pb2.DESCRIPTOR.services_by_name["TargetService"].full_name,
}
KINDS = ("startupProbe", "livenessProbe", "readinessProbe")
LOADING = {"coordinator": 60, "draft": 300, "target": 300}  # seconds that coming up may take at least
HEALTH = "specdec.edge.health"


def present(manifests: Manifests) -> list[str]:
    """Each container has all three."""
    return [
        f"{shown(workload)}: container {container['name']} has no {kind}: add one"
        for workload in manifests.workloads
        for container in containers(workload)
        for kind in KINDS
        if kind not in container
    ]


def questions(manifests: Manifests) -> list[str]:
    """Startup and liveness ask whether it lives, readiness whether it serves; on the port that it serves on."""
    found = []
    for workload, container, settings in manifests.processes:
        for kind in (kind for kind in KINDS if kind in container):
            port, service = _asked(container[kind], settings)
            wanted = SERVING[container["name"]] if kind == "readinessProbe" else LIVE
            if service != wanted:
                found.append(
                    f"{shown(workload)}: {kind} asks for {service!r}: ask for {wanted!r}, or "
                    + ("an unready pod gets traffic" if wanted != LIVE else "load, or the loss of others, restarts it")
                )
            if str(port) != settings.get("PORT"):
                found.append(f"{shown(workload)}: {kind} asks port {port}, but PORT is {settings.get('PORT')}")
            found += _spoken(workload, kind, container[kind], settings)
    return found


def patience(manifests: Manifests) -> list[str]:
    """A model may take its time to load; one late answer restarts nobody."""
    found = []
    for workload, container, _ in manifests.processes:
        startup, liveness = container.get("startupProbe", {}), container.get("livenessProbe", {})
        seconds = startup.get("failureThreshold", 3) * startup.get("periodSeconds", 10)
        if startup and seconds < LOADING[container["name"]]:
            found.append(
                f"{shown(workload)}: startupProbe gives up after {seconds} s (failureThreshold x periodSeconds): give "
                f"at least {LOADING[container['name']]} s"
            )
        if liveness.get("failureThreshold", 3) < 3:
            found.append(f"{shown(workload)}: livenessProbe.failureThreshold is below 3: one pause must not kill")
    return found


def _asked(probe: Object, settings: Mapping[str, str]) -> tuple[object, str]:
    """Port and service of grpc.health.v1 that a probe asks for; a command reads what it is not told."""
    if "grpc" in probe:
        return probe["grpc"]["port"], probe["grpc"].get("service") or ""
    command = (probe.get("exec") or {}).get("command") or []
    given = dict(pairwise(command))
    return given.get("--port", settings.get("PORT")), given.get("--health-service", "")


def _spoken(workload: Object, kind: str, probe: Object, settings: Mapping[str, str]) -> list[str]:
    """The kubelet speaks no TLS, and shows no certificate."""
    if "grpc" not in probe and HEALTH not in (probe.get("exec") or {}).get("command", []):
        return [f"{shown(workload)}: {kind} asks neither by grpc nor by `python -m {HEALTH}`: do one"]
    if "grpc" in probe and "TLS_CERTIFICATE" in settings:
        return [f"{shown(workload)}: {kind}.grpc cannot ask a server with TLS_CERTIFICATE: exec `python -m {HEALTH}`"]
    return []
