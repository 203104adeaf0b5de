"""Step times measured in virtual time, where the truth is known, and kept current."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from specdec.core.step_time import UNMEASURED, StepTimeTable
from specdec.lm.loading import LoadedModel
from specdec.lm.ragged import RaggedBatch
from specdec.lm.runner import Runner, Segment
from target_service.step_time import CONTEXTS, MOST_ROWS, StepTimes, Tuner, shown

Cost = Callable[[int, int], float]


class TimedRunner(Runner):
    """Computes nothing, in virtual time. forwards: rows and context of each."""

    def __init__(self, loaded: LoadedModel, kv_tokens: int, cost: Cost) -> None:
        super().__init__(loaded, kv_tokens)
        self.cost = cost
        self.now = 0.0
        self.forwards: list[tuple[int, int]] = []

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        [segment] = segments
        batch = RaggedBatch.of(segments)
        self.forwards.append((segment.rows, segment.sequence.num_rows))
        self.now += self.cost(*self.forwards[-1])
        batch.commit()
        return [torch.zeros(segment.wanted, 3)]


def small(rows: int, context: int) -> float:
    """7 ms of weights, 0.5 ms a row, and attention."""
    return 0.007 + 0.0005 * rows + 2e-8 * rows * context + 4e-7 * context


def big(rows: int, context: int) -> float:
    return 30 * small(rows, context)


MeasureBy = Callable[..., tuple[StepTimeTable, TimedRunner]]


@pytest.fixture
def measure_by(models: dict[str, LoadedModel]) -> MeasureBy:
    def measure(
        cost: Cost, seconds: float, *, most: int = MOST_ROWS, max_context: int = 4200, nodes: int = 9
    ) -> tuple[StepTimeTable, TimedRunner]:
        runner = TimedRunner(models["llama"], max_context, cost)
        table = Tuner(runner, seconds, most, nodes, max_context, lambda: runner.now).table()
        assert runner.pool.kv_free == runner.pool.capacity
        return table, runner

    return measure


def test_a_small_model_is_measured_whole_and_priced_right_between_the_points(measure_by: MeasureBy) -> None:
    table, runner = measure_by(small, 4.0)
    assert table.rows[:7] == (1, 2, 4, 8, 16, 32, 64)
    assert table.contexts == (128, 1024, 4128)
    assert runner.now < 4.0
    for rows in (1, 3, 9, 50, 64):
        for context in (128, 700, 1024, 3000):
            assert table.estimate(rows, context) == pytest.approx(small(rows, context), rel=0.01)


@pytest.mark.parametrize("seconds", [0.1, 2.0, 4.0])
def test_a_big_model_is_measured_at_fewer_points_and_in_time(measure_by: MeasureBy, seconds: float) -> None:
    table, runner = measure_by(big, seconds)
    longest = max(big(*forward) for forward in runner.forwards)
    assert runner.now <= seconds + longest
    assert len(set(runner.forwards)) < 8
    assert table.estimate(1, 128) == pytest.approx(big(1, 128))
    assert table.estimate(64, 128) == pytest.approx(big(64, 128), rel=0.6)
    assert table.estimate(64, 128) > table.estimate(1, 128)


def test_the_first_forward_of_a_size_may_have_things_to_prepare(measure_by: MeasureBy) -> None:
    seen: set[int] = set()

    def prepares(rows: int, context: int) -> float:
        extra = 0.0 if rows in seen else 0.3
        seen.add(rows)
        return extra + small(rows, context)

    table, _ = measure_by(prepares, 10.0)
    for rows in (1, 8, 64):
        assert table.estimate(rows, 128) == pytest.approx(small(rows, 128), rel=0.01)


def test_larger_forwards_are_looked_at_while_they_bring_more(measure_by: MeasureBy) -> None:
    saturates = measure_by(small, 100.0)[0]
    flat = measure_by(lambda rows, context: 0.01, 100.0)[0]
    assert 128 <= saturates.rows[-1] <= 512
    assert flat.rows[-1] == MOST_ROWS
    assert measure_by(lambda rows, context: 0.01, 100.0, most=100)[0].rows[-1] == 64


@pytest.mark.parametrize("max_context", [1, 2, 40, 160, CONTEXTS[0], CONTEXTS[1] + 1])
def test_no_forward_goes_beyond_what_a_context_may_hold(measure_by: MeasureBy, max_context: int) -> None:
    table, runner = measure_by(small, 4.0, max_context=max_context)
    assert max(rows + context for rows, context in runner.forwards) <= max_context
    assert 1 in table.rows


def test_a_real_model_is_measured(models: dict[str, LoadedModel]) -> None:
    table = Tuner(Runner(models["llama"], 160), 0.2, 64, 9, 160).table()
    assert table.rows[0] == 1 and table.contexts == (96,)
    assert 0 < table.estimate(1, 96) < 5
    assert shown(table).startswith("forwards of 1/")


MEASURED = StepTimeTable.of((1, 2, 4, 8, 16), (0, 100), [[1.0, 2.0], [1.1, 2.1], [1.2, 2.4], [2.0, 3.0], [4.0, 6.0]])


def test_a_machine_that_has_become_slower_or_faster_is_followed() -> None:
    for pace in (1.5, 40.0, 0.1):
        times = StepTimes(MEASURED)
        for i in range(400):
            rows = (1, 4, 8, 3)[i % 4]
            times.observe(rows, 50, pace * MEASURED.estimate(rows, 50))
        for rows in (1, 4, 8, 16):
            assert times.table.estimate(rows, 50) == pytest.approx(pace * MEASURED.estimate(rows, 50), rel=0.1)


def test_sizes_are_corrected_apart() -> None:
    """Laws cost by the row, which a measured forward did not know."""
    times = StepTimes(MEASURED)
    for _ in range(100):
        times.observe(1, 0, 1.0)
        times.observe(16, 0, 8.0)
    assert times.table.estimate(1, 0) == pytest.approx(1.0, rel=0.2)
    assert times.table.estimate(16, 0) == pytest.approx(8.0, rel=0.2)


def test_one_pause_changes_little() -> None:
    times = StepTimes(MEASURED)
    times.observe(4, 0, 1e6)
    assert times.table.estimate(4, 0) < 1.2 * MEASURED.estimate(4, 0)


def test_a_guess_is_no_measurement_and_nothing_corrects_it() -> None:
    times = StepTimes()
    times.observe(4, 0, 1e6)
    assert not times.measured
    assert times.table is UNMEASURED
