"""What simulated processes tell on /metrics, by the names that real ones use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from benchmarks.autoscale.outcome import TARGET, Outcome
from benchmarks.autoscale.pods import BOUNDS, Pod
from benchmarks.autoscale.samples import Labels, Series
from benchmarks.autoscale.verifier import Verifier

COUNTED = (
    "specdec_cycles_total",
    "specdec_num_drafts_total",
    "specdec_num_draft_tokens_total",
    "specdec_num_accepted_tokens_total",
    "specdec_num_emitted_tokens_total",
)
OF_REPLICAS = (
    *(f"specdec_queue_seconds_{part}" for part in ("bucket", "sum", "count")),
    *("specdec_queue_depth", "specdec_running_messages", "specdec_sessions"),
    *("specdec_kv_used_tokens", "specdec_kv_total_tokens"),
)
SIMULATED = frozenset([*COUNTED, *OF_REPLICAS, "specdec_active_streams", "specdec_fallbacks_total"])
LABELS = frozenset(["namespace", "service_name", "pod", "cause", "le"])


def of_replica(role: str, pod: Pod, verifier: Verifier | None) -> Iterator[Series]:
    labels = _labels(role, pod)
    below = itertools.accumulate(pod.waits.buckets)
    for bound, count in zip([*map(str, BOUNDS), "+Inf"], below, strict=True):
        yield "specdec_queue_seconds_bucket", labels | {("le", bound)}, float(count)
    yield "specdec_queue_seconds_sum", labels, pod.waits.total
    yield "specdec_queue_seconds_count", labels, float(pod.waits.count)
    yield "specdec_queue_depth", labels, float(len(pod.queue))
    yield "specdec_running_messages", labels, float(len(pod.running))
    yield "specdec_sessions", labels, float(len(pod.sessions))
    if verifier is not None:
        yield "specdec_kv_used_tokens", labels, float(verifier.kv_used)
        yield "specdec_kv_total_tokens", labels, float(verifier.kv_total)


def of_coordinators(pods: list[Pod], streams: int, outcome: Outcome) -> Iterator[Series]:
    """Streams are spread evenly. Counters are those of all together: none is lost with a pod."""
    for number, pod in enumerate(pods):
        yield "specdec_active_streams", _labels("coordinator", pod), float(len(range(number, streams, len(pods))))
    labels = _labels("coordinator", None)
    for name in COUNTED:
        yield name, labels, float(outcome.counts[name])
    for cause, count in outcome.fallbacks.items():
        yield "specdec_fallbacks_total", labels | {("cause", cause)}, float(count)


def of_replicas(role: str, pods: list[Pod], verifiers: Mapping[Pod, Verifier]) -> Iterator[Series]:
    for pod in pods:
        yield from of_replica(role, pod, verifiers[pod] if role == TARGET else None)


def _labels(role: str, pod: Pod | None) -> Labels:
    own = {("namespace", "specdec"), ("service_name", f"specdec-{role}")}
    return frozenset(own if pod is None else own | {("pod", str(pod.number))})
