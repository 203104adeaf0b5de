"""Tiny random models of the supported families, saved as `transformers` folders without a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")


def make_tiny_model(
    folder: str | Path,
    family: str = "llama",
    vocab_size: int = 97,
    layers: int = 2,
    hidden: int = 64,
    seed: int = 0,
    *,
    max_context: int = 512,
    heads: int = 4,
    kv_heads: int = 2,
    std: float = 0.25,
    eos_id: int | None = None,
    **config: Any,
) -> Path:
    """Save a random model of `family` under `folder` and return it. `std` is large enough for greedy choices
    with clear margins. Further keywords go to the family's configuration (e.g. sliding_window=8 for
    mistral)."""
    family_config = AutoConfig.for_model(
        family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=max_context,
        tie_word_embeddings=config.pop("tie_word_embeddings", False),
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=None,
        initializer_range=std,
        **config,
    )
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            family_config, dtype=torch.float32
        )
    finally:
        torch.set_rng_state(state)
    model.save_pretrained(folder)
    return Path(folder)
