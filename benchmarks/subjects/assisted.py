"""`transformers` generate with its own speculation: assisted by a draft model, or by prompt lookup.

python -m benchmarks.subjects.assisted FOLDER DTYPE [DRAFT_FOLDER]"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.subjects.generate import continued, stock_model
from benchmarks.subjects.protocol import Handlers, serve

LOOKUP_TOKENS = 10  # what its documentation uses


def load(folder: str, dtype: str, draft: str = "") -> Handlers:
    model, assistant = stock_model(folder, dtype), stock_model(draft, dtype) if draft else None

    def generate(prompts: list[list[int]], new_tokens: int, way: str = "plain") -> dict[str, Any]:
        """way: plain, assisted or lookup. Speculation takes one prompt at a time."""
        ways: dict[str, dict[str, Any]] = {
            "plain": {},
            "assisted": {"assistant_model": assistant},
            "lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
        }
        begun = time.perf_counter()
        tokens = [continued(model, [prompt], new_tokens, **ways[way])[0] for prompt in prompts]
        return {"seconds": time.perf_counter() - begun, "tokens": tokens}

    return {"generate": generate}


if __name__ == "__main__":
    serve(lambda: load(*sys.argv[1:]))
