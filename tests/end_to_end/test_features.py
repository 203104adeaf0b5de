"""Hidden states from a real target's forwards to a drafter, through a coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec.core.features import FEATURE_WINDOW
from specdec.edge.messages import DrafterInfo, ReplicaInfo
from specdec.lm.features import decode
from specdec.lm.loading import load_model
from specdec.lm.runner import Runner, Segment
from target_service.engine import Engine, EngineLimits
from tests.end_to_end.clusters import LAYERS, VOCAB, tiny_folder, transformers_greedy
from tests.fakes.replicas import ScriptedDrafter
from tests.fakes.scripted import Stream
from tests.fakes.stack import scripted_drafter, stack
from tests.fakes.tables import constant
from tests.target_service.driver import ids
from tests.target_service.wire import serving

READS = (1, 3, 4)
TOKENS = 60


@dataclass(eq=False)
class Keeping(ScriptedDrafter):
    """Keeps the rows that come, by position."""

    drafter: DrafterInfo = field(default_factory=lambda: DrafterInfo("lm"))
    rows: dict[int, bytes] = field(default_factory=dict)

    def info(self) -> ReplicaInfo:
        return replace(super().info(), drafter_infos=(self.drafter,))

    def _reply(self, stream: Stream, request: Any) -> Any:
        if (sent := request.features) is not None:
            self.rows |= {sent.offset + i: sent.take([i]).data for i in range(sent.rows)}
        return super()._reply(stream, request)


@pytest.mark.parametrize("prompt_tokens", [5, 150])
async def test_rows_that_reach_a_drafter_are_the_targets_hidden_states(tmp_path: Path, prompt_tokens: int) -> None:
    """With acceptances of every length, after a prompt that was computed for another session before."""
    folder = tiny_folder(tmp_path / "model")
    assert READS[-1] == LAYERS, "the last layer's output among them"
    loaded = load_model(str(folder), dtype="float32", device="cpu")
    torch.set_num_threads(1)
    prompt = [(7 * i * i + i) % VOCAB for i in range(prompt_tokens)]
    text = [*prompt, *transformers_greedy(folder, prompt, TOKENS)]

    def propose(context: list[int], k: int) -> list[int]:
        right = len(context) % (k + 1)
        ahead = [*text[len(context) :], *[0] * k][:k]
        return [(token + (i >= right)) % VOCAB for i, token in enumerate(ahead)]

    info = DrafterInfo("lm", False, READS, loaded.hidden_size, loaded.base_fingerprint)
    other = scripted_drafter(constant([1 / VOCAB] * VOCAB), folder)
    drafter = Keeping(other.table, other.tokenizer_hash, "draft", propose=propose, drafter=info)
    engine = Engine(Runner(loaded, 2000), EngineLimits(48, 16, 512, 8))
    async with serving(loaded, engine) as served, stack(folder, [f"127.0.0.1:{served.port}"], [drafter]) as s:
        fields = {"token_ids": prompt, "temperature": 0.0, "max_tokens": TOKENS}
        await s.generate(**fields, num_draft_tokens=0)
        answer = await s.generate(**fields, num_draft_tokens=4)
    assert answer.ids == text[prompt_tokens:]
    assert len({chunk.num_accepted_tokens for chunk in answer.chunks}) > 3
    assert min(drafter.rows) <= max(0, prompt_tokens - 1 - FEATURE_WINDOW + 5)
    assert list(drafter.rows) == list(range(min(drafter.rows), max(drafter.rows) + 1))
    runner = Runner(loaded, len(text))
    [expected] = runner.compute([Segment(runner.new_sequence(), ids(text), tapped=len(text))], READS)
    for position, row in drafter.rows.items():
        sent, hidden = decode(row, len(READS), loaded.hidden_size)[0], expected.hidden[position].numpy()
        step = abs(hidden).max(-1, keepdims=True) / 127
        assert (abs(sent - hidden) <= 0.51 * step).all(), f"position {position}"
