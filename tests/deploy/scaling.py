"""Scalers that own their pool alone, tell silence from calm, and come down slowly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import Manifests, Object, shown

CALM = 300  # seconds that a smaller number must have been enough
SCALERS = ("ScaledObject", "HorizontalPodAutoscaler")


@dataclass(frozen=True, slots=True)
class Scaler:
    """What a scaler of either kind does: signals are thresholds, per replica, by name."""

    target: str
    least: int
    most: int
    behavior: Mapping[str, Any]
    signals: Mapping[str, float]


def one_owner(manifests: Manifests) -> list[str]:
    """Two scalers on one object take turns undoing each other; a number in the manifest undoes both at each apply."""
    found = []
    owners: dict[tuple[str, str], str] = {}
    for scaler in manifests.of(*SCALERS):
        reference = scaler["spec"]["scaleTargetRef"]
        target = (reference.get("kind", "Deployment"), reference["name"])
        if target in owners:
            found.append(f"{shown(scaler)}: {owners[target]} scales {' '.join(target)} already: keep one of the two")
        owners.setdefault(target, shown(scaler))
        workload = manifests.find(*target)
        if workload is None:
            found.append(f"{shown(scaler)}: spec.scaleTargetRef names {' '.join(target)}, which is not there")
        elif "replicas" in workload["spec"]:
            found.append(
                f"{shown(workload)}: spec.replicas is {workload['spec']['replicas']}, but {shown(scaler)} owns that "
                "number: leave it out"
            )
    return found


def pace(manifests: Manifests) -> list[str]:
    """Up at once, down after CALM seconds, by one pod at a time, within bounds."""
    found = []
    for scaler in manifests.of(*SCALERS):
        read = read_scaler(scaler)
        up, down = read.behavior.get("scaleUp") or {}, read.behavior.get("scaleDown") or {}
        if up.get("stabilizationWindowSeconds") != 0:
            found.append(f"{shown(scaler)}: scaleUp.stabilizationWindowSeconds is not 0: bursts do not wait")
        window = down.get("stabilizationWindowSeconds")
        if window is None or window < CALM:
            found.append(f"{shown(scaler)}: scaleDown.stabilizationWindowSeconds is {window}: write at least {CALM}")
        if any(policy["type"] != "Pods" or policy["value"] > 1 for policy in down.get("policies") or [{"type": None}]):
            found.append(f"{shown(scaler)}: scaleDown.policies let go more than one pod at a time: write Pods, value 1")
        if not 1 <= read.least < read.most:
            found.append(f"{shown(scaler)}: from {read.least} to {read.most} replicas: write 1 or more, then more")
    return found


def triggers(manifests: Manifests) -> list[str]:
    """No data is no zero: KEDA then keeps what there is, or goes to what its fallback says."""
    found = []
    for scaler in manifests.of("ScaledObject"):
        fallback = scaler["spec"].get("fallback") or {}
        if not fallback.get("replicas") or fallback.get("behavior") != "currentReplicasIfHigher":
            found.append(
                f"{shown(scaler)}: spec.fallback is {fallback or None}: give replicas, and behavior "
                "currentReplicasIfHigher, for when Prometheus is silent"
            )
        for trigger in scaler["spec"]["triggers"]:
            name = f"{shown(scaler)}: trigger {trigger.get('name')}"
            ignored = trigger["metadata"].get("ignoreNullValues")
            if ignored != "false":
                found.append(f'{name}: ignoreNullValues is {ignored}: write "false", or no data scales to the least')
            if trigger.get("metricType") != "AverageValue":
                found.append(f"{name}: metricType is {trigger.get('metricType')}: write AverageValue, for the fallback")
            if not isinstance(trigger["metadata"].get("threshold"), str):
                found.append(f"{name}: threshold is no string: KEDA's metadata are strings")
    return found


def agreement(keda: Manifests, hpa: Manifests) -> list[str]:
    """Whichever scaler a cluster has, the pools behave alike."""
    theirs = {scaler.target: scaler for scaler in map(read_scaler, hpa.of("HorizontalPodAutoscaler"))}
    found = []
    for scaler in map(read_scaler, keda.of("ScaledObject")):
        other = theirs.pop(scaler.target, None)
        if other != scaler:
            found.append(
                f"HorizontalPodAutoscaler {scaler.target}: {_shown(other)}, but ScaledObject: {_shown(scaler)}"
            )
    return found + [f"HorizontalPodAutoscaler {name}: there is no such ScaledObject" for name in theirs]


def adapter_rules(values: Path) -> dict[str, str]:
    """PromQL of each external metric that prometheus-adapter is told of; its templates filled in."""
    rules = yaml.safe_load(values.read_text(encoding="utf-8"))["rules"]["external"]
    return {
        rule["name"]["as"]: rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="specdec"') for rule in rules
    }


def read_scaler(scaler: Object) -> Scaler:
    spec = scaler["spec"]
    target = spec["scaleTargetRef"]["name"]
    if scaler["kind"] == "ScaledObject":
        behavior = ((spec.get("advanced") or {}).get("horizontalPodAutoscalerConfig") or {}).get("behavior") or {}
        signals = {
            f"specdec_{t['name'].replace('-', '_')}": float(t["metadata"]["threshold"]) for t in spec["triggers"]
        }
        return Scaler(target, spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100), behavior, signals)
    signals = {
        metric["external"]["metric"]["name"]: quantity(metric["external"]["target"]["averageValue"])
        for metric in spec["metrics"]
    }
    return Scaler(target, spec.get("minReplicas", 1), spec["maxReplicas"], spec.get("behavior") or {}, signals)


def quantity(value: str | int) -> float:
    """100m is a tenth."""
    text = str(value)
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _shown(scaler: Scaler | None) -> str:
    if scaler is None:
        return "none"
    return f"{scaler.least} to {scaler.most}, {json.dumps([scaler.signals, scaler.behavior])}"
