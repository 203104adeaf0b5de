"""The models that benchmarks run on."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from math import prod
from pathlib import Path

from benchmarks.qwen_pair import PAIR, pair_source


def prepared(name: str) -> str:
    """The folder of a model: a folder, a hub name, a GGUF file, `smollm2`, `qwen1.5b` or `qwen0.5b`."""
    source = pair_source(name) if name in PAIR else name
    command = [sys.executable, "-m", "specdec.lm.prepare", source]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def weight_elements(folder: Path) -> tuple[int, int]:
    """Weights held, and weights that one token reads: an input embedding is read but for one row, unless it is the
    head as well. From the headers of the folder's safetensors files."""
    shapes: dict[str, int] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        shapes |= {name: prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    assert shapes, f"no safetensors in {folder}"
    held = sum(shapes.values())
    inputs = sum(size for name, size in shapes.items() if name.endswith("embed_tokens.weight"))
    has_head = any(name.endswith("lm_head.weight") for name in shapes)
    return held, held - (inputs if has_head else 0)
