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
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.to(device).eval()
    model.generation_config.eos_token_id = None

    def generate(prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        ids = torch.tensor(prompts, device=device)
        begun = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                repetition_penalty=1.0,
                pad_token_id=0,
            )
        tokens = out[:, ids.shape[1] :].tolist()
        return {"seconds": time.perf_counter() - begun, "tokens": tokens}

    return {**memory_of(device), "generate": generate}


if __name__ == "__main__":
    serve(lambda: load(*sys.argv[1:]))
