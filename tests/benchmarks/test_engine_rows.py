from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.engine_plan import FULL, QUICK, STEP_CONTEXT, Plan, Samples
from benchmarks.engine_rows import Weights, rows_of
from benchmarks.identity import same_share
from benchmarks.models import weight_elements
from benchmarks.report import Row

PLAN = Plan(32, 5, ((1, 3), (2, 1)), ((32, 3),), rows=(1, 8), contexts=(128, 1024), repeats=3)
OURS, OTHER = "ours, auto", "transformers"
GIB = 1 << 30


@pytest.fixture
def samples() -> Samples:
    """Round numbers: ours takes 1 s and 0.2 s to the first token, the other twice that."""
    return Samples(
        generate={(OURS, 1): [1.0, 9.0, 0.9], (OTHER, 1): [2.0, 1.9, 9.0], (OURS, 2): [1.0], (OTHER, 2): [4.0]},
        first={(OURS, 32): [0.2, 0.2, 0.3], (OTHER, 32): [0.4, 0.4, 0.4]},
        steps={
            (OURS, 1, STEP_CONTEXT): [0.010, 0.5, 0.010],
            (OURS, 8, STEP_CONTEXT): [0.011, 0.011, 0.5],
            (OURS, 1, 128): [0.008] * 3,
            (OURS, 1, 1024): [0.010] * 3,
        },
        laws={OURS: {"forward": [0.1], "Y": [0.001], "PQ": [0.004]}},
        profile={OURS: {"forward": [0.008], "laws": [0.001], "engine": [0.001]}},
        peak={OURS: 3 * GIB, OTHER: 4 * GIB},
        libraries={OURS: GIB, OTHER: GIB},
        kv_bytes={OURS: GIB, OTHER: 0},
    )


@pytest.fixture
def rows(samples: Samples) -> dict[tuple[str, str], Row]:
    sizes = {OURS: GIB, OTHER: 2 * GIB}
    return {(row.measure, row.subject): row for row in rows_of(PLAN, samples, Weights(sizes, sizes, 10.0 * GIB))}


@pytest.mark.parametrize(
    ("measure", "subject", "value", "ratio"),
    [
        ("1 stream, 5 tokens", OURS, 5.0, 2.0),
        ("2 streams, 5 tokens", OURS, 10.0, 4.0),
        ("first token, prompt of 32", OURS, 200.0, 0.5),
        ("weights read", OURS, 5 * GIB / 1e9, 0.5),  # 1 GiB for each of 4 tokens in 0.8 s
        ("weights read", OTHER, 5 * GIB / 1e9, 0.5),
        ("step of 8 rows", f"{OURS}, context 256", 11.0, 1.1),
        ("step at context 1024", OURS, 10.0, 1.25),
        ("laws of 9 nodes, form Y", OURS, 1.0, 0.01),
        ("laws of 9 nodes, form PQ", OURS, 4.0, 0.04),
        ("peak memory", OURS, 3.0, 1.5),
        ("peak memory", OTHER, 4.0, 2.0),
        ("peak memory beyond libraries", OURS, 2.0, 1.0),
        ("one step: engine", OURS, 1.0, 0.1),
    ],
)
def test_values_are_medians_and_ratios_are_over_their_baselines(
    rows: dict[tuple[str, str], Row], measure: str, subject: str, value: float, ratio: float
) -> None:
    row = rows[measure, subject]
    assert row.value == pytest.approx(value)
    assert row.ratio == pytest.approx(ratio)


def test_a_peer_that_was_left_out_has_no_row_and_ours_stands_alone_without_any(samples: Samples) -> None:
    del samples.generate[OTHER, 2]
    sizes = {OURS: GIB, OTHER: GIB}
    together = [r for r in rows_of(PLAN, samples, Weights(sizes, sizes, 1.0)) if r.measure.startswith("2 streams")]
    assert [(row.subject, row.baseline, row.ratio) for row in together] == [(OURS, "", None)]


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_a_plan_measures_what_its_rows_need_within_its_budget(plan: Plan) -> None:
    points = plan.step_points
    assert len(points) == len(set(points))
    assert (1, STEP_CONTEXT) in points and (8, STEP_CONTEXT) in points
    assert {(1, 128), (1, 1024)} <= set(points)
    assert plan.prompt in dict(plan.prompts)
    assert sum(sum(point) for point in points) < plan.kv_tokens
    assert plan.most_streams * (plan.prompt + plan.new_tokens) < plan.kv_tokens
    assert replace(plan, prompts=((32, 1), (99_000, 1))).kv_tokens > 99_000


def test_tokens_are_the_same_up_to_the_first_that_is_not() -> None:
    assert same_share([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4], [5, 0, 7, 8]]) == 5 / 8
    assert same_share([[1, 2]], [[1, 2]]) == 1.0


@pytest.mark.parametrize(("head", "read"), [("model.norm.weight", 4 * 8 + 8), ("lm_head.weight", 8)])
def test_an_input_embedding_is_read_whole_only_where_it_is_the_head(tmp_path: Path, head: str, read: int) -> None:
    shapes = {"model.embed_tokens.weight": [4, 8], head: [8]}
    header = json.dumps({n: {"dtype": "BF16", "shape": s} for n, s in shapes.items()} | {"__metadata__": {}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert weight_elements(tmp_path) == (40, read)
