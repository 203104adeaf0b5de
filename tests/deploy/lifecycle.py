"""What happens when pods go: time to drain, and budgets that let nodes be emptied one pod at a time."""

from __future__ import annotations

from specdec.edge.otel import FLUSH_BUDGET
from specdec.edge.server import CLEAN_UP_SECONDS
from tests.deploy.manifests import Manifests, Object, labels, matches, pod, shown

MARGIN = 5.0  # seconds that nothing is counted on


def grace(manifests: Manifests) -> list[str]:
    """The sleep, the drain, the clean-up and the last export end before SIGKILL."""
    found = []
    for workload, container, settings in manifests.processes:
        sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if not sleep:
            found.append(
                f"{shown(workload)}: no lifecycle.preStop.sleep: SIGTERM comes before endpoints have forgotten the pod"
            )
        drain = float(settings.get("DRAIN_GRACE", "20"))
        needed = sleep + drain + CLEAN_UP_SECONDS + FLUSH_BUDGET + MARGIN
        given = pod(workload).get("terminationGracePeriodSeconds", 30)
        if given < needed:
            found.append(
                f"{shown(workload)}: terminationGracePeriodSeconds is {given}: give at least {needed:g}, which are "
                f"preStop {sleep} + DRAIN_GRACE {drain:g} + clean-up {CLEAN_UP_SECONDS:g} + export {FLUSH_BUDGET:g} + "
                f"margin {MARGIN:g}"
            )
    return found


def disruption(manifests: Manifests) -> list[str]:
    """Each of our workloads has one budget, and it lets one pod go whatever the number of pods."""
    found = []
    for workload, _, _ in manifests.processes:
        given = labels(workload["spec"]["template"])
        budgets = [b for b in manifests.of("PodDisruptionBudget") if matches(b["spec"]["selector"], given)]
        if len(budgets) != 1:
            found.append(f"{shown(workload)}: {len(budgets)} PodDisruptionBudgets select it: write one")
        found += [sentence for budget in budgets for sentence in _sane(budget)]
    return found


def _sane(budget: Object) -> list[str]:
    if "minAvailable" in budget["spec"]:
        return [
            f"{shown(budget)}: spec.minAvailable holds up the drain of a node for ever once that few pods are left: "
            "write maxUnavailable"
        ]
    if budget["spec"].get("maxUnavailable") in (None, 0, "0", "0%"):
        return [f"{shown(budget)}: spec.maxUnavailable is {budget['spec'].get('maxUnavailable')}: no node could drain"]
    return []


def rollout(manifests: Manifests) -> list[str]:
    """A new pod is ready before an old one goes."""
    found = []
    for workload, _, _ in manifests.processes:
        rolling = (workload["spec"].get("strategy") or {}).get("rollingUpdate") or {}
        if rolling.get("maxUnavailable") != 0:
            value = rolling.get("maxUnavailable")
            found.append(f"{shown(workload)}: rollingUpdate.maxUnavailable is {value}: write 0, a pool may be one pod")
    return found
