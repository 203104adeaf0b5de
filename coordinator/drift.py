"""Live acceptance of each drafter beside its profile: a metric, and a line in the log when it sags or recovers."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.cycle import Cycle
from specdec.core.drift import GREEDY, LEAST, SAMPLED, Drift, observed
from specdec.core.errors import ConfigError
from specdec.edge.telemetry import CoordinatorMetrics

log = logging.getLogger(__name__)

Expected = Mapping[tuple[str, str], float]  # by drafter, and greedy or sampled
REMEDY = "give a file that `specdec profile --json` wrote"


class DriftWatch:
    """Of all requests of a coordinator. Sampled and greedy decoding are watched apart, for their acceptance differs.
    Observing is cheap and on the event loop; a drafter that the profile does not know is not watched."""

    def __init__(self, expected: Expected, metrics: CoordinatorMetrics) -> None:
        self._drifts = {key: Drift(alpha) for key, alpha in expected.items()}
        self._metrics = metrics

    @classmethod
    def of(cls, profile: str | None, metrics: CoordinatorMetrics) -> DriftWatch:
        """profile: a file, None: nothing is watched. Raises ConfigError."""
        return cls({} if profile is None else read_profile(profile), metrics)

    def observe(self, cycle: Cycle, greedy: bool) -> None:
        """A committed cycle of an exact rule. Where exact alphas were measured they are compared, else acceptance is
        counted."""
        key = (cycle.judged_drafter, GREEDY if greedy else SAMPLED)
        before = self._drifts.get(key)
        if before is None:
            return
        counted = [1.0] * cycle.num_accepted + [0.0] * (cycle.num_reached - cycle.num_accepted)
        after = self._drifts[key] = observed(before, cycle.alphas or counted)
        if after.difference is not None:
            self._metrics.alpha_drift.set(after.difference, drafter=key[0], sampling=key[1])
        if after.sagging != before.sagging:
            assert after.difference is not None, "a verdict needs enough positions"
            live, tell = after.expected + after.difference, log.warning if after.sagging else log.info
            verdict = "sags below" if after.sagging else "is back at"
            tell("acceptance of %s (%s) %s its profile: %.3f, expected %.3f", *key, verdict, live, after.expected)


def read_profile(file: str) -> Expected:
    """What is expected of each drafter. Alphas that rest on fewer positions than a verdict does expect nothing. Raises
    ConfigError."""
    try:
        content: Any = json.loads(Path(file).read_text(encoding="utf-8"))
        found = {
            (str(drafter), sampling): (float(entry["alpha"]), int(entry["positions"]))
            for drafter, classes in content["drafters"].items()
            for sampling, entry in classes.items()
        }
    except OSError as error:
        raise ConfigError("profile", file, f"cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError("profile", file, f"is no profile: {REMEDY}") from None
    wrong = [key for key, (alpha, _) in found.items() if key[1] not in (GREEDY, SAMPLED) or not 0 <= alpha <= 1]
    if wrong:
        raise ConfigError("profile", file, f"no alpha for {wrong[0]}: {REMEDY}")
    return {key: alpha for key, (alpha, positions) in found.items() if positions >= LEAST}
