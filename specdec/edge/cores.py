"""Which cores each process of a local cluster gets, and how its OpenMP threads wait for one another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

# The rule. A session's drafter and verifier take turns, so both may use every core; replicas of one pool run
# at the same time, so they get disjoint sets. Between two parallel regions OpenMP's threads spin, by default
# long enough to take the core from whoever's turn it is (a cycle takes 1.45 times as long); a spin of some
# thousand rounds bridges the gap between two layers and no more (1.16 times). Passive waiting doubles every
# forward.
SPIN_COUNT = "2000"

Cores = tuple[int, ...]


def usable_cores() -> Cores:
    """Cores that this process may run on, no more of them than its container's CPU quota pays for."""
    everywhere = range(os.cpu_count() or 1)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(everywhere)
    return tuple(cores[: cpu_quota(Path("/sys/fs/cgroup/cpu.max")) or len(cores)])


def cpu_quota(cpu_max: Path) -> int | None:
    """Whole CPUs granted by a cgroup's cpu.max ("200000 100000" grants 2), at least 1; None: no limit."""
    try:
        quota, period = cpu_max.read_text().split()
        return max(int(quota) // int(period), 1)
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return None


def disjoint(cores: Sequence[int], replicas: int) -> list[Cores]:
    """One set of neighbouring cores (they share caches) per replica, of equal size but for one. More replicas
    than cores: one core each, in turn."""
    if replicas >= len(cores):
        return [(cores[i % len(cores)],) for i in range(replicas)]
    n = len(cores)
    return [tuple(cores[i * n // replicas : (i + 1) * n // replicas]) for i in range(replicas)]


def openmp_environment(threads: int) -> dict[str, str]:
    """For a process with `threads` threads. A spin that the user has set stays."""
    return {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", SPIN_COUNT)}
