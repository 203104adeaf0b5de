"""Whole simulations over tables of round numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.autoscale.cluster import SCRAPE, Simulation
from benchmarks.autoscale.manifests import read_scalers
from benchmarks.autoscale.outcome import PAIRED, PLAIN, SEPARATE, Design, Outcome, Settings
from benchmarks.autoscale.pool import FOUND, SCHEDULED
from benchmarks.autoscale.scrape import LABELS, SIMULATED
from benchmarks.autoscale.sessions import Plans, Session
from benchmarks.autoscale.times import DEFAULT, Forwards, read_times, write_times
from benchmarks.autoscale.traces import SHAPES, Generation, Shape, Traffic, arrivals
from specdec.core.errors import ConfigError
from specdec.core.speedup import expected_tokens
from specdec.core.step_time import StepTimeTable
from tests.benchmarks.autoscale.tables import DRAFT_STEP, DRAFT_WAY, TARGET_STEP, TIMES, WAY, scalers

ONE = {"target": 1, "draft": 1, "coordinator": 1}
FIXED = Settings(fixed=ONE)
Simulate = Callable[..., Outcome]
DESIGNS = (SEPARATE, PAIRED, PLAIN)


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    def run(
        load: Sequence[Generation], design: Design = SEPARATE, settings: Settings = FIXED, seed: int = 1
    ) -> Outcome:
        return Simulation(design, scalers(tmp_path), TIMES, load, settings, seed).run()

    return run


def some(seed: int, seconds: float = 60.0) -> list[Generation]:
    return arrivals(Shape(seconds, lambda now: 1.0), 1.0, Traffic(prompt=100, output=30), seed)


def test_a_generation_alone_takes_its_forwards_and_the_way_between_them(simulate: Simulate) -> None:
    outcome = simulate([Generation(0.0, 10, 5, 0.0)], PLAIN)
    assert outcome.end == pytest.approx(5 * TARGET_STEP + 4 * WAY)
    assert list(outcome.waits) == [0.0] * 5
    assert list(outcome.first_tokens) == pytest.approx([TARGET_STEP])


def test_a_draft_takes_its_steps_and_the_way_there_and_back(simulate: Simulate) -> None:
    """All drafts are accepted, so the planner asks for the most: ten tokens are nine drafted and one more."""
    outcome = simulate([Generation(0.0, 10, 10, 1.0)])
    assert outcome.counts["specdec_cycles_total"] == 1
    assert outcome.end == pytest.approx(DRAFT_WAY + 9 * DRAFT_STEP + TARGET_STEP)


def test_what_a_drafter_computed_of_a_context_is_there_when_it_is_asked_again(tmp_path: Path) -> None:
    """400 rows do not fit the time that one draft has, but those that are left fit the next one's."""
    slow = StepTimeTable.of((1, 64, 256), (128,), [[0.01], [0.3], [1.2]])
    load = [Generation(0.0, 400, 60, 1.0)]
    outcome = Simulation(SEPARATE, scalers(tmp_path), replace(TIMES, draft=slow), load, FIXED, 1).run()
    assert outcome.counts["specdec_num_accepted_tokens_total"] > 40


def test_a_draft_of_which_little_comes_in_time_is_not_worth_its_wait() -> None:
    plans, session = Plans(TIMES, 16), Session(Generation(0.0, 10, 100, 0.95), 10, 100, cycles=1, draft_wait=0.3)
    assert plans.choose(session) > 4
    assert plans.choose(replace(session, came=0.1)) == 0


def test_sessions_share_forwards(simulate: Simulate) -> None:
    """The first begins alone; from then on all eight are in every forward."""
    outcome = simulate([Generation(0.0, 5, 20, 0.0)] * 8, PLAIN)
    assert outcome.end < 23 * (TARGET_STEP + WAY)


def test_a_long_prompt_is_cut_and_does_not_stop_the_others(simulate: Simulate) -> None:
    """1,000 rows take 1.7 s in forwards of the whole budget; beside short work they go in pieces."""
    short, prompt = Generation(0.0, 5, 40, 0.0), Generation(1.0, 1000, 1, 0.0)
    alone = simulate([prompt], PLAIN)
    assert alone.first_tokens[0] == pytest.approx(TIMES.target.estimate(512, 0) + TIMES.target.estimate(488, 0))
    both = simulate([short, prompt], PLAIN)
    assert max(both.waits) < 3.5 * TARGET_STEP, "a forward takes three plain ones at most"
    assert both.first_tokens[1] > alone.first_tokens[0]


@pytest.mark.parametrize("design", DESIGNS)
def test_every_token_that_was_asked_for_is_emitted_once(simulate: Simulate, design: Design) -> None:
    load = some(3)
    outcome = simulate(load, design, Settings())
    assert outcome.tokens == outcome.asked == sum(one.output for one in load)
    assert len(outcome.paces) == len(outcome.first_tokens) == len(load)
    assert sum(moment.tokens for moment in outcome.moments) <= outcome.tokens


def test_a_seed_gives_the_same_and_another_one_does_not(simulate: Simulate) -> None:
    assert some(3) == some(3) != some(4)
    outcomes = [simulate(some(3), settings=Settings(), seed=seed) for seed in (1, 1, 2)]
    first, again, other = ((one.end, one.waits, one.pod_seconds) for one in outcomes)
    assert first == again != other


def test_tokens_of_a_cycle_are_those_of_the_cost_model(simulate: Simulate) -> None:
    outcome = simulate([Generation(0.0, 10, 4000, 0.7)] * 2, settings=replace(FIXED, max_draft=3))
    cycles = outcome.counts["specdec_cycles_total"]
    assert outcome.tokens / cycles == pytest.approx(expected_tokens(0.7, 3), rel=0.03)


def test_without_a_drafter_cycles_fall_back_and_go_on(simulate: Simulate) -> None:
    outcome = simulate([Generation(0.0, 10, 20, 1.0)], settings=Settings(fixed={**ONE, "draft": 0}))
    assert outcome.fallbacks["no_drafter"] == 19, "the last token is never drafted for"
    assert outcome.counts["specdec_cycles_total"] == 20


def test_a_verifier_that_goes_is_left_and_the_context_is_computed_again(tmp_path: Path) -> None:
    load = [Generation(0.0, 400, 50, 0.0)]
    settings = Settings(fixed={**ONE, "target": 2})
    undisturbed = Simulation(PLAIN, scalers(tmp_path), TIMES, load, settings, 1).run()
    moved = Simulation(PLAIN, scalers(tmp_path), TIMES, load, settings, 1)
    pods = list(moved._pools["target"].pods)

    def leave() -> None:
        [busy] = [pod for pod in pods if pod.sessions]
        busy.leaving = moved.now

    moved.at(3.0, leave)
    outcome = moved.run()
    assert all(pod.forwards for pod in pods) and outcome.tokens == 50
    assert outcome.end - undisturbed.end == pytest.approx(TIMES.target.estimate(428, 0) - TARGET_STEP, abs=0.01)


def test_where_there_is_no_room_for_keys_and_values_contexts_are_computed_again(simulate: Simulate) -> None:
    load = [Generation(0.0, 100, 40, 0.0)] * 4
    roomy, narrow = (simulate(load, PLAIN, replace(FIXED, kv_tokens=tokens)) for tokens in (4096, 320))
    assert narrow.tokens == roomy.tokens == 160
    assert narrow.end > 1.5 * roomy.end


def test_pods_come_when_they_are_asked_for_and_go_when_they_are_not(simulate: Simulate) -> None:
    """Thirty generations at once ask for as many verifiers as there may be; a little later traffic is left over."""
    load = [Generation(0.0, 60, 400, 0.0)] * 40 + [Generation(40.0 * i, 5, 5, 0.0) for i in range(5, 40)]
    outcome = simulate(load, PLAIN, Settings())
    [(time, change), *_] = outcome.changes["target"]
    assert change == 3
    ready = [moment.time for moment in outcome.moments if moment.pods["target"][0] == 4]
    assert ready[0] - SCRAPE <= time + SCHEDULED + TIMES.target_start + FOUND <= ready[0]
    assert outcome.moments[-1].pods["target"] == (1, 1)
    assert outcome.pod_seconds["target"] < 2.5 * outcome.end


def test_a_table_comes_back_as_it_was_written_and_what_is_none_is_refused(tmp_path: Path) -> None:
    write_times(TIMES, tmp_path / "times.json")
    assert read_times(tmp_path / "times.json") == TIMES
    (tmp_path / "times.json").write_text('{"origin": "here"}')
    with pytest.raises(ConfigError, match=r"times\.json"):
        read_times(tmp_path / "times.json")


def test_forwards_are_those_of_the_table() -> None:
    forwards = Forwards(TIMES.target)
    assert forwards.seconds(288, 500) == pytest.approx(TIMES.target.estimate(288, 500))


def test_the_shipped_thresholds_do_not_flap_under_steady_load() -> None:
    """Twenty minutes of what two verifiers are there for, with the table that was measured."""
    shipped = read_scalers(Path(__file__).parents[3] / "k8s/components/keda", SIMULATED, LABELS)
    load = arrivals(replace(SHAPES["steady"], seconds=1200.0), 0.5, Traffic(), 1)
    outcome = Simulation(SEPARATE, shipped, read_times(DEFAULT), load, Settings(), 1).run()
    changes = {pool: [change for time, change in found if time > 300] for pool, found in outcome.changes.items()}
    assert all(len({change > 0 for change in found}) < 2 for found in changes.values()), changes
