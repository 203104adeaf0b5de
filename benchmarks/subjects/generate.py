"""`transformers` generate, the baseline: stock model, as anybody would call it.

python -m benchmarks.subjects.generate FOLDER DTYPE DEVICE"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.subjects.device import memory_of
from benchmarks.subjects.protocol import Handlers, serve


def load(folder: str, dtype: str, device: str) -> Handlers:
    model = stock_model(folder, dtype, device)

    def generate(prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        begun = time.perf_counter()
        tokens = continued(model, prompts, new_tokens)
        return {"seconds": time.perf_counter() - begun, "tokens": tokens}

    return {**memory_of(device), "generate": generate}


def continued(model: Any, prompts: list[list[int]], new_tokens: int, **speculation: Any) -> list[list[int]]:
    """Greedy, of prompts of one length. speculation: what `generate` calls its own."""
    ids = torch.tensor(prompts, device=model.device)
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            repetition_penalty=1.0,
            pad_token_id=0,
            **speculation,
        )
    tokens: list[list[int]] = out[:, ids.shape[1] :].tolist()
    return tokens


def stock_model(folder: str, dtype: str, device: str = "cpu") -> Any:
    """That no end token stops."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.to(device).eval()
    model.generation_config.eos_token_id = None
    return model


if __name__ == "__main__":
    serve(lambda: load(*sys.argv[1:]))
