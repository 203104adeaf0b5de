"""Mistakes in the real manifests, one each, with the check that is to name it, the build that is spoilt, and what the
sentence says."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.deploy.manifests import Manifests, Object, pod

Change = Callable[["Draft"], None]


@dataclass(frozen=True, slots=True)
class Draft:
    """A build to spoil."""

    build: Manifests
    added: list[Object]

    def __getitem__(self, name: str) -> Object:
        """`Kind name`; the name may lack the hash that generated objects carry."""
        kind, _, wanted = name.partition(" ")
        named = re.compile(f"{wanted}(-[a-z0-9]{{10}})?")
        return next(obj for obj in self.build.of(kind) if named.fullmatch(obj["metadata"]["name"]))

    def container(self, name: str) -> Object:
        return dict_of(pod(self[f"Deployment {name}"])["containers"][0])


def dict_of(value: Any) -> Object:
    assert isinstance(value, dict)
    return value


def wrong_grpc_port(d: Draft) -> None:
    d.container("draft")["ports"][0]["containerPort"] = 50051


def wrong_service_port(d: Draft) -> None:
    d["Service target"]["spec"]["ports"][0]["targetPort"] = "http"


def wrong_probe_port(d: Draft) -> None:
    d.container("target")["readinessProbe"]["grpc"]["port"] = 50051


def wrong_address(d: Draft) -> None:
    d["ConfigMap coordinator-config"]["data"]["TARGET_ADDRESSES"] = "verifiers:50053"


def wrong_address_port(d: Draft) -> None:
    d["ConfigMap coordinator-config"]["data"]["DRAFT_ADDRESSES"] = "draft:50053"


def virtual_pool(d: Draft) -> None:
    del d["Service draft"]["spec"]["clusterIP"]


def on_loopback(d: Draft) -> None:
    d["ConfigMap target-config"]["data"]["HOST"] = "127.0.0.1"


def no_startup_probe(d: Draft) -> None:
    del d.container("target")["startupProbe"]


def swapped_probes(d: Draft) -> None:
    container = d.container("target")
    live, ready = container["livenessProbe"]["grpc"], container["readinessProbe"]["grpc"]
    live["service"], ready["service"] = ready["service"], live["service"]


def ready_whatever_happens(d: Draft) -> None:
    d.container("coordinator")["readinessProbe"]["grpc"]["service"] = "live"


def tls_unasked(d: Draft) -> None:
    d.container("draft")["livenessProbe"] = {"grpc": {"port": 50052, "service": "live"}, "failureThreshold": 3}


def impatient_startup(d: Draft) -> None:
    d.container("target")["startupProbe"]["failureThreshold"] = 6


def short_grace(d: Draft) -> None:
    pod(d["Deployment target"])["terminationGracePeriodSeconds"] = 30


def long_drain(d: Draft) -> None:
    d["ConfigMap coordinator-config"]["data"]["DRAIN_GRACE"] = "60"


def no_sleep(d: Draft) -> None:
    del d.container("coordinator")["lifecycle"]


def selector_of_another(d: Draft) -> None:
    d["Service target"]["spec"]["selector"] = {"app.kubernetes.io/name": "verifier"}


def own_selector(d: Draft) -> None:
    d["Deployment draft"]["spec"]["selector"]["matchLabels"] = {"app.kubernetes.io/name": "drafter"}


def lost_budget(d: Draft) -> None:
    d["PodDisruptionBudget target"]["spec"]["selector"]["matchLabels"] = {"app.kubernetes.io/name": "targets"}


def stubborn_budget(d: Draft) -> None:
    d["PodDisruptionBudget target"]["spec"] = {
        "minAvailable": 1,
        "selector": d["PodDisruptionBudget target"]["spec"]["selector"],
    }


def unknown_setting(d: Draft) -> None:
    d["ConfigMap target-config"]["data"]["KV_STORE_URI"] = "redis://redis-kv:6379/0"


def impossible_value(d: Draft) -> None:
    d["ConfigMap draft-config"]["data"]["THREADS"] = "two"


def missing_configmap(d: Draft) -> None:
    d.container("draft")["envFrom"][0]["configMapRef"]["name"] = "drafter-config"


def committed_secret(d: Draft) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "redis-auth"}, "data": {}}
    d.added.append(secret)


def forgetful_sessions(d: Draft) -> None:
    data = d["ConfigMap redis-config"]["data"]
    data["redis.conf"] = data["redis.conf"].replace("noeviction", "allkeys-lru")


def gap_in_a_rollout(d: Draft) -> None:
    del d["Deployment target"]["spec"]["strategy"]


def latest_image(d: Draft) -> None:
    d.container("draft")["image"] = "specdec/draft:latest"


def moving_image(d: Draft) -> None:
    pod(d["StatefulSet redis"])["containers"][0]["image"] = "redis:7-alpine"


def root(d: Draft) -> None:
    pod(d["Deployment coordinator"])["securityContext"]["runAsUser"] = 0


def writable(d: Draft) -> None:
    d.container("target")["securityContext"]["readOnlyRootFilesystem"] = False


def no_memory_limit(d: Draft) -> None:
    del d.container("target")["resources"]["limits"]["memory"]


def open_to_all(d: Draft) -> None:
    d["NetworkPolicy redis"]["spec"]["ingress"][0].pop("from")


def cut_off(d: Draft) -> None:
    d["NetworkPolicy target"]["spec"]["egress"] = []


def replicas_of_a_scaler(d: Draft) -> None:
    d["Deployment target"]["spec"]["replicas"] = 3


def two_scalers(d: Draft) -> None:
    second = copy.deepcopy(d["ScaledObject target"])
    second["metadata"]["name"] = "target-kv"
    d.added.append(second)


def hpa_beside_keda(d: Draft) -> None:
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": "draft"}, "minReplicas": 1, "maxReplicas": 9}
    d.added.append({"kind": "HorizontalPodAutoscaler", "metadata": {"name": "draft"}, "spec": spec})


def nobody_to_scale(d: Draft) -> None:
    d["ScaledObject draft"]["spec"]["scaleTargetRef"]["name"] = "drafter"


def silence_is_calm(d: Draft) -> None:
    del d["ScaledObject target"]["spec"]["triggers"][0]["metadata"]["ignoreNullValues"]


def no_fallback(d: Draft) -> None:
    del d["ScaledObject draft"]["spec"]["fallback"]


def hasty(d: Draft) -> None:
    behavior = d["ScaledObject target"]["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    behavior["scaleDown"]["stabilizationWindowSeconds"] = 30


def unknown_metric(d: Draft) -> None:
    metadata = d["ScaledObject target"]["spec"]["triggers"][0]["metadata"]
    metadata["query"] = metadata["query"].replace("specdec_queue_seconds_sum", "specdec_queue_wait_seconds_sum")


def unknown_label(d: Draft) -> None:
    metadata = d["ScaledObject draft"]["spec"]["triggers"][1]["metadata"]
    metadata["query"] = metadata["query"].replace("cause=~", "reason=~")


def no_promql(d: Draft) -> None:
    d["ScaledObject target"]["spec"]["triggers"][0]["metadata"]["query"] = "sum(rate(specdec_queue_seconds_sum[1m])"


def unlike_keda(d: Draft) -> None:
    d["HorizontalPodAutoscaler target"]["spec"]["metrics"][0]["external"]["target"]["averageValue"] = "2"


def unheard_of(d: Draft) -> None:
    d["HorizontalPodAutoscaler draft"]["spec"]["metrics"][0]["external"]["metric"]["name"] = "specdec_drafts"


def unknown_key(d: Draft) -> None:
    d["ScaledObject target"]["spec"]["coolDownPeriod"] = 300


def unknown_key_of_a_monitor(d: Draft) -> None:
    d["ServiceMonitor specdec"]["spec"]["endpoints"][0]["ports"] = "metrics"


def unknown_key_of_kubernetes(d: Draft) -> None:
    d.container("target")["livenessProb"] = {}


MISTAKES: list[tuple[Change, str, str, str]] = [
    (wrong_grpc_port, "listening", "base", "Deployment draft: containerPort grpc is 50051, but PORT is 50052"),
    (wrong_service_port, "service ports", "base", "Service target: port 50053 goes to targetPort 'http'"),
    (wrong_probe_port, "probes", "base", "Deployment target: readinessProbe asks port 50051, but PORT is 50053"),
    (wrong_address, "addresses", "base", "TARGET_ADDRESSES names verifiers, and there is no such Service"),
    (wrong_address_port, "addresses", "base", "DRAFT_ADDRESSES asks draft for port 50053"),
    (virtual_pool, "addresses", "base", "Service draft: spec.clusterIP is None: write None"),
    (on_loopback, "listening", "base", "Deployment target: HOST is 127.0.0.1: write 0.0.0.0"),
    (no_startup_probe, "probes present", "overlays/gpu", "container target has no startupProbe: add one"),
    (swapped_probes, "probes", "base", "livenessProbe asks for 'specdec.v1.TargetService': ask for 'live'"),
    (
        ready_whatever_happens,
        "probes",
        "base",
        "readinessProbe asks for 'live': ask for 'specdec.v1.Gen",
    ),
    (tls_unasked, "probes", "overlays/tls", "livenessProbe.grpc cannot ask a server with TLS_CERTIFICATE"),
    (impatient_startup, "probe patience", "base", "startupProbe gives up after 30 s"),
    (short_grace, "grace", "base", "Deployment target: terminationGracePeriodSeconds is 30: give at least 40"),
    (long_drain, "grace", "base", "Deployment coordinator: terminationGracePeriodSeconds is 45: give at least 80"),
    (no_sleep, "grace", "base", "Deployment coordinator: no lifecycle.preStop.sleep"),
    (selector_of_another, "service ports", "base", "Service target: spec.selector finds no workload"),
    (own_selector, "selectors", "base", "Deployment draft: spec.selector .* does not match the labels of its own"),
    (lost_budget, "selectors", "base", "PodDisruptionBudget target: selects no pod"),
    (stubborn_budget, "disruption", "base", "PodDisruptionBudget target: spec.minAvailable"),
    (unknown_setting, "settings", "base", "KV_STORE_URI is no setting of target"),
    (impossible_value, "values", "base", "it would not start: threads = 'two': must be an integer"),
    (missing_configmap, "references", "base", "Deployment draft: needs ConfigMap drafter-config, which is not there"),
    (committed_secret, "references", "base", "Secret redis-auth: refer to it"),
    (forgetful_sessions, "stores", "base", "StatefulSet redis: maxmemory-policy is allkeys-lru .* write noeviction"),
    (gap_in_a_rollout, "rollout", "base", "Deployment target: rollingUpdate.maxUnavailable is None: write 0"),
    (latest_image, "images", "base", "runs image specdec/draft:latest: pin a whole version"),
    (moving_image, "images", "base", "runs image redis:7-alpine: pin a whole version"),
    (root, "contexts", "base", "Deployment coordinator: securityContext.runAsUser is 0"),
    (writable, "contexts", "base", "container target: securityContext.readOnlyRootFilesystem is False"),
    (no_memory_limit, "resources", "base", "container target has no resources.limits.memory"),
    (open_to_all, "arrows", "base", "Ingress allows anyone -> redis:6379: the architecture has no such arrow"),
    (cut_off, "arrows", "base", "Egress does not allow target -> redis-kv:6379"),
    (replicas_of_a_scaler, "one owner", "overlays/hpa", "spec.replicas is 3, but HorizontalPodAutoscaler target owns"),
    (two_scalers, "one owner", "overlays/keda", "ScaledObject target-kv: ScaledObject target scales Deployment target"),
    (hpa_beside_keda, "one owner", "overlays/keda", "HorizontalPodAutoscaler draft: ScaledObject draft scales"),
    (nobody_to_scale, "one owner", "overlays/keda", "names Deployment drafter, which is not there"),
    (silence_is_calm, "triggers", "overlays/keda", "trigger target-queue-wait: ignoreNullValues is None"),
    (no_fallback, "triggers", "overlays/keda", "ScaledObject draft: spec.fallback is None"),
    (hasty, "pace", "overlays/keda", "scaleDown.stabilizationWindowSeconds is 30: write at least 300"),
    (unknown_metric, "metrics", "overlays/keda", "no process shows a metric specdec_queue_wait_seconds_sum"),
    (unknown_label, "metrics", "overlays/keda", "specdec_fallbacks_total has no label reason: it has cause"),
    (no_promql, "metrics", "overlays/keda", "trigger target-queue-wait: query: no PromQL"),
    (unlike_keda, "agreement", "overlays/hpa", "HorizontalPodAutoscaler target: 2 to 16"),
    (unheard_of, "external metrics", "overlays/hpa", "specdec_drafts: metricsQuery is None"),
    (unknown_key, "schemas", "overlays/keda", "ScaledObject target: spec.coolDownPeriod"),
    (unknown_key_of_a_monitor, "schemas", "overlays/keda", "ServiceMonitor specdec: spec.endpoints.0.ports"),
    (unknown_key_of_kubernetes, "schemas", "base", "Deployment target: .*livenessProb"),
]
