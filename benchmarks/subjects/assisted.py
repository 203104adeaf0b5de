"""`transformers` generate with its own speculation: assisted by a draft model, or by prompt lookup.

python -m benchmarks.subjects.assisted FOLDER DTYPE [DRAFT_FOLDER]"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.subjects.protocol import Handlers, serve

LOOKUP_TOKENS = 10  # what its documentation uses


def load(folder: str, dtype: str, draft: str = "") -> Handlers:
    model, assistant = _model(folder, dtype), _model(draft, dtype) if draft else None

    def generate(prompts: list[list[int]], new_tokens: int, way: str = "plain") -> dict[str, Any]:
        """way: plain, assisted or lookup. Speculation takes one prompt at a time."""
        ways: dict[str, dict[str, Any]] = {
            "plain": {},
            "assisted": {"assistant_model": assistant},
            "lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
        }
        begun, tokens = time.perf_counter(), []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            with torch.inference_mode():
                out = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=new_tokens,
                    do_sample=False,
                    repetition_penalty=1.0,
                    pad_token_id=0,
                    **ways[way],
                )
            tokens.append(out[0, len(prompt) :].tolist())
        return {"seconds": time.perf_counter() - begun, "tokens": tokens}

    return {"generate": generate}


def _model(folder: str, dtype: str) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.eval()
    model.generation_config.eos_token_id = None
    return model


if __name__ == "__main__":
    serve(lambda: load(*sys.argv[1:]))
