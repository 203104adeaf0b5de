from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.autoscale.hpa import DEFAULT_DOWN, DEFAULT_UP, Behaviour, Policy, Rules
from benchmarks.autoscale.manifests import read_scalers
from benchmarks.autoscale.scrape import LABELS, SIMULATED
from specdec.core.errors import ConfigError
from specdec.edge import telemetry
from tests.benchmarks.autoscale.tables import QUERIES, scaled_object, scalers

K8S = Path(__file__).parents[3] / "k8s" / "components"


def test_thresholds_bounds_and_behaviour_are_the_manifests(tmp_path: Path) -> None:
    behaviour = """\
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp:
          stabilizationWindowSeconds: 30
          selectPolicy: Min
          policies: [{type: Percent, value: 50, periodSeconds: 60}, {type: Pods, value: 2, periodSeconds: 45}]
"""
    (tmp_path / "a.yaml").write_text(scaled_object("target", QUERIES["target"], 3.5, least=2, most=9) + behaviour)
    [scaler] = read_scalers(tmp_path, SIMULATED, LABELS).values()
    assert (scaler.pool, scaler.least, scaler.most, scaler.polling) == ("target", 2, 9, 0.0)
    [trigger] = scaler.triggers
    assert (trigger.name, trigger.kind, trigger.target) == ("target-signal", "AverageValue", 3.5)
    up = Rules((Policy("Percent", 50, 60), Policy("Pods", 2, 45)), "Min", 30.0)
    assert scaler.behaviour == Behaviour(up, DEFAULT_DOWN)


def test_what_a_manifest_leaves_out_is_kubernetes_default(tmp_path: Path) -> None:
    assert {one.behaviour for one in scalers(tmp_path).values()} == {Behaviour(DEFAULT_UP, DEFAULT_DOWN)}


def test_values_are_kept_for_the_polling_interval_only_where_they_are_cached(tmp_path: Path) -> None:
    cached = "useCachedMetrics: true\n      type: prometheus"
    text = scaled_object("target", QUERIES["target"]).replace("type: prometheus", cached)
    (tmp_path / "a.yaml").write_text(text)
    assert read_scalers(tmp_path, SIMULATED, LABELS)["target"].polling == 30.0


HPA = """\
kind: HorizontalPodAutoscaler
metadata: {name: target, namespace: specdec}
spec:
  scaleTargetRef: {name: target}
  minReplicas: 2
  maxReplicas: 9
  metrics:
    - type: External
      external: {metric: {name: queue_depth}, target: {type: AverageValue, averageValue: 500m}}
"""
ADAPTER = """\
rules:
  external:
    - name: {as: queue_depth}
      metricsQuery: sum(specdec_queue_depth{<<.LabelMatchers>>})
"""


def test_an_autoscalers_external_metric_is_what_the_adapter_makes_of_it(tmp_path: Path) -> None:
    (tmp_path / "hpa.yaml").write_text(HPA)
    with pytest.raises(ConfigError, match=r"queue_depth.*no rule"):
        read_scalers(tmp_path, SIMULATED, LABELS)
    (tmp_path / "adapter.yaml").write_text(ADAPTER)
    [trigger] = read_scalers(tmp_path, SIMULATED, LABELS)["target"].triggers
    assert trigger.target == 0.5
    assert trigger.query.text == 'sum(specdec_queue_depth{namespace="specdec"})'


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("sum(specdec_unheard_of)", r"specdec_unheard_of.*target's trigger target-signal reads a metric"),
        ('sum(specdec_queue_depth{zone="a"})', r"zone.*target's trigger target-signal reads a label"),
        ("topk(1, specdec_queue_depth)", "topk"),
    ],
)
def test_what_a_trigger_reads_and_nobody_simulates_is_named(tmp_path: Path, query: str, named: str) -> None:
    (tmp_path / "a.yaml").write_text(scaled_object("target", query))
    with pytest.raises(ConfigError, match=named):
        read_scalers(tmp_path, SIMULATED, LABELS)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("type: prometheus", "type: kafka", "kafka"),
        ("minReplicaCount: 1", "minReplicaCount: 0", "zero"),
        ("threshold:", "treshold:", "ScaledObject target.*threshold"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, before: str, after: str, named: str) -> None:
    (tmp_path / "a.yaml").write_text(scaled_object("target", QUERIES["target"]).replace(before, after))
    with pytest.raises(ConfigError, match=named):
        read_scalers(tmp_path, SIMULATED, LABELS)


def test_two_scalers_of_one_pool_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(scaled_object("target", QUERIES["target"]))
    with pytest.raises(ConfigError, match=r"target.*two scalers"):
        read_scalers(tmp_path, SIMULATED, LABELS)


def test_simulated_names_are_those_of_real_processes() -> None:
    source = Path(telemetry.__file__).read_text()
    for name in SIMULATED:
        base = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        assert f'"{base}"' in source, name


def test_the_shipped_scalers_are_all_simulated_and_both_kinds_say_the_same() -> None:
    keda, hpa = (read_scalers(K8S / kind, SIMULATED, LABELS) for kind in ("keda", "hpa"))
    assert set(keda) == set(hpa) == {"coordinator", "draft", "target"}
    for pool, scaler in keda.items():
        other = hpa[pool]
        assert (scaler.least, scaler.most, scaler.behaviour) == (other.least, other.most, other.behaviour)
        assert [one.target for one in scaler.triggers] == [one.target for one in other.triggers]
