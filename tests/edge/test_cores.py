from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from specdec.edge.cores import cpu_quota, disjoint, usable_cores


@pytest.mark.parametrize("replicas", [1, 2, 3, 5, 8])
def test_replicas_share_no_core_and_leave_none_idle(replicas: int) -> None:
    cores = (0, 1, 2, 3, 8, 9, 10, 11)
    sets = disjoint(cores, replicas)
    assert sorted(chain.from_iterable(sets)) == list(cores)
    assert max(map(len, sets)) - min(map(len, sets)) <= 1


def test_more_replicas_than_cores_get_one_each_in_turn() -> None:
    assert disjoint((4, 5), 5) == [(4,), (5,), (4,), (5,), (4,)]
    assert disjoint((4, 5), 0) == []


@pytest.mark.parametrize(("line", "cpus"), [("200000 100000\n", 2), ("50000 100000", 1), ("max 100000", None)])
def test_the_quota_of_a_container_bounds_the_cores(tmp_path: Path, line: str, cpus: int | None) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(line)
    assert cpu_quota(file) == cpus


def test_without_a_control_group_every_core_counts(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none") is None
    assert len(usable_cores()) >= 1
