"""vLLM's CPU build, in the environment that `benchmarks.peers` made for it.

python -m benchmarks.subjects.vllm_cpu FOLDER DTYPE SEQUENCES MAX_CONTEXT [OPTIONS]

OPTIONS: more arguments of vLLM's LLM, as JSON, such as its speculative_config."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

from benchmarks.subjects.protocol import Handlers, serve


def load(folder: str, dtype: str, sequences: str, max_context: str, options: str = "{}") -> Handlers:
    vllm: Any = import_module("vllm")  # of its own environment

    usual = {"enable_prefix_caching": False, "disable_log_stats": True}
    given = {"model": folder, "dtype": dtype, "max_model_len": int(max_context), "max_num_seqs": int(sequences)}
    engine: Any = vllm.LLM(**{**usual, **given, **json.loads(options)})

    def generate(prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        out = engine.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return {"seconds": time.perf_counter() - begun, "tokens": [list(o.outputs[0].token_ids) for o in out]}

    def drafts() -> dict[str, Any]:
        """Draft tokens verified and accepted since the start."""
        counts = {m.name: m.value for m in engine.get_metrics() if hasattr(m, "value")}
        names = {"drafted": "vllm:spec_decode_num_draft_tokens", "accepted": "vllm:spec_decode_num_accepted_tokens"}
        return {key: counts.get(name, 0) for key, name in names.items()}

    return {"generate": generate, "drafts": drafts}


if __name__ == "__main__":
    serve(lambda: load(*sys.argv[1:]))
