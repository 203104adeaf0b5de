from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.lm.mapped import unload


def resident_file_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile"))


@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="no list of mappings here")
def test_pages_of_a_mapped_file_are_given_back_and_can_be_read_again(tmp_path: Path) -> None:
    weight = torch.arange(1 << 22, dtype=torch.int64)
    save_file({"weight": weight}, tmp_path / "model.safetensors")
    mapped = load_file(tmp_path / "model.safetensors")["weight"]
    assert torch.equal(mapped, weight)
    before = resident_file_bytes()
    unload([mapped, weight])
    assert before - resident_file_bytes() > weight.nbytes // 2
    assert torch.equal(mapped, weight)
    assert torch.equal(weight, torch.arange(1 << 22))
