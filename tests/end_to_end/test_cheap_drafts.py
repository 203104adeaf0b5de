"""Cheap drafts change no output: int8 weights, the target's own int8 copy, cut heads, a drafter of another tokenizer.
Through three real processes, greedy and seeded, token for token."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.edge.client import Client
from specdec.edge.draft_entries import DraftEntries
from specdec.lm.id_map import IdMap
from specdec.lm.translation import Translation
from tests.end_to_end.clusters import PROMPT, all_generated, cluster, tiny_folder
from tests.end_to_end.test_identity import LOAD
from tests.tiny_models import make_tiny_model
from tests.toy_tokenizers import save_folder, toy_tokenizer, toy_vocab_size
from tests.trained_tokenizers import byte_level, save_byte_level

TOKENS = 128


def requests(prompt: list[int], **fields: Any) -> list[dict[str, Any]]:
    """Greedy, and sampled with a seed."""
    common = {"token_ids": prompt, "max_tokens": TOKENS, "ignore_eos": True, **fields}
    return [{**common, "temperature": 0.0}, {**common, "temperature": 1.0, "seed": 7}]


async def check_identity(
    client: Client, prompt: list[int], drafters: tuple[str, ...], **fields: Any
) -> dict[str, float]:
    """Accepted over drafted tokens of each drafter, whose output must be that of plain decoding."""
    (greedy, _), (seeded, _) = await all_generated(client, requests(prompt, num_draft_tokens=0, **fields))
    drafted = [
        request
        for drafter, k in product(drafters, (1, 4))
        for request in requests(prompt, num_draft_tokens=k, drafter=drafter, **fields)
    ]
    counts = {drafter: [0, 0] for drafter in drafters}
    for request, (ids, stats) in zip(drafted, await all_generated(client, drafted), strict=True):
        assert ids == (greedy if request["temperature"] == 0.0 else seeded), request
        assert not set(stats.fallbacks) - LOAD, request
        counts[request["drafter"]][0] += stats.accepted_tokens
        counts[request["drafter"]][1] += stats.draft_tokens
    return {drafter: accepted / max(1, tokens) for drafter, (accepted, tokens) in counts.items()}


@pytest.mark.scenario("B18")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("head_ids", [None, "first:20"])
async def test_no_output_depends_on_int8_drafts_or_cut_heads(tmp_path: Path, head_ids: str | None) -> None:
    """The target's int8 copy is nearly always right; a head that lacks a third of the ids is right more seldom."""
    folder = tiny_folder(tmp_path / "model")
    draft = DraftEntries((f"lm:{folder}", "self:int8", "ngram"), 2)
    settings: dict[str, Any] = {"draft": draft, "draft_dtype": "int8", "head_ids": head_ids}
    async with (
        cluster(folder, tmp_path / "logs", **settings) as running,
        Client(running.address) as client,
    ):
        rates = await check_identity(client, PROMPT, ("lm", "self"))
    assert rates["lm"] > 0
    assert rates["self"] > 0.8 if head_ids is None else 0.2 < rates["self"] < 0.8


@pytest.mark.scenario("B18")
@pytest.mark.scenario("B32")
@pytest.mark.timeout(180)
async def test_no_output_depends_on_a_drafter_of_another_tokenizer(tmp_path: Path) -> None:
    """Such a drafter is admitted by --tli. Its weights are the target's, told in its own ids: where the target says
    only what both can say, it is nearly always right, which it could not be if contexts, drafts or noise were taken for
    tokens of the wrong tokenizer."""
    target = make_tiny_model(tmp_path / "target", vocab_size=toy_vocab_size("byte_level"), layers=1)
    save_folder(target, "byte_level")
    width = toy_vocab_size("byte_level")
    drafter, shared = retold(target, tmp_path / "drafter")
    lonely = {i: float("-inf") for i in range(width) if i not in set(shared.target_ids.tolist())}
    assert lonely
    prompt = [int(i) for i in toy_tokenizer("byte_level").encode("the hello world", add_special_tokens=False).ids]
    settings: dict[str, Any] = {"draft": DraftEntries((f"lm:{drafter}", "ngram")), "tli": True}
    async with (
        cluster(target, tmp_path / "logs", **settings) as running,
        Client(running.address) as client,
    ):
        anything = await check_identity(client, prompt, ("lm",))
        understood = await check_identity(client, prompt, ("lm",), logit_bias=lonely)
    assert 0 < anything["lm"] < understood["lm"]
    assert understood["lm"] > 0.95


def retold(target: Path, folder: Path) -> tuple[Path, IdMap]:
    """The target's model with embeddings and head in the order of another tokenizer's ids; and the tokens of both."""
    tokenizer = byte_level()
    width = tokenizer.get_vocab_size()
    make_tiny_model(folder, vocab_size=width, layers=1)
    shared = Translation(toy_tokenizer("byte_level"), tokenizer, toy_vocab_size("byte_level"), width).shared
    theirs = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    mine = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = theirs.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = mine.state_dict()[name].clone()
        rows[shared.own_ids.astype("int64")] = weights[name][shared.target_ids.astype("int64")]
        weights[name] = rows
    mine.load_state_dict(weights)
    mine.save_pretrained(folder)
    return save_byte_level(folder), shared
