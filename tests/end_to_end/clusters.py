"""Real clusters of real processes on tiny random models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from protos.generation_pb2 import Chunk, Complete, DraftStats
from specdec.edge.client import Client
from specdec.edge.cluster import Cluster, ClusterSpec
from specdec.edge.draft_entries import DraftEntries
from tests.fakes.tables import letters_folder
from tests.tiny_models import make_tiny_model

VOCAB = 32
LAYERS = 4
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def tiny_folder(folder: Path, family: str = "llama", **config: Any) -> Path:
    """A random model of the family with a tokenizer of its size."""
    make_tiny_model(folder, family, vocab_size=VOCAB, layers=LAYERS, max_context=512, **config)
    return letters_folder(folder, VOCAB)


@asynccontextmanager
async def cluster(
    target: Path, logs: Path, *, draft_layers: int | None = 2, environment: Mapping[str, str] | None = None, **spec: Any
) -> AsyncIterator[Cluster]:
    """Drafts by the target's first `draft_layers` layers (None: by all of them) in float32, and by n-grams, or by what
    `spec` says. One thread a model: for models this small, more threads only wait for one another."""
    await asyncio.to_thread(logs.mkdir, exist_ok=True)
    spec.setdefault("draft", DraftEntries((f"lm:{target}", "ngram"), draft_layers))
    spec.setdefault("draft_dtype", "float32")
    whole = ClusterSpec(str(target), threads=1, tune_seconds=0.0, **spec)
    async with Cluster(whole, logs, lambda line: None) as running:
        yield running


async def generated(client: Client, **fields: Any) -> tuple[list[int], DraftStats]:
    """The ids of one choice and what was counted."""
    ids: list[int] = []
    stats = None
    async for event in client.generate(**fields):
        if isinstance(event, Chunk):
            ids += [token.id for token in event.tokens]
        elif isinstance(event, Complete):
            stats = event.draft_stats
    assert stats is not None, "the turn did not end"
    return ids, stats


async def all_generated(client: Client, requests: Sequence[Mapping[str, Any]]) -> list[tuple[list[int], DraftStats]]:
    """Side by side, so that they share forwards."""
    return await asyncio.gather(*(generated(client, **request) for request in requests))


def transformers_greedy(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    """What `transformers` itself generates."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, use_cache=True
        )
    return [int(i) for i in out[0, len(prompt) :]]


def transformers_logits(folder: Path, contexts: Sequence[Sequence[int]], every: bool = False) -> torch.Tensor:
    """float32[n, V]: logits behind each of n contexts of equal length; every: float32[n, length, V], behind each of
    their tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor(contexts)).logits
    return logits if every else logits[:, -1]
