"""A table of round numbers, and scalers as short as they can be."""

from __future__ import annotations

from pathlib import Path

from benchmarks.autoscale.manifests import Scaler, read_scalers
from benchmarks.autoscale.scrape import LABELS, SIMULATED
from benchmarks.autoscale.times import Times
from specdec.core.step_time import StepTimeTable

TARGET_STEP, DRAFT_STEP, WAY, DRAFT_WAY = 0.1, 0.01, 0.004, 0.002
# A forward costs the same up to 64 rows.
TIMES = Times(
    "round numbers",
    target=StepTimeTable.of((1, 64, 512), (128,), [[TARGET_STEP], [TARGET_STEP], [0.8]]),
    draft=StepTimeTable.of((1, 64, 256), (128,), [[DRAFT_STEP], [DRAFT_STEP], [0.04]]),
    verify_way=WAY,
    draft_way=DRAFT_WAY,
    target_start=8.0,
    draft_start=3.0,
    budget=512,
    alpha=0.8,
)

SCALED_OBJECT = """\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{name: {pool}, namespace: specdec}}
spec:
  scaleTargetRef: {{name: {pool}}}
  minReplicaCount: {least}
  maxReplicaCount: {most}
  triggers:
    - type: prometheus
      name: {pool}-signal
      metadata:
        query: '{query}'
        threshold: "{threshold}"
"""
QUERIES = {
    "target": 'sum(specdec_sessions{service_name="specdec-target"})',
    "draft": 'sum(specdec_queue_depth{service_name="specdec-draft"})',
    "coordinator": "sum(specdec_active_streams)",
}


def scaled_object(pool: str, query: str, threshold: float = 2.0, least: int = 1, most: int = 4) -> str:
    return SCALED_OBJECT.format(pool=pool, query=query, threshold=threshold, least=least, most=most)


def scalers(folder: Path, least: int = 1, most: int = 4) -> dict[str, Scaler]:
    """Of all three pools."""
    for pool, query in QUERIES.items():
        (folder / f"{pool}.yaml").write_text(scaled_object(pool, query, least=least, most=most))
    return read_scalers(folder, SIMULATED, LABELS)
