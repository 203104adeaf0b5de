"""The pods of one role, and the scaler that makes more and fewer of them."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.autoscale.hpa import Autoscaler
from benchmarks.autoscale.manifests import Scaler
from benchmarks.autoscale.pods import Pod
from benchmarks.autoscale.samples import Samples

SCHEDULED, FOUND = 10.0, 7.0  # seconds: until a pod's process starts; until it is found ready and known by name
PRE_STOP = 5.0  # seconds that a pod which is to go serves as before


class Pool:
    """make: a new pod, given when it will be ready. start: seconds of its process until it serves; replicas: fixed
    ones, None: as the scaler says. changes: what the scaler did, with times."""

    def __init__(
        self, scaler: Scaler, start: float, replicas: int | None, make: Callable[[float], Pod], rng: random.Random
    ) -> None:
        self.changes: list[tuple[float, int]] = []
        self.paid = 0.0  # pod seconds of those that are gone
        self._scaler, self._start, self._make, self._rng = scaler, start, make, rng
        self._fixed = replicas is not None
        self._autoscaler = Autoscaler(scaler.least, scaler.most, scaler.behaviour)
        self._read: dict[int, tuple[float, float | None]] = {}
        self.pods = [make(0.0) for _ in range(scaler.least if replicas is None else replicas)]

    def ready(self, now: float) -> list[Pod]:
        return [pod for pod in self.pods if pod.ready <= now and not pod.gone(now)]

    def less_pressed(self, now: float, most: int) -> Pod | None:
        """Of two at random, as a coordinator chooses, that have fewer than `most` sessions."""
        ready = [pod for pod in self.ready(now) if len(pod.sessions) < most]
        pair = self._rng.sample(ready, min(2, len(ready)))
        return min(pair, key=lambda pod: pod.pressure, default=None)

    def scale(self, now: float, samples: Samples) -> None:
        if self._fixed:
            return
        kept = [pod for pod in self.pods if pod.leaving is None]
        ready = sum(pod.ready <= now for pod in kept)
        scaler, proposals = self._scaler, list[int | None]()
        for number, trigger in enumerate(scaler.triggers):
            value = self._value(number, now, samples)
            asked = None if value is None else trigger.wanted(value, len(kept), ready, scaler.behaviour)
            proposals.append(asked)
        replicas = self._autoscaler.sync(now, len(kept), proposals)
        if replicas != len(kept):
            self.changes.append((now, replicas - len(kept)))
        self.pods += [self._make(now + SCHEDULED + self._start + FOUND) for _ in range(replicas - len(kept))]
        # Those that are not ready go first, then the youngest.
        kept.sort(key=lambda pod: (pod.ready > now, pod.created), reverse=True)
        for pod in kept[: max(0, len(kept) - replicas)]:
            pod.leaving = now + PRE_STOP if pod.ready <= now else now

    def _value(self, number: int, now: float, samples: Samples) -> float | None:
        """What a trigger reads, kept for as long as its scaler keeps it."""
        time, value = self._read.get(number, (float("-inf"), None))
        if now - time >= max(self._scaler.polling, 1e-9):
            value = self._scaler.triggers[number].query.value(samples, now)
            self._read[number] = (now, value)
        return value

    def bury(self, now: float) -> None:
        """Those that were to go and have no session any more are paid for no longer."""
        for pod in [one for one in self.pods if one.gone(now) and not one.sessions]:
            self.pods.remove(pod)
            self.paid += now - pod.created

    def pod_seconds(self, now: float) -> float:
        return self.paid + sum(now - pod.created for pod in self.pods)
