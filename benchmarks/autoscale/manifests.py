"""What scales a pool, read from the manifests that scale it: KEDA's ScaledObjects, or HorizontalPodAutoscalers whose
external metrics prometheus-adapter's rules define."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.autoscale.functions import QueryError
from benchmarks.autoscale.hpa import DEFAULT_DOWN, DEFAULT_UP, TOLERANCE, Behaviour, Policy, Rules, TargetKind, wanted
from benchmarks.autoscale.promql import Query, parse
from specdec.core.errors import ConfigError

SCALERS = Path("k8s/components/keda")
ADAPTER_MATCHERS = "<<.LabelMatchers>>"
POLLING = 30.0  # seconds, KEDA's default


@dataclass(frozen=True, slots=True)
class Trigger:
    name: str
    query: Query
    kind: TargetKind
    target: float

    def wanted(self, value: float, current: int, ready: int, behaviour: Behaviour) -> int:
        return wanted(self.kind, self.target, value, current, ready, behaviour)


@dataclass(frozen=True, slots=True)
class Scaler:
    """polling: seconds for which a value that was read is kept, 0: it is read whenever it is wanted."""

    pool: str
    least: int
    most: int
    triggers: tuple[Trigger, ...]
    behaviour: Behaviour
    polling: float = 0.0


def read_scalers(folder: Path, simulated: Collection[str], labels: Collection[str]) -> dict[str, Scaler]:
    """By pool. simulated: metrics that there are, labels: that they have. Raises ConfigError, which names what
    cannot be simulated."""
    documents = [document for file in sorted(folder.glob("*.yaml")) for document in _documents(file)]
    adapted = {
        rule["name"]["as"]: rule["metricsQuery"]
        for document in documents
        if "kind" not in document
        for rule in document.get("rules", {}).get("external", [])
    }
    found: dict[str, Scaler] = {}
    for document in documents:
        kind = document.get("kind")
        if kind not in ("ScaledObject", "HorizontalPodAutoscaler"):
            continue
        try:
            scaler = _keda(document["spec"]) if kind == "ScaledObject" else _hpa(document, adapted)
        except (KeyError, TypeError, ValueError) as error:
            name = document.get("metadata", {}).get("name", "?")
            raise ConfigError("scalers", f"{kind} {name}", f"cannot be read: {error!r}") from error
        if scaler.pool in found:
            raise ConfigError("scalers", scaler.pool, "has two scalers")
        for trigger in scaler.triggers:
            _check(scaler.pool, trigger, simulated, labels)
        found[scaler.pool] = scaler
    return found


def _documents(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]


def _check(pool: str, trigger: Trigger, simulated: Collection[str], labels: Collection[str]) -> None:
    for read, known, what in (
        (trigger.query.metrics, simulated, "metric"),
        (trigger.query.labels, labels, "label"),
    ):
        for name in sorted(set(read) - set(known)):
            raise ConfigError("scalers", name, f"{pool}'s trigger {trigger.name} reads a {what} that is not simulated")


def _keda(spec: Mapping[str, Any]) -> Scaler:
    pool = spec["scaleTargetRef"]["name"]
    least = spec.get("minReplicaCount", 0)
    if least < 1:
        raise ConfigError("scalers", f"minReplicaCount {least} of {pool}", "scaling from and to zero is not simulated")
    triggers = tuple(_trigger(pool, number, one) for number, one in enumerate(spec["triggers"]))
    behaviour = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("behavior", {})
    cached = any(one.get("useCachedMetrics") for one in spec["triggers"])
    polling = float(spec.get("pollingInterval", POLLING)) if cached else 0.0
    return Scaler(pool, least, spec.get("maxReplicaCount", 100), triggers, _behaviour(behaviour), polling)


def _trigger(pool: str, number: int, trigger: Mapping[str, Any]) -> Trigger:
    name = trigger.get("name", f"{pool} {number}")
    if trigger["type"] != "prometheus":
        raise ConfigError("scalers", f"{trigger['type']} trigger of {pool}", "only prometheus triggers are simulated")
    metadata = trigger["metadata"]
    kind = trigger.get("metricType", "AverageValue")
    return Trigger(name, _query(name, metadata["query"]), _kind(kind), _quantity(metadata["threshold"]))


def _hpa(document: Mapping[str, Any], adapted: Mapping[str, str]) -> Scaler:
    spec, namespace = document["spec"], document["metadata"].get("namespace", "specdec")
    triggers = []
    for metric in spec["metrics"]:
        if metric["type"] != "External":
            raise ConfigError("scalers", f"{metric['type']} metric", "only external metrics are simulated")
        name, target = metric["external"]["metric"]["name"], metric["external"]["target"]
        if name not in adapted:
            raise ConfigError("scalers", name, "no rule of prometheus-adapter in the folder defines this metric")
        query = _query(name, adapted[name].replace(ADAPTER_MATCHERS, f'namespace="{namespace}"'))
        kind = _kind(target["type"])
        value = target["value" if kind == "Value" else "averageValue"]
        triggers.append(Trigger(name, query, kind, _quantity(value)))
    pool, behaviour = spec["scaleTargetRef"]["name"], _behaviour(spec.get("behavior", {}))
    return Scaler(pool, spec.get("minReplicas", 1), spec["maxReplicas"], tuple(triggers), behaviour)


def _query(name: str, text: str) -> Query:
    try:
        return parse(text)
    except QueryError as error:
        raise ConfigError("scalers", name, str(error)) from error


def _kind(text: str) -> TargetKind:
    if text == "Value":
        return "Value"
    if text == "AverageValue":
        return "AverageValue"
    raise ConfigError("scalers", text, "a target is a Value or an AverageValue")


def _behaviour(given: Mapping[str, Any]) -> Behaviour:
    return Behaviour(_rules(given.get("scaleUp", {}), DEFAULT_UP), _rules(given.get("scaleDown", {}), DEFAULT_DOWN))


def _rules(given: Mapping[str, Any], default: Rules) -> Rules:
    policies = tuple(Policy(one["type"], one["value"], one["periodSeconds"]) for one in given.get("policies", []))
    return Rules(
        policies or default.policies,
        given.get("selectPolicy", default.select),
        float(given.get("stabilizationWindowSeconds", default.window)),
        _quantity(given.get("tolerance", TOLERANCE)),
    )


def _quantity(value: str | int | float) -> float:
    text = str(value)
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
