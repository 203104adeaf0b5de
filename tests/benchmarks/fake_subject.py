"""A subject that a test drives: stays in Python, answers at once.

python -m tests.benchmarks.fake_subject [FAULT]"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from benchmarks.subjects.protocol import Handlers, serve


def load(fault: str) -> Handlers:
    print("a library that prints where the answers go")
    if fault == "dies while it loads":
        sys.exit("no such model")

    def generate(prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        if fault == "dies":
            os._exit(3)
        assert fault != "fails", "out of memory"
        return {"seconds": 0.5, "tokens": [[len(p)] * new_tokens for p in prompts]}

    return {"generate": generate, "clock": lambda: {"cpu": time.process_time(), "state": "asked"}}


if __name__ == "__main__":
    serve(lambda: load(sys.argv[1] if len(sys.argv) > 1 else ""))
