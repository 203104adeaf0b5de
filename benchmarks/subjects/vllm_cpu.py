"""vLLM's CPU build, in the environment that `benchmarks.peers` made for it.

python -m benchmarks.subjects.vllm_cpu FOLDER DTYPE SEQUENCES MAX_CONTEXT"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

from benchmarks.subjects.protocol import Handlers, serve


def load(folder: str, dtype: str, sequences: str, max_context: str) -> Handlers:
    vllm: Any = import_module("vllm")  # of its own environment

    engine: Any = vllm.LLM(
        model=folder,
        dtype=dtype,
        max_model_len=int(max_context),
        max_num_seqs=int(sequences),
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def generate(prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        out = engine.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return {"seconds": time.perf_counter() - begun, "tokens": [list(o.outputs[0].token_ids) for o in out]}

    return {"generate": generate}


if __name__ == "__main__":
    serve(lambda: load(*sys.argv[1:]))
