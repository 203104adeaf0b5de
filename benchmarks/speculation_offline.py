"""What target and draft agree on, computed in one process: `--alpha`, `--block` and `--steps`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import mean, median

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.chains import Model, Overlap, overlaps
from benchmarks.report import Row
from benchmarks.speculation_beds import Prepared
from benchmarks.speculation_contest import say
from specdec.core.expected import chain_survival
from specdec.core.tree import Ids
from specdec.lm.draft_model import DraftLM, load_draft_model
from specdec.lm.id_map import read_head_ids
from specdec.lm.loading import load_model, read_end_ids
from specdec.lm.networks import Dtype
from specdec.lm.runner import Runner, Segment

TARGET_DTYPE: Dtype = "bfloat16"
SUPPORT = 32  # ids of a draft law that travel
CHAIN = 8  # draft tokens of a recorded chain
STRIDE = 8  # tokens of an answer between two recorded chains
CONTEXT = 128  # behind which a draft step is timed
RESAMPLES = 2000


def models(prepared: Prepared, draft: str, dtype: Dtype) -> tuple[Model, Model]:
    """Target and draft, the draft with its whole head. draft: a model's or draft folder."""
    room = prepared.longest + prepared.bed.new_tokens + CHAIN + 64
    target = Model(load_model(prepared.target, dtype=TARGET_DTYPE, device="cpu"), room)
    loaded = load_draft_model(draft, target=prepared.target, dtype=dtype, device="cpu", head_ids="all")
    return target, Model(loaded.loaded, room, loaded.ids)


def exact_alphas(prepared: Prepared, draft: str, dtype: Dtype, head_ids: str, answers: int, seed: int) -> list[Row]:
    """Mean of 1 - TV(p, q) at temperature 1 along the target's own samples: whole q, q as it travels, and that with a
    head cut to `head_ids`. The mean over the prompts comes last."""
    target, drafter = models(prepared, draft, dtype)
    wanted = read_head_ids(head_ids, target.vocab_size, read_end_ids(prepared.target))
    within = _mask(wanted, target.vocab_size)
    rng = np.random.default_rng(seed)
    found: dict[str, list[Overlap]] = {}
    for question, prompt in zip(prepared.bed.questions, prepared.prompts, strict=True):
        for _ in range(answers):
            answer = target.sample(prompt, prepared.bed.new_tokens, rng)
            found.setdefault(question.name, []).append(overlaps(target, drafter, prompt, answer, SUPPORT, within))
        say(f"alpha: {question.name}")
    return rows_of_alphas(found, f"{dtype} draft", head_ids)


def rows_of_alphas(found: dict[str, list[Overlap]], draft: str, head_ids: str) -> list[Row]:
    ways: dict[str, Callable[[Overlap], Sequence[float]]] = {
        "whole law": lambda one: one.whole,
        f"{SUPPORT} likeliest ids": lambda one: one.cut,
        f"{SUPPORT} likeliest ids of {head_ids}": lambda one: one.restricted,
    }
    means = {
        way: {name: mean([v for one in texts for v in values(one)]) for name, texts in found.items()}
        for way, values in ways.items()
    }
    whole, *_ = means.values()
    rows = [
        Row(f"exact alpha, T = 1, {name}", f"{draft}, {way}", value, "", "whole law", whole[name])
        for way, by_name in means.items()
        for name, value in by_name.items()
    ]
    return rows + [
        Row("exact alpha, T = 1, mean over prompts", f"{draft}, {way}", mean(by_name.values()), "", "whole law",
            mean(whole.values()))
        for way, by_name in means.items()
    ]  # fmt: skip


def block_over_token(prepared: Prepared, draft: str, dtype: Dtype, answers: int, seed: int) -> list[Row]:
    """Mean acceptance length in expectation of block verification over that of the token rule, on the same chains,
    drawn every STRIDE tokens along the target's own samples."""
    target, drafter = models(prepared, draft, dtype)
    rng = np.random.default_rng(seed)
    token, block = list[float](), list[float]()
    for question, prompt in zip(prepared.bed.questions, prepared.prompts, strict=True):
        for _ in range(answers):
            answer = target.sample(prompt, prepared.bed.new_tokens, rng)
            for end in range(0, len(answer), STRIDE):
                context = [*prompt, *answer[:end]]
                chain = drafter.chain(context, CHAIN, SUPPORT, rng)
                survival = chain_survival(chain, target.judge(context, chain))
                token.append(1 + survival.accepted[0])
                block.append(1 + survival.accepted[1])
        say(f"block: {question.name}, {len(token)} chains")
    return rows_of_block(np.array(token), np.array(block), rng)


def rows_of_block(token: NDArray[np.float64], block: NDArray[np.float64], rng: np.random.Generator) -> list[Row]:
    """token, block: float64[n], expected tokens a cycle of each chain."""
    low, high = ratio_interval(block, token, rng)
    subject = f"block verification, {len(token)} chains of {CHAIN}"
    return [
        Row("expected acceptance length", subject, float(block.mean()), "tokens", "token rule", float(token.mean())),
        Row("block over token rule, 95 % interval", "lower end", low, "x"),
        Row("block over token rule, 95 % interval", "upper end", high, "x"),
        Row("chains where block is shorter", subject, float((block < token - 1e-9).sum()), "chains"),
    ]


def ratio_interval(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64], rng: np.random.Generator
) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of the means of paired samples (Efron 1979)."""
    picks = rng.integers(0, len(numerator), (RESAMPLES, len(numerator)))
    low, high = np.quantile(numerator[picks].mean(axis=1) / denominator[picks].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def draft_steps(prepared: Prepared, draft: str, head_ids: str, repeats: int) -> list[Row]:
    """Milliseconds of one draft step, by dtype and head, by turns; and c, the same over the target's step."""
    runners = {"target": Runner(load_model(prepared.target, dtype=TARGET_DTYPE, device="cpu"), CONTEXT + repeats + 64)}
    for dtype in ("bfloat16", "int8"):
        for head in ("all", head_ids):
            one = _loaded(prepared, draft, dtype, head)
            runners[f"{dtype}, head {head}"] = Runner(one.loaded, CONTEXT + repeats + 64)
    sequences = {name: runner.new_sequence() for name, runner in runners.items()}
    times: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(repeats + 1):
        for name, runner in runners.items():
            rows: Ids = np.full(1 if number else CONTEXT, 5, dtype=np.uint32)
            begun = time.perf_counter()
            runner.forward([Segment(sequences[name], rows, wanted=1)])
            if number:
                times[name].append(1e3 * (time.perf_counter() - begun))
    return rows_of_steps({name: median(values) for name, values in times.items()})


def rows_of_steps(medians: dict[str, float]) -> list[Row]:
    target = medians["target"]
    drafts = {name: value for name, value in medians.items() if name != "target"}
    full = next(iter(drafts.values()))
    rows = [Row("target step", TARGET_DTYPE, target, "ms")]
    rows += [Row("draft step", name, value, "ms", "full head", full) for name, value in drafts.items()]
    return rows + [
        Row("c, draft step over target step", name, value, "ms", "target", target) for name, value in drafts.items()
    ]


def _loaded(prepared: Prepared, draft: str, dtype: str, head: str) -> DraftLM:
    checked: Dtype = "int8" if dtype == "int8" else "bfloat16"
    return load_draft_model(draft, target=prepared.target, dtype=checked, device="cpu", head_ids=head)


def _mask(ids: Ids, vocab_size: int) -> torch.Tensor:
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[torch.from_numpy(ids.astype(np.int64))] = True
    return mask
